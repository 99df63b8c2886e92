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
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=kind), args=[name, text, *labels]) if kind in KINDS:
                names = tuple(ast.literal_eval(labels[0])) if labels else ()
                yield Metric(
                    ast.literal_eval(name), KINDS[kind], ast.literal_eval(text), names, path
                )
            case ast.Tuple(elts=[ast.Name(id=("gauge" | "counter") as kind), name, text, _]):
                # The engine's collector, which speaks under vLLM's names.
                series = f"vllm:{ast.literal_eval(name)}" + "_total" * (kind == "counter")
                yield Metric(series, kind, ast.literal_eval(text), ("model_name",), path)


def section() -> str:
    rows = [(f"`{m.name}`", m.kind, ", ".join(m.labels), m.text.rstrip(".")) for m in metrics()]
    return table(("metric", "kind", "labels", "what it says"), rows)
