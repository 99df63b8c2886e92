"""The Prometheus metrics of a job host."""

from prometheus_client import Counter, Gauge, Histogram

JOBS = Counter("reef_jobs_total", "jobs by their outcome", ["binding", "outcome"])
REFUSED = Counter(
    "reef_job_samples_refused_total", "samples that a recipe will never use", ["binding", "reason"]
)
WAITING = Gauge("reef_job_samples_waiting", "samples that may still be used", ["binding"])
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
