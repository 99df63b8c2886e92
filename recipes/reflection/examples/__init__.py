"""Tasks that the examples of harness recipes share."""
