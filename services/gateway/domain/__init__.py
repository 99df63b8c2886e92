"""The rules of the gateway, without I/O: requests, answers, records, reports, routes, access."""
