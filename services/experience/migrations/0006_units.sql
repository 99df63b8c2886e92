-- The client said that the exchange was the last of its session.
ALTER TABLE records ADD COLUMN session_end UInt8;

-- Exchanges of the sessions whose turns or ends a recipe wants. state: see domain/line.py. A state that ends has a greater version.
CREATE TABLE turns (
    scenario LowCardinality(String),
    session_id String,
    sequence UInt32,
    record_id String,
    run UInt32,
    request String,
    tails Array(String),
    at DateTime64(6, 'UTC'),
    log_partition Int32,
    state LowCardinality(String),
    version UInt8
) ENGINE = ReplacingMergeTree(version) ORDER BY (scenario, session_id, sequence, record_id)
SETTINGS concurrent_part_removal_threshold = 1000000, min_parts_to_merge_at_once = 20, merge_selector_enable_heuristic_to_remove_small_parts_at_right = 0;

-- Units other than the samples of reports. kind: turn, session.
CREATE TABLE units (
    unit_id String,
    kind LowCardinality(String),
    scenario LowCardinality(String),
    at DateTime64(6, 'UTC'),
    recorded_at DateTime64(6, 'UTC'),
    traceparent String CODEC(ZSTD),
    record_ids Array(String),
    session_id Nullable(String),
    ended LowCardinality(String),
    next_messages String CODEC(ZSTD(3)),
    part UInt32,
    parts UInt32,
    tags String CODEC(ZSTD),
    release_id Nullable(String),
    load_id Nullable(String),
    loads String CODEC(ZSTD),
    metadata String CODEC(ZSTD(3)),
    tokens Array(UInt32) CODEC(ZSTD),
    prompt_length UInt32,
    loss_mask Array(UInt8) CODEC(ZSTD),
    logprobs Array(Float64) CODEC(ZSTD),
    temperature Float64,
    sampling String CODEC(ZSTD),
    untrainable Nullable(String),
    messages String CODEC(ZSTD(3)),
    tools String CODEC(ZSTD(3)),
    INDEX by_record record_ids TYPE bloom_filter GRANULARITY 1
) ENGINE = ReplacingMergeTree ORDER BY unit_id
SETTINGS concurrent_part_removal_threshold = 1000000, min_parts_to_merge_at_once = 20, merge_selector_enable_heuristic_to_remove_small_parts_at_right = 0;

-- What recipes said about units. abstained: the recipe had no signal, and the other columns have none.
CREATE TABLE signals (
    signal_id String,
    scenario LowCardinality(String),
    at DateTime64(6, 'UTC'),
    recipe LowCardinality(String),
    unit_id String,
    abstained UInt8,
    score Nullable(Float64),
    weight Nullable(Float64),
    words String CODEC(ZSTD(3)),
    teacher String CODEC(ZSTD(3)),
    labels String CODEC(ZSTD),
    calls UInt32,
    tokens UInt64,
    INDEX by_unit unit_id TYPE bloom_filter GRANULARITY 1
) ENGINE = ReplacingMergeTree ORDER BY signal_id
SETTINGS concurrent_part_removal_threshold = 1000000, min_parts_to_merge_at_once = 20, merge_selector_enable_heuristic_to_remove_small_parts_at_right = 0;
