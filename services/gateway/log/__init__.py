"""Events out: Kafka, the spool on disk, bodies, and the release tail."""
