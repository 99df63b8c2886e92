"""Pure decisions of the publisher."""
