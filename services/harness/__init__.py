"""The harness service: samples in, harness candidates out."""
