"""A span for each exchange, with OpenTelemetry's GenAI names, if spans leave the process."""

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

    def start(self, x: Exchange) -> Span:
        """Continue the caller's trace.

        The exchange carries the new span as its parent from here on.
        """
        operation = _OPERATIONS[x.api]
        parent = _W3C.extract({"traceparent": x.traceparent}) if x.traceparent else None
        span = self._tracer.start_span(
            f"{operation} {x.asked.model or x.model}",
            context=parent,
            kind=SpanKind.SERVER,
            attributes={
                "reef.service": "gateway",
                "reef.scenario": x.scenario,
                "reef.record_id": x.record_id,
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "reef",
                "gen_ai.request.model": x.asked.model or x.model,
            },
        )
        context = span.get_span_context()
        x.traceparent = (
            f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 1:02x}"
        )
        return span

    def end(self, span: Span, x: Exchange, end: Ending | None) -> None:
        """End the span with the outcome. It holds no text of messages."""
        if x.session_tag is not None:
            span.set_attribute("gen_ai.conversation.id", x.session_tag)
        if x.release is not None:
            span.set_attribute("reef.release_id", x.release.release_id)
        if end is not None:
            span.set_attributes(
                {
                    "gen_ai.response.model": x.model,
                    "reef.outcome": end.outcome,
                    "http.response.status_code": end.status,
                }
            )
            if end.captured is not None:
                reasons = [
                    row["finish_reason"] for row in end.captured.completions if row["finish_reason"]
                ]
                span.set_attribute("gen_ai.response.finish_reasons", reasons)
                if end.captured.usage is not None:
                    span.set_attribute(
                        "gen_ai.usage.input_tokens", end.captured.usage["prompt_tokens"]
                    )
                    span.set_attribute(
                        "gen_ai.usage.output_tokens", end.captured.usage["completion_tokens"]
                    )
        if end is None or end.outcome != "ok":
            span.set_status(
                Status(StatusCode.ERROR, (end.error or end.outcome)[:200] if end else "refused")
            )
        span.end()
