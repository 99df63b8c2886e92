"""HTTP out: to the serving nodes, and to the experience service."""
