"""Pure decisions of the publisher: the next release, resident adapters, the state of the log."""
