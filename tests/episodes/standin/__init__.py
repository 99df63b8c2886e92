"""An agent of a few lines, for episodes: it does what the model says."""
