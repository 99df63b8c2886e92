"""`GET /health` and `GET /metrics`."""

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.engine.domain.errors import EngineStoppedError
from services.engine.engine import Engine
from services.engine.routes.exchange import EngineParam

router = APIRouter()


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
    registry = CollectorRegistry(auto_describe=False)
    registry.register(EngineMetrics(engine))
    return Response(
        generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8"
    )


class EngineMetrics(Collector):
    """Reads the loop's figures at scrape time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        loop, settings = self._engine.loop, self._engine.settings
        counters = loop.counters
        # Users and background work have rows of their own.
        capacity = 2 * settings.max_num_seqs * settings.max_model_len
        usage, loras = loop.cached_tokens / capacity, len(self._engine.adapters.loaded())
        yield self._gauge("num_requests_running", "Choices in the batches.", loop.running)
        yield self._gauge("num_requests_waiting", "Requests without a row.", loop.waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of the key/value rows in use.", usage)
        yield self._gauge("num_loras_loaded", "Adapters served.", loras)
        yield self._counter("prompt_tokens", "Prompt tokens read.", counters.prompt_tokens)
        yield self._counter("generation_tokens", "Tokens sampled.", counters.generated_tokens)
        yield self._counter("request_success", "Choices that ended.", counters.finished)
        yield self._counter("request_cancelled", "Choices whose client left.", counters.aborted)
        yield self._counter("engine_steps", "Decode steps.", counters.steps)

    # docs/metrics.md is made from the calls of these two.
    def _gauge(self, name: str, text: str, value: float) -> Metric:
        return self._metric(GaugeMetricFamily, name, text, value)

    def _counter(self, name: str, text: str, value: float) -> Metric:
        return self._metric(CounterMetricFamily, name, text, value)

    def _metric(self, kind: Any, name: str, text: str, value: float) -> Metric:
        family: Metric = kind(f"vllm:{name}", text, labels=["model_name"])
        kind.add_metric(family, [self._engine.settings.served_model_name], value)
        return family
