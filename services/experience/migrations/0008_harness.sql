-- The text of a harness that the gateway added to the chat; empty: none was.
ALTER TABLE records ADD COLUMN harness String CODEC(ZSTD);
