"""HTTP in: the ASGI application, clients, limits, tokens."""
