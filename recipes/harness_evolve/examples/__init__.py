"""Examples of harness evolution."""
