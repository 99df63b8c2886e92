-- Rows are replaced by rows with the same key and a later version; reads say FINAL. Ids are strings that sort by time.
CREATE TABLE records (
    record_id String,
    scenario LowCardinality(String),
    at DateTime64(6, 'UTC'),
    digest String,
    traceparent String CODEC(ZSTD),
    session_id String,
    session_turn UInt32,
    session_sequence UInt32,
    retry_of Nullable(String),
    api LowCardinality(String),
    outcome LowCardinality(String),
    session_tag Nullable(String),
    tags String CODEC(ZSTD),
    release_id Nullable(String),
    load_id Nullable(String),
    model LowCardinality(String),
    engine LowCardinality(String),
    request String CODEC(ZSTD(3)),
    response String CODEC(ZSTD(3)),
    body_ref String CODEC(ZSTD),
    prompt_token_ids Array(UInt32) CODEC(ZSTD),
    completions String CODEC(ZSTD),
    completion_token_ids Array(Array(UInt32)) CODEC(ZSTD),
    completion_logprobs Array(Array(Float64)) CODEC(ZSTD),
    usage String CODEC(ZSTD),
    error Nullable(String),
    status UInt16,
    stream UInt8,
    first_token_ms Nullable(Float64),
    duration_ms Float64,
    idempotency_digest Nullable(String),
    INDEX by_session session_id TYPE bloom_filter GRANULARITY 1
) ENGINE = ReplacingMergeTree ORDER BY record_id;

-- state: parked (waits for its records), expired (waited too long, now a dead letter), joined (its sample is published).
CREATE TABLE reports (
    report_id String,
    scenario LowCardinality(String),
    at DateTime64(6, 'UTC'),
    digest String,
    traceparent String CODEC(ZSTD),
    references Array(String),
    score Nullable(Float64),
    feedback String CODEC(ZSTD(3)),
    metadata String CODEC(ZSTD(3)),
    state LowCardinality(String),
    sample_id Nullable(String),
    parked_at DateTime64(6, 'UTC'),
    log_partition Int32,
    log_offset Int64,
    log_key String,
    version UInt64,
    INDEX by_reference references TYPE bloom_filter GRANULARITY 1,
    INDEX by_state state TYPE set(4) GRANULARITY 1
) ENGINE = ReplacingMergeTree(version) ORDER BY report_id;

CREATE TABLE samples (
    sample_id String,
    scenario LowCardinality(String),
    at DateTime64(6, 'UTC'),
    recorded_at DateTime64(6, 'UTC'),
    traceparent String CODEC(ZSTD),
    record_ids Array(String),
    report_id Nullable(String),
    session_id Nullable(String),
    tags String CODEC(ZSTD),
    release_id Nullable(String),
    load_id Nullable(String),
    score Nullable(Float64),
    feedback String CODEC(ZSTD(3)),
    metadata String CODEC(ZSTD(3)),
    tokens Array(UInt32) CODEC(ZSTD),
    prompt_length UInt32,
    loss_mask Array(UInt8) CODEC(ZSTD),
    logprobs Array(Float64) CODEC(ZSTD),
    temperature Float64,
    untrainable Nullable(String),
    messages String CODEC(ZSTD(3)),
    tools String CODEC(ZSTD(3)),
    INDEX by_record record_ids TYPE bloom_filter GRANULARITY 1
) ENGINE = ReplacingMergeTree ORDER BY sample_id;

CREATE TABLE sessions (
    scenario LowCardinality(String),
    session_id String,
    tagged UInt8,
    turns UInt32,
    sequence UInt32,
    first_at DateTime64(6, 'UTC'),
    last_at DateTime64(6, 'UTC'),
    turn_record_id String,
    request_hash String,
    tail_hashes Array(String),
    INDEX by_tail tail_hashes TYPE bloom_filter GRANULARITY 1,
    INDEX by_time last_at TYPE minmax GRANULARITY 1
) ENGINE = ReplacingMergeTree(sequence) ORDER BY (scenario, session_id);

CREATE TABLE steps (
    job_id String,
    scenario LowCardinality(String),
    at DateTime64(6, 'UTC'),
    recipe LowCardinality(String),
    step UInt32,
    base_release_id String,
    sample_ids Array(String),
    metrics String CODEC(ZSTD),
    duration_s Float64,
    candidate_id Nullable(String)
) ENGINE = ReplacingMergeTree ORDER BY job_id;

CREATE TABLE refusals (
    refusal_id String,
    scenario LowCardinality(String),
    at DateTime64(6, 'UTC'),
    recipe LowCardinality(String),
    sample_id String,
    reason LowCardinality(String),
    lag Nullable(Int64),
    INDEX by_sample sample_id TYPE bloom_filter GRANULARITY 1
) ENGINE = ReplacingMergeTree ORDER BY refusal_id;

-- state: published, pending, rejected, conflicted, aborted. body: the event as it came.
CREATE TABLE releases (
    event_id String,
    scenario LowCardinality(String),
    at DateTime64(6, 'UTC'),
    state LowCardinality(String),
    release_id Nullable(String),
    sequence Nullable(UInt32),
    load_id Nullable(String),
    kind LowCardinality(String),
    operation LowCardinality(String),
    candidate_id Nullable(String),
    body String CODEC(ZSTD(3))
) ENGINE = ReplacingMergeTree ORDER BY (event_id, state);

CREATE TABLE servings (
    event_id String,
    scenario LowCardinality(String),
    at DateTime64(6, 'UTC'),
    release_id String,
    load_id String,
    node String,
    adapter Nullable(String),
    duration_ms Float64
) ENGINE = ReplacingMergeTree ORDER BY event_id;
