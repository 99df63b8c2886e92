"""A small S3 for the embedded broker: one process, an append-only log on disk.

frames.py     the bytes of one log entry     segments.py  the log's files: append, sync, recover
index.py      keys in order, listed          store.py     put, get, delete, compaction
signature.py  AWS signature, version 4       requests.py  one S3 request to one answer
server.py     HTTP/1.1, one sync per group   settings.py  `REEF_OBJECTSTORE_*`

    python -m reefstack.objectstore
"""
