"""The control routes: everything but the hot paths."""
