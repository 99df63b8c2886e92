"""HTTP out: to the serving nodes, to providers, and to the experience service."""
