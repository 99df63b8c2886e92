"""`GET /health` and `GET /metrics`."""

from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Depends, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.engine.domain.errors import EngineStoppedError
from services.engine.engine import Engine
from services.engine.routes.exchange import engine_of

router = APIRouter()
EngineParam = Annotated[Engine, Depends(engine_of)]


@router.get("/health")
async def health(engine: EngineParam) -> Response:
    """200 while tokens can be made, else 503."""
    if not engine.loop.alive:
        raise EngineStoppedError("the generation loop has stopped")
    return Response()


@router.get("/metrics")
async def metrics(engine: EngineParam) -> Response:
    """Prometheus text, under vLLM's names, so that its dashboards fit."""
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
        """All families."""
        loop, settings = self._engine.loop, self._engine.settings
        capacity = 2 * settings.max_num_seqs * settings.max_model_len
        counters = loop.counters
        yield self._gauge("num_requests_running", "Choices in the batch.", loop.running)
        yield self._gauge("num_requests_waiting", "Requests without a row.", loop.waiting)
        yield self._gauge(
            "kv_cache_usage_perc",
            "Share of the key/value rows in use, 0 to 1.",
            loop.cached_tokens / capacity,
        )
        yield self._counter("prompt_tokens", "Prompt tokens read.", counters.prompt_tokens)
        yield self._counter("generation_tokens", "Tokens sampled.", counters.generated_tokens)
        yield self._counter("request_success", "Choices that ended.", counters.finished)
        yield self._counter(
            "request_cancelled", "Choices dropped because the client left.", counters.aborted
        )
        yield self._counter("engine_steps", "Decode steps.", counters.steps)
        yield self._gauge(
            "num_loras_loaded", "Adapters served.", len(self._engine.adapters.loaded())
        )

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=["model_name"])
        family.add_metric([self._engine.settings.served_model_name], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=["model_name"])
        family.add_metric([self._engine.settings.served_model_name], value)
        return family
