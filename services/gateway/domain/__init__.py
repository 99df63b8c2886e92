"""What the gateway decides, without I/O: the shape of requests, answers, records, reports, routes and access."""
