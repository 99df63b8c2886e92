"""`reef demo --harness`: a harness that evolves, for an agent and for a plain client."""
