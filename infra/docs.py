"""The generated parts of docs/operations.md and docs/serve-yaml.md: every setting, metric, section and knob, read from the code.

python -m infra.docs            says whether the pages are current
python -m infra.docs --write    makes them so
"""

import ast
import importlib
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from infra import serve_yaml
from infra.jobs import setup
from reefcommon.settings import SystemSettings
from reefstack import settings as stack

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "operations.md"
KINDS = {"Counter": "counter", "Gauge": "gauge", "Histogram": "histogram", "Summary": "summary"}


# ------------------------------------------------------------------ settings


def settings_classes() -> dict[str, type[BaseSettings]]:
    """Every settings class, by whose it is: `all services` first, then one a service, then the setup job and `reef serve`."""
    found: dict[str, type[BaseSettings]] = {"all services": SystemSettings}
    for path in sorted((ROOT / "services").glob("*/settings.py")):
        module = importlib.import_module(f"services.{path.parent.name}.settings")
        found[path.parent.name] = module.Settings
    return {**found, "setup": setup.Settings, "reef serve": stack.Settings}


def variables(settings: type[BaseSettings]) -> dict[str, FieldInfo]:
    """Environment variable -> field."""
    prefix = str(settings.model_config.get("env_prefix", ""))
    return {prefix + name.upper(): field for name, field in settings.model_fields.items()}


def settings_table(settings: type[BaseSettings]) -> str:
    """A Markdown table of one class."""
    texts = _attribute_texts(settings)
    rows = ["| variable | default | what it says |", "|---|---|---|"]
    for (variable, field), name in zip(
        variables(settings).items(), settings.model_fields, strict=True
    ):
        text = field.description or texts.get(name, "")
        rows.append(f"| `{variable}` | {_default(field)} | {text.replace('|', '/')} |")
    return "\n".join(rows)


def settings_section() -> str:
    """All tables, each under a heading."""
    return "\n\n".join(
        f"#### {owner}\n\n{settings_table(found)}" for owner, found in settings_classes().items()
    )


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "required"
    return "" if value in (None, "") else f"`{value}`"


def _attribute_texts(settings: type[BaseSettings]) -> dict[str, str]:
    """The string below a field, first sentence, where a class documents its fields that way."""
    source = Path(str(sys.modules[settings.__module__].__file__)).read_text(encoding="utf-8")
    body = next(
        node.body
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef) and node.name == settings.__name__
    )
    found = {}
    for field, below in itertools.pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
        ):
            text = ast.literal_eval(below.value)
            found[field.target.id] = re.sub(r"\s+", " ", str(text))
    return found


# ------------------------------------------------------------------ metrics


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric as its definition says it. `where`: path of the file, relative to the repository."""

    name: str
    kind: str
    text: str
    labels: tuple[str, ...]
    where: str

    @property
    def series(self) -> tuple[str, ...]:
        """The names under which Prometheus keeps it."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)


def metrics() -> list[Metric]:
    """Every metric that the libraries and services define, by name. Read from the source: importing the engine would load torch."""
    found: list[Metric] = []
    for folder in ("libs", "services"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            found += _metrics_of(
                ast.parse(path.read_text(encoding="utf-8")), str(path.relative_to(ROOT))
            )
    return sorted(found, key=lambda metric: metric.name)


def _metrics_of(tree: ast.AST, where: str) -> Iterator[Metric]:
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not call.args or not _is_text(call.args[0]):
            continue
        words = [ast.literal_eval(arg) for arg in call.args[:2] if _is_text(arg)]
        if isinstance(call.func, ast.Name) and call.func.id in KINDS and len(words) == 2:
            labels = ast.literal_eval(call.args[2]) if len(call.args) > 2 else ()
            yield Metric(words[0], KINDS[call.func.id], words[1], tuple(labels), where)
        elif (
            isinstance(call.func, ast.Attribute)
            and call.func.attr in ("_gauge", "_counter")
            and len(words) == 2
        ):
            # The engine's collector, which speaks under vLLM's names.
            kind = call.func.attr.removeprefix("_")
            yield Metric(
                f"vllm:{words[0]}" + ("_total" if kind == "counter" else ""),
                kind,
                words[1],
                ("model_name",),
                where,
            )


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def metrics_section() -> str:
    """A Markdown table of all metrics."""
    rows = ["| metric | kind | labels | what it says |", "|---|---|---|---|"]
    rows += [
        f"| `{m.name}` | {m.kind} | {', '.join(m.labels)} | {m.text.rstrip('.')} |"
        for m in metrics()
    ]
    return "\n".join(rows)


# ------------------------------------------------------------------ the pages

SECTIONS: Mapping[str, Callable[[], str]] = {
    "settings": settings_section,
    "metrics": metrics_section,
}
PAGES: Mapping[Path, Mapping[str, Callable[[], str]]] = {
    PAGE: SECTIONS,
    serve_yaml.PAGE: serve_yaml.SECTIONS,
}


def current(page: str, sections: Mapping[str, Callable[[], str]] = SECTIONS) -> str:
    """The page with its generated parts as the code has them now. Raises ValueError where it lacks one of them."""
    for name, section in sections.items():
        start, end = f"<!-- generated: {name} -->\n", f"\n<!-- end: {name} -->"
        before, found, rest = page.partition(start)
        _, ended, after = rest.partition(end)
        if not found or not ended:
            raise ValueError(
                f"the page has no section between `{start.strip()}` and `{end.strip()}`"
            )
        page = f"{before}{start}{section()}{end}{after}"
    return page


def main() -> int:
    """Exit status 1 where a page is not current and was not to be written."""
    stale = 0
    for path, sections in PAGES.items():
        before = path.read_text(encoding="utf-8")
        after = current(before, sections)
        if "--write" in sys.argv:
            path.write_text(after, encoding="utf-8")
        else:
            stale |= int(before != after)
    return stale


if __name__ == "__main__":
    sys.exit(main())
