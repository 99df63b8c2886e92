"""Pi, a coding agent for the terminal."""
