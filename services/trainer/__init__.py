"""The trainer: hosts weight recipes. Samples and releases in, candidates (weights) out."""
