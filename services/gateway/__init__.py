"""The gateway: HTTP in, events out. It answers once what happened is durable."""
