"""docs/operations.md is what the code says: settings, metrics, volumes, variables, dashboards."""

import json
import re
from pathlib import Path

import pytest
import yaml

from infra import docs

ROOT = Path(__file__).parents[2]
PAGE = docs.PAGE.read_text()
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
TITLES = {
    panel["title"]
    for path in (ROOT / "infra/grafana/dashboards").glob("*.json")
    for panel in json.loads(path.read_text())["panels"]
}


def test_the_generated_parts_are_current():
    assert docs.current(PAGE) == PAGE, (
        "run: PYTHONPATH=libs:. .venv/bin/python -m infra.docs --write"
    )


@pytest.mark.parametrize("owner", docs.settings_classes())
def test_every_setting_is_documented(owner):
    for variable in docs.variables(docs.settings_classes()[owner]):
        assert f"| `{variable}` |" in PAGE


def test_a_page_that_is_out_of_date_is_told_and_mended():
    old = PAGE.replace("\n| `REEF_REDIS_URL` |", "\n| `REEF_GONE` |")
    assert old != PAGE
    assert docs.current(old) == PAGE
    with pytest.raises(ValueError, match="no section between"):
        docs.current("a page without marks")


def test_defaults_and_texts_come_from_the_fields():
    table = docs.settings_table(docs.settings_classes()["engine"])
    assert "| `REEF_ENGINE_MODEL_PATH` | required | A Hugging Face model directory" in table
    assert (
        "| `REEF_ENGINE_MAX_NUM_SEQS` | `32` | Choices that are generated at the same time. |"
        in table
    )


def test_metrics_are_found_as_prometheus_will_name_them():
    found = {metric.name: metric for metric in docs.metrics()}
    assert found["reef_events_total"].labels == ("service", "topic", "outcome")
    assert found["reef_gateway_ack_seconds"].series == tuple(
        f"reef_gateway_ack_seconds_{part}" for part in ("bucket", "sum", "count")
    )
    assert found["vllm:generation_tokens_total"].kind == "counter"


def test_every_reef_variable_that_the_page_names_exists():
    known = {
        variable
        for settings in docs.settings_classes().values()
        for variable in docs.variables(settings)
    }
    assert set(re.findall(r"\bREEF_[A-Z_]+[A-Z]\b", PAGE)) - known == {
        "REEF_TOKEN"
    }  # the command line's own


def test_every_volume_has_its_line_under_backups():
    table = PAGE.split("## Backups")[1].split("##")[0]
    named = {
        name
        for row in re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert named == COMPOSE["volumes"].keys()


def test_every_container_and_port_is_in_the_table():
    table = PAGE.split("## The production shape")[1].split("One `infra/Dockerfile`")[0]
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
    advice = PAGE.split("## When something is wrong")[1].split("## Metrics")[0]
    named = set(re.findall(r"(?<!\*)\*([A-Z][\w ]+)\*(?!\*)", advice))
    assert len(named) >= 8
    assert named <= TITLES
