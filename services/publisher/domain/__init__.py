"""Pure decisions of the publisher: what a release is, what stays loaded, what a log amounts to."""
