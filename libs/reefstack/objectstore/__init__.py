"""A small S3 for the embedded broker: a process with an append-only log.

frames.py, segments.py  the log               index.py, store.py  objects
signature.py, requests.py, server.py  S3      settings.py, app.py  `python -m reefstack.objectstore`
"""
