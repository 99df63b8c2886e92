-- A session that is no longer in memory is found by its latest request too: a retry of it is no new session.
ALTER TABLE sessions ADD INDEX by_request request_hash TYPE bloom_filter GRANULARITY 1;
