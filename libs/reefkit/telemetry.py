"""Logs, traces and metrics, set up once for each process.

Logs go to stderr with the trace id; traces to an OTLP endpoint, if it is set.
"""

import logging
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, TextIO, cast

import structlog
from opentelemetry import propagate, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import format_trace_id

METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


# `sys.stderr` is looked up at each write: a test runner may replace it.
class _Stderr:
    def write(self, text: str) -> int:
        # An error that is raised here would end the work that logs.
        with suppress(OSError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()


def set_up(service: str, *, otlp_endpoint: str = "", level: str = "INFO") -> TracerProvider:
    logging.basicConfig(
        stream=_Stderr(),
        level=level,
        format=f"%(levelname)s {service} %(name)s %(message)s",
        force=True,
    )
    for noisy in ("aiokafka", "httpx", "uvicorn.access", "faststream"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            _add_trace_id,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer()
            if not sys.stderr.isatty()
            else structlog.dev.ConsoleRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level)),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Stderr())),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service)
    provider = TracerProvider(
        resource=Resource.create({"service.name": f"reef-{service}", "service.namespace": "reef"})
    )
    if otlp_endpoint:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        provider.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{otlp_endpoint.rstrip('/')}/v1/traces"))
        )
    trace.set_tracer_provider(provider)
    return provider


def current_traceparent() -> str:
    """Return the W3C `traceparent` of the current span, or ""."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier.get("traceparent", "")


def _add_trace_id(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = format_trace_id(context.trace_id)
    return event
