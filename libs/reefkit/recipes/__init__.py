"""What a host does for its recipes: models, durable state, programs, seekers."""
