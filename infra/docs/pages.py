"""The pages with generated parts."""

from collections.abc import Callable, Mapping
from pathlib import Path

from infra.docs import events, metrics, serve_yaml, settings

_DOCS = settings.ROOT / "docs"
# A page has its own words around the generated parts.
PAGES: Mapping[Path, Mapping[str, Callable[[], str]]] = {
    _DOCS / "settings.md": {"settings": settings.section},
    _DOCS / "metrics.md": {"metrics": metrics.section},
    _DOCS / "serve-yaml.md": serve_yaml.SECTIONS,
    _DOCS / "events.md": {"topics": events.topics_table, "events": events.events_section},
}


def current(path: Path) -> str:
    """Return the page with current generated parts.

    Raises:
        ValueError: the page lacks a part.
    """
    return replaced(path.read_text(encoding="utf-8"), PAGES[path])


def replaced(page: str, sections: Mapping[str, Callable[[], str]]) -> str:
    """Return the text with the part between each section's marks replaced."""
    for name, section in sections.items():
        start, end = f"<!-- generated: {name} -->\n", f"\n<!-- end: {name} -->"
        before, found, rest = page.partition(start)
        _, ended, after = rest.partition(end)
        if not found or not ended:
            marks = f"`{start.strip()}` and `{end.strip()}`"
            raise ValueError(f"the page has no section between {marks}")
        page = f"{before}{start}{section()}{end}{after}"
    return page
