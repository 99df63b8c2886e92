"""The one-shot jobs of docker-compose.yml: each does what is missing and ends."""
