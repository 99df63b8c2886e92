-- A teacher's log-probability of each response token of the unit.
ALTER TABLE signals ADD COLUMN logprobs Array(Float64) CODEC(ZSTD);

-- Since when, and until when, a recipe wanted units of a kind: exchanges of these times make units, also when the log is read again.
CREATE TABLE periods (
    scenario LowCardinality(String),
    kind LowCardinality(String),
    since DateTime64(6, 'UTC'),
    until DateTime64(6, 'UTC')
) ENGINE = ReplacingMergeTree ORDER BY (scenario, kind, since);
