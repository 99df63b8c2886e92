"""The gateway: HTTP in, events out. It answers when the event is durable."""
