"""HTTP to the serving nodes."""
