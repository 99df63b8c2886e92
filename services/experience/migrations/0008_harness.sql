-- The text of a harness that the gateway added to the chat, and the client's own format; empty: none.
ALTER TABLE records ADD COLUMN harness String CODEC(ZSTD);
ALTER TABLE records ADD COLUMN dialect LowCardinality(String);
