"""An exchange with the model, from the request to the durable record."""
