"""What it takes to run Reef in containers: the image, its one-shot jobs, and the configuration of the systems around it."""
