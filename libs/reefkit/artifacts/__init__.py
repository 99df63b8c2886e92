"""Artifact stores: git with LFS, lakeFS, and a cache on the local disk."""
