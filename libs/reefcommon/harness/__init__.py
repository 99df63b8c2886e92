"""The harness tree: entries, mutations, admission, files."""
