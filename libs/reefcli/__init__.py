"""The `reef` command and the embedded stack that it can start."""
