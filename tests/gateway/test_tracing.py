"""Where traces leave the process an exchange has one span, which its record and its upstream call continue."""

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from services.gateway.exchange.tracing import Spans

from .conftest import Bench


async def test_one_trace_from_the_caller_to_the_record(bench: Bench) -> None:
    """The caller's trace goes on; the span has the GenAI names and no message text; a failure is marked."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    bench.gateway.edge.inference.spans = Spans(provider)
    trace = "c" * 32
    await bench.chat(
        headers={"traceparent": f"00-{trace}-{'d' * 16}-01", "x-reef-tag-session": "s"}
    )
    await bench.chat("limited")
    good, failed = exporter.get_finished_spans()
    assert good.context is not None
    assert f"{good.context.trace_id:032x}" == trace
    assert good.attributes is not None
    assert good.attributes["gen_ai.operation.name"] == "chat"
    assert good.attributes["gen_ai.usage.output_tokens"] == 3
    assert good.attributes["gen_ai.conversation.id"] == "s"
    assert "Be brief" not in str(good.attributes)
    assert failed.status.status_code is StatusCode.ERROR
    here = f"00-{trace}-{good.context.span_id:016x}-01"
    assert bench.log.records[0].traceparent == here
    assert bench.engine.headers[0]["traceparent"] == here
    provider.shutdown()
