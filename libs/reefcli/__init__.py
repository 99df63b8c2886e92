"""The `reef` command, the demonstration, and the replay of the log."""
