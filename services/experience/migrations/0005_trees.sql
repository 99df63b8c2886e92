-- Turns form a tree: a session has its latest records as nodes, and is found by any of their requests. Rows of before have one node.
ALTER TABLE sessions ADD COLUMN caller String;
ALTER TABLE sessions ADD COLUMN nodes String CODEC(ZSTD);
ALTER TABLE sessions ADD COLUMN request_hashes Array(String);
ALTER TABLE sessions ADD INDEX by_requests request_hashes TYPE bloom_filter GRANULARITY 1;
-- The effective sampling parameters and the loads of each kind; empty: the event did not state them.
ALTER TABLE records ADD COLUMN caller LowCardinality(String);
ALTER TABLE records ADD COLUMN sampling String CODEC(ZSTD);
ALTER TABLE records ADD COLUMN loads String CODEC(ZSTD);
ALTER TABLE samples ADD COLUMN sampling String CODEC(ZSTD);
ALTER TABLE samples ADD COLUMN loads String CODEC(ZSTD);
