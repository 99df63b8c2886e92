"""The inside of the sandbox. Standard library only: it runs in an isolated interpreter."""
