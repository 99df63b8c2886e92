"""The table of docs/metrics.md, from the source: importing the engine would load torch."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from infra.docs.markdown import table
from infra.docs.settings import ROOT

KINDS = {"Counter": "counter", "Gauge": "gauge", "Histogram": "histogram", "Summary": "summary"}


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. `path` is relative to the repository."""

    name: str
    kind: str
    text: str
    labels: tuple[str, ...]
    path: str

    @property
    def series(self) -> tuple[str, ...]:
        # Prometheus keeps three series of a histogram.
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)


def metrics() -> list[Metric]:
    found: list[Metric] = []
    for folder in ("libs", "services"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found += _metrics_of(tree, str(path.relative_to(ROOT)))
    return sorted(found, key=lambda metric: metric.name)


def _metrics_of(tree: ast.AST, path: str) -> Iterator[Metric]:
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not call.args or not _is_text(call.args[0]):
            continue
        words = [ast.literal_eval(arg) for arg in call.args[:2] if _is_text(arg)]
        if isinstance(call.func, ast.Name) and call.func.id in KINDS and len(words) == 2:
            labels = ast.literal_eval(call.args[2]) if len(call.args) > 2 else ()
            yield Metric(words[0], KINDS[call.func.id], words[1], tuple(labels), path)
        elif (
            isinstance(call.func, ast.Attribute)
            and call.func.attr in ("_gauge", "_counter")
            and len(words) == 2
        ):
            # The engine's collector, which speaks under vLLM's names.
            kind = call.func.attr.removeprefix("_")
            name = f"vllm:{words[0]}" + ("_total" if kind == "counter" else "")
            yield Metric(name, kind, words[1], ("model_name",), path)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def section() -> str:
    rows = [(f"`{m.name}`", m.kind, ", ".join(m.labels), m.text.rstrip(".")) for m in metrics()]
    return table(("metric", "kind", "labels", "what it says"), rows)
