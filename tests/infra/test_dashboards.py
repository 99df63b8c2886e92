"""Dashboards: valid, laid out without overlap, on datasources that are provisioned, and about metrics and columns that exist."""

import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from infra.docs.metrics import metrics

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "infra" / "grafana"
BOARDS = {
    path.name: json.loads(path.read_text())
    for path in sorted((GRAFANA / "dashboards").glob("*.json"))
}
SOURCES = {
    row["uid"]: row
    for row in yaml.safe_load((GRAFANA / "provisioning/datasources/reef.yaml").read_text())[
        "datasources"
    ]
}
METRICS = {series: metric for metric in metrics() for series in metric.series}
# Labels that Prometheus adds to what it scrapes, and `le` of every histogram.
TARGET_LABELS = {"job", "part", "instance", "le"}
PANELS = [(name, panel) for name, board in BOARDS.items() for panel in board["panels"]]
PROMQL = [
    (name, panel["title"], t)
    for name, panel in PANELS
    for t in panel.get("targets", [])
    if "expr" in t
]
SQL = [
    (name, panel["title"], t["rawSql"])
    for name, panel in PANELS
    for t in panel.get("targets", [])
    if "rawSql" in t
]


def metrics_in(expression: str) -> set[str]:
    """The series that a PromQL expression names."""
    return set(re.findall(r"\b(?:reef_|vllm:)\w+|\bup\b", expression))


def plain(expression: str) -> str:
    """PromQL as Prometheus reads it: Grafana's own variables filled in."""
    return expression.replace("$__rate_interval", "1m")


def filled(sql: str) -> str:
    """ClickHouse SQL with the macros of Grafana's plugin filled in."""
    sql = re.sub(r"\$__timeFilter\((\w+)\)", r"\1 >= now() - INTERVAL 1 HOUR AND \1 <= now()", sql)
    sql = re.sub(r"\$__timeInterval\(([\w.]+)\)", r"toStartOfInterval(\1, INTERVAL 30 SECOND)", sql)
    return sql.replace("${scenario:singlequote}", "'default','other'")


def test_there_is_one_for_the_loop_one_for_the_gateway_and_one_for_the_bus():
    assert {board["uid"] for board in BOARDS.values()} == {"reef-loop", "reef-gateway", "reef-bus"}


@pytest.mark.parametrize("name", BOARDS)
def test_panels_are_told_apart_and_do_not_overlap(name):
    panels = BOARDS[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    titles = [panel["title"] for panel in panels if panel["type"] != "row"]
    assert len(set(titles)) == len(titles)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


@pytest.mark.parametrize(
    ("name", "panel"), PANELS, ids=lambda value: value if isinstance(value, str) else value["title"]
)
def test_a_panel_says_what_it_shows_and_asks_a_provisioned_datasource(name, panel):
    if panel["type"] == "row":
        return
    assert panel["description"]
    assert panel["targets"]
    for asked in (panel, *panel["targets"]):
        source = SOURCES[asked["datasource"]["uid"]]
        assert source["type"] == asked["datasource"]["type"]


@pytest.mark.parametrize(
    ("name", "title", "target"), PROMQL, ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_metric_and_label_of_a_panel_is_defined_in_the_code(name, title, target):
    expression = target["expr"]
    named = metrics_in(expression)
    assert named
    assert named - {"up"} <= METRICS.keys(), (
        f"no such metric in libs/ or services/: {sorted(named - {'up'} - METRICS.keys())}"
    )
    known = TARGET_LABELS | {label for series in named - {"up"} for label in METRICS[series].labels}
    grouped = {
        label.strip()
        for group in re.findall(r"\bby \(([^)]*)\)", expression)
        for label in group.split(",")
    }
    selected = set(re.findall(r"[{,]\s*(\w+)\s*(?:=~|!=|=)", expression))
    shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
    assert grouped | selected | shown <= known
    assert shown <= grouped, "a label that is aggregated away cannot be shown"


def test_every_metric_of_ours_is_on_a_dashboard():
    """A metric that nobody looks at is not worth its cost; one that is shown nowhere was forgotten."""
    shown = {series for _, _, target in PROMQL for series in metrics_in(target["expr"])}
    forgotten = {
        m.name for m in metrics() if m.name.startswith("reef_") and not shown & set(m.series)
    }
    assert forgotten == set(), "give it a panel in infra/grafana/dashboards"


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)
def test_prometheus_understands_every_expression(tmp_path):
    rules = [
        {"record": f"panel:{number}", "expr": plain(target["expr"])}
        for number, (_, _, target) in enumerate(PROMQL)
    ]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    found = subprocess.run(
        ["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_variables_of_a_dashboard_are_those_that_its_queries_use():
    for name, board in BOARDS.items():
        used = set(re.findall(r"\${(\w+)(?::\w+)?}", json.dumps(board["panels"])))
        assert used == {variable["name"] for variable in board["templating"]["list"]}, name


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """chDB with the tables of the experience service, and one story in them, from a record to what came of it."""
    from clickhouse_connect import get_client

    client = get_client(interface="chdb", path=str(tmp_path_factory.mktemp("dashboards")))
    for path in sorted((ROOT / "services/experience/migrations").glob("*.sql")):
        for statement in re.sub(r"--[^\n]*", "", path.read_text()).split(";"):
            if statement.strip():
                client.command(statement)
    for row in (
        "INSERT INTO records (record_id, scenario, at) VALUES ('s1', 'default', now())",
        "INSERT INTO refusals (refusal_id, scenario, at, sample_id, reason, lag) VALUES ('x1', 'default', now(), 's3', 'stale', 20)",
        "INSERT INTO servings (event_id, scenario, at, release_id, node, duration_ms) VALUES ('v1', 'default', now(), 'r7', 'http://e', 12)",
        "INSERT INTO samples (sample_id, scenario, at, recorded_at, load_id, score) VALUES ('s1', 'default', now(), now(), 'i:3', 0.5)",
        "INSERT INTO samples (sample_id, scenario, at, recorded_at, load_id, score) VALUES ('s2', 'default', now(), now(), 'other:9', 0.5)",
        "INSERT INTO releases (event_id, scenario, at, state, release_id, sequence, load_id)"
        " VALUES ('r7', 'default', now(), 'published', 'r7', 7, 'i:7')",
        "INSERT INTO steps (job_id, scenario, at, recipe, step, base_release_id, sample_ids, metrics, duration_s)"
        " VALUES ('j1', 'default', now(), 'sao', 1, 'r7', ['s1', 's2'], '{\"loss\": 0.25, \"reward\": 1}', 2.5)",
    ):
        client.command(row)
    yield client
    client.close()


@pytest.mark.store
@pytest.mark.parametrize(("name", "title", "sql"), SQL)
def test_every_query_runs_on_the_tables_as_they_are(store, name, title, sql):
    assert store.query(filled(sql)).result_rows


@pytest.mark.store
def test_staleness_is_the_difference_of_loads_within_one_incarnation(store):
    """A sample of load 3, a step that started from load 7: four loads. A sample of another incarnation has no such difference."""
    sql = next(sql for _, title, sql in SQL if title == "Staleness of what was trained on")
    (row,) = store.query(filled(sql)).result_rows
    assert row[1:] == (4, 4.0)


@pytest.mark.store
def test_a_step_shows_every_figure_that_its_recipe_reports(store):
    sql = next(sql for _, title, sql in SQL if title == "What the steps report")
    assert {(metric, value) for _, metric, value in store.query(filled(sql)).result_rows} == {
        ("sao loss", 0.25),
        ("sao reward", 1.0),
    }
