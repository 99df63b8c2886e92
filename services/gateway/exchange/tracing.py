"""A span for each exchange, with OpenTelemetry's GenAI names, if spans leave the process."""

from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from services.gateway.domain.exchange import Exchange
from services.gateway.domain.record import Ending

_W3C = TraceContextTextMapPropagator()
_OPERATIONS = {
    "chat.completions": "chat",
    "completions": "text_completion",
    "embeddings": "embeddings",
}


class Spans:
    """Starts and ends the spans of exchanges."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("services.gateway")

    def start(self, exchange: Exchange) -> Span:
        """Continue the caller's trace.

        The exchange carries the new span as its parent from here on.
        """
        operation = _OPERATIONS[exchange.api]
        trace, model = exchange.traceparent, exchange.asked.model or exchange.model
        parent = _W3C.extract({"traceparent": trace}) if trace else None
        span = self._tracer.start_span(
            f"{operation} {model}",
            context=parent,
            kind=SpanKind.SERVER,
            attributes={
                "reef.service": "gateway",
                "reef.scenario": exchange.scenario,
                "reef.record_id": exchange.record_id,
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "reef",
                "gen_ai.request.model": model,
            },
        )
        context = span.get_span_context()
        ids = f"{context.trace_id:032x}-{context.span_id:016x}"
        exchange.traceparent = f"00-{ids}-{context.trace_flags & 1:02x}"
        return span

    def end(self, span: Span, exchange: Exchange, end: Ending | None) -> None:
        """End the span with the outcome. It holds no text of messages."""
        found: dict[str, Any] = {
            "gen_ai.conversation.id": exchange.session_tag,
            "reef.release_id": exchange.release.release_id if exchange.release else None,
        }
        if end is not None:
            found["gen_ai.response.model"] = exchange.model
            found["reef.outcome"] = end.outcome
            found["http.response.status_code"] = end.status
        if end is not None and end.captured is not None:
            reasons = [row["finish_reason"] for row in end.captured.completions]
            usage = end.captured.usage or {}
            found["gen_ai.response.finish_reasons"] = [reason for reason in reasons if reason]
            found["gen_ai.usage.input_tokens"] = usage.get("prompt_tokens")
            found["gen_ai.usage.output_tokens"] = usage.get("completion_tokens")
        span.set_attributes({name: value for name, value in found.items() if value is not None})
        if end is None or end.outcome != "ok":
            words = (end.error or end.outcome)[:200] if end else "refused"
            span.set_status(Status(StatusCode.ERROR, words))
        span.end()
