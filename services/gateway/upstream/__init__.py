"""HTTP to the serving nodes, and the connections to other services."""
