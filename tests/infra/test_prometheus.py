"""Scraping and alerts: every target is a service of the compose file at its own port, every alert is about a metric that exists."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from infra.docs.metrics import metrics

ROOT = Path(__file__).parents[2]
HOME = ROOT / "infra" / "prometheus"
CONFIG = yaml.safe_load((HOME / "prometheus.yml").read_text())
RULES = [
    rule
    for group in yaml.safe_load((HOME / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
SERIES = {series: metric for metric in metrics() for series in metric.series}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)


def targets() -> dict[str, str]:
    return {
        row["labels"]["part"]: target
        for job in CONFIG["scrape_configs"]
        for row in job["static_configs"]
        for target in row["targets"]
    }


def test_every_service_of_ours_is_scraped_where_it_listens():
    env = SERVICES["gateway"]["environment"]
    urls = {
        key[5:-4].lower(): value
        for key, value in env.items()
        if re.fullmatch(r"REEF_[A-Z]+_URL", key)
    }
    own = {
        name: urls[name].removeprefix("http://")
        for name in urls
        if name in SERVICES and name not in ("redis", "clickhouse")
    }
    assert own.keys() == {"gateway", "experience", "trainer", "harness", "evaluator", "publisher"}
    assert {part: target for part, target in targets().items() if part in own} == own
    assert f"http://{targets()['engine']}" == env["REEF_ENGINE_URLS"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_is_about_a_metric_that_exists_and_says_what_to_do(rule):
    named = set(re.findall(r"\breef_\w+", rule["expr"]))
    assert named <= SERIES.keys()
    assert named or "up" in rule["expr"]
    labels = {label for series in named for label in SERIES[series].labels} | {"part", "instance"}
    assert set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) <= labels
    assert rule["annotations"].keys() == {"summary", "action"}
    assert rule["labels"]["severity"] in ("page", "ticket")


def test_every_alert_is_tried_in_the_rule_tests():
    tried = set(re.findall(r"alertname: (\w+)", (HOME / "alerts.test.yml").read_text()))
    assert tried == {rule["alert"] for rule in RULES}


@needs_promtool
def test_the_alerts_fire_when_they_should_and_not_otherwise():
    found = subprocess.run(
        ["promtool", "test", "rules", "alerts.test.yml"],
        cwd=HOME,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr


@needs_promtool
def test_prometheus_accepts_its_configuration():
    found = subprocess.run(
        ["promtool", "check", "config", "--syntax-only", "prometheus.yml"],
        cwd=HOME,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
