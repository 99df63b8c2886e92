"""The Prometheus metrics of a job host."""

from prometheus_client import Counter, Gauge, Histogram

JOBS = Counter("reef_jobs_total", "moves of jobs, by state", ["binding", "outcome"])
REFUSED = Counter(
    "reef_job_samples_refused_total", "samples that a recipe will never use", ["binding", "reason"]
)
WAITING = Gauge("reef_job_samples_waiting", "samples that may still be used", ["binding"])
SIGNALS = Counter(
    "reef_recipe_signals_total",
    "tries of a recipe's signal: computed, none (the recipe abstains), put_off, refused",
    ["binding", "outcome"],
)
MODEL_CALLS = Counter(
    "reef_recipe_model_calls_total",
    "questions of recipes to models: ok, away, failed",
    ["model", "outcome"],
)
LAST = Gauge(
    "reef_job_step_metric",
    "figures of the last step, by their names in StepCompleted",
    ["binding", "metric"],
)
DURATION_S = Histogram(
    "reef_job_phase_seconds",
    "time of one phase of a job",
    ["binding", "phase"],
    buckets=(0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3600),
)
