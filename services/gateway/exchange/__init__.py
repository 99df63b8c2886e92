"""One exchange: from the request to the durable record."""
