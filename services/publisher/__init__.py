"""The publisher: verdicts and commands in, release heads moved, serving nodes synced, releases out."""
