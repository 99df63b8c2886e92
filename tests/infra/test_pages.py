"""The pages for operators are what the code says: settings, metrics, volumes, dashboards."""

import json
import re
from pathlib import Path

import pytest
import yaml

from infra.docs import metrics, pages, settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TEXTS = {path.stem: path.read_text() for path in DOCS.glob("*.md")}
OPERATION = "\n".join(TEXTS[name] for name in ("deploy", "keep", "recover", "settings", "metrics"))
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
TITLES = {
    panel["title"]
    for path in (ROOT / "infra/grafana/dashboards").glob("*.json")
    for panel in json.loads(path.read_text())["panels"]
}


@pytest.mark.parametrize("path", pages.PAGES, ids=lambda path: path.stem)
def test_the_generated_parts_are_current(path):
    assert pages.current(path) == path.read_text(), (
        "run: PYTHONPATH=libs:. .venv/bin/python -m infra.docs --write"
    )


@pytest.mark.parametrize("owner", settings.settings_classes())
def test_every_setting_is_documented(owner):
    for variable in settings.variables(settings.settings_classes()[owner]):
        assert f"| `{variable}` |" in TEXTS["settings"]


def test_a_page_that_is_out_of_date_is_told_and_mended():
    page, sections = TEXTS["settings"], pages.PAGES[DOCS / "settings.md"]
    old = page.replace("\n| `REEF_REDIS_URL` |", "\n| `REEF_GONE` |")
    assert old != page
    assert pages.replaced(old, sections) == page
    with pytest.raises(ValueError, match="no section between"):
        pages.replaced("a page without marks", sections)


def test_defaults_and_texts_come_from_the_fields():
    table = settings.settings_table(settings.settings_classes()["engine"])
    assert "| `REEF_ENGINE_MODEL_PATH` | required | A Hugging Face model directory" in table
    assert (
        "| `REEF_ENGINE_MAX_NUM_SEQS` | `32` | Choices that are generated at the same time. |"
        in table
    )


def test_metrics_are_found_as_prometheus_will_name_them():
    found = {metric.name: metric for metric in metrics.metrics()}
    assert found["reef_events_total"].labels == ("service", "topic", "outcome")
    assert found["reef_gateway_ack_seconds"].series == tuple(
        f"reef_gateway_ack_seconds_{part}" for part in ("bucket", "sum", "count")
    )
    assert found["vllm:generation_tokens_total"].kind == "counter"


def test_every_reef_variable_that_the_page_names_exists():
    known = {
        variable
        for found in settings.settings_classes().values()
        for variable in settings.variables(found)
    }
    assert set(re.findall(r"\bREEF_[A-Z_]+[A-Z]\b", OPERATION)) - known == {
        "REEF_TOKEN"
    }  # the command line's own


def test_every_volume_has_its_line_under_backups():
    table = TEXTS["keep"].split("## Backups")[1].split("##")[0]
    named = {
        name
        for row in re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert named == COMPOSE["volumes"].keys()


def test_every_container_and_port_is_in_the_table():
    table = TEXTS["deploy"].split("## The production shape")[1].split("One `infra/Dockerfile`")[0]
    rows = re.findall(r"^\| (`[^|]+)\|.*\| ([\d, ]*)\|$", table, re.MULTILINE)
    assert {name for row, _ in rows for name in re.findall(r"`([\w-]+)`", row)} - {
        "cpu",
        "gpu",
    } == COMPOSE["services"].keys()
    published = {
        port.rsplit(":-")[1].split("}")[0]
        for service in COMPOSE["services"].values()
        for port in service.get("ports", [])
    }
    assert {port for _, ports in rows for port in re.findall(r"\d+", ports)} == published


def test_panels_that_the_page_sends_a_reader_to_exist():
    advice = TEXTS["recover"].split("## When something is wrong")[1].split("\n## ")[0]
    named = set(re.findall(r"(?<!\*)\*([A-Z][\w ]+)\*(?!\*)", advice))
    assert len(named) >= 8
    assert named <= TITLES
