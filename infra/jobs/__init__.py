"""The one-shot jobs of docker-compose.yml. Each may be repeated."""
