"""`GET /health` and `GET /metrics`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Response
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.engine.domain.errors import EngineStoppedError
from services.engine.engine import Engine
from services.engine.routes.body import JsonRoute
from services.engine.routes.exchange import EngineParam

router = APIRouter(route_class=JsonRoute)


@router.get("/health")
async def health(engine: EngineParam) -> Response:
    """200 if tokens can be made, else 503."""
    if not engine.loop.alive:
        raise EngineStoppedError("the generation loop has stopped")
    return Response()


@router.get("/metrics")
async def metrics(engine: EngineParam) -> Response:
    """Prometheus text."""
    # Under vLLM's names, so that its dashboards fit.
    text = generate_latest(EngineMetrics(engine))
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@dataclass(frozen=True, slots=True)
class EngineMetrics(Collector):
    """Reads the loop's figures at scrape time."""

    engine: Engine

    def collect(self) -> Iterator[Metric]:
        loop, settings = self.engine.loop, self.engine.settings
        # Users and background work have rows of their own.
        capacity = 2 * settings.max_num_seqs * settings.max_model_len
        usage, loras = loop.cached_tokens / capacity, len(self.engine.adapters.loaded())
        gauge, counter, counts = GaugeMetricFamily, CounterMetricFamily, loop.counters
        # docs/metrics.md is made from these rows.
        rows: tuple[tuple[Any, str, str, float], ...] = (
            (gauge, "num_requests_running", "Choices in the batches.", loop.running),
            (gauge, "num_requests_waiting", "Requests without a row.", loop.waiting),
            (gauge, "kv_cache_usage_perc", "Share of the key/value rows in use.", usage),
            (gauge, "num_loras_loaded", "Adapters served.", loras),
            (counter, "prompt_tokens", "Prompt tokens read.", counts.prompt_tokens),
            (counter, "generation_tokens", "Tokens sampled.", counts.generated_tokens),
            (counter, "request_success", "Choices that ended.", counts.finished),
            (counter, "request_cancelled", "Choices whose client left.", counts.aborted),
            (counter, "engine_steps", "Decode steps.", counts.steps),
        )
        for kind, name, text, value in rows:
            family = kind(f"vllm:{name}", text, labels=["model_name"])
            family.add_metric([settings.served_model_name], value)
            yield family
