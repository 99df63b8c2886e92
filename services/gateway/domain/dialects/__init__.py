"""Other vendors' request formats, as a layer around one chat request."""
