"""The plan as data: who is started, in what order, with which environment, on which ports."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from reefcommon import topics
from reefcommon.config import ServeConfig, parse
from reefcommon.errors import BadConfig
from reefcommon.settings import SystemSettings
from reefstack import object_store, plan, tansu
from reefstack.disk import check_disk
from reefstack.effective_config import override, to_yaml
from reefstack.embedded import Options, _site
from reefstack.errors import CannotStart
from reefstack.ports import DEFAULTS, choose, moved
from reefstack.spec import HttpReady, KafkaAnswers, ProcessSpec, S3Writable, Site
from reefstack.state import Secrets

BASE = "reef:\n  recipe: recipes.sao.recipe:SAORecipe\n  batch_size: 1\n  max_staleness: 18\n"
SITE = Site(
    state_dir=Path("/state"),
    ports=DEFAULTS,
    binaries={"tansu": "/bin/tansu", "seaweedfs": "/bin/weed", "valkey": "/bin/valkey"},
    secrets=Secrets(stack_id="s", s3_access_key="AK", s3_secret_key="SK"),
    config_path=Path("/state/serve.yaml"),
    model_path=Path("/models/tiny"),
)


def programs(config: ServeConfig, site: Site = SITE) -> dict[str, ProcessSpec]:
    wanted = plan.roles(config)
    return {
        spec.name: spec
        for spec in (*plan.infrastructure(wanted, site), *plan.applications(wanted, config, site))
    }


def test_the_whole_stack_in_order() -> None:
    specs = programs(parse(BASE))
    order = [
        "objectstore",
        "tansu",
        "valkey",
        "engine",
        "publisher",
        "experience",
        "evaluator",
        "trainer",
        "harness",
        "gateway",
    ]
    assert list(specs) == order
    for spec in specs.values():
        earlier = {*order[: order.index(spec.name)], "topics"}
        assert set(spec.depends_on) <= earlier, spec.name
    assert {"publisher", "experience"} <= set(specs["gateway"].ends_before), (
        "nothing comes in while the others end"
    )
    for name in ("gateway", "publisher", "evaluator", "trainer", "harness"):
        assert "engine" in specs[name].ends_before, "who asks the serving node ends before it"
        # it loads weights into the program that answers there: that must be ours
        assert ("engine" in specs[name].depends_on) == (name == "publisher")
    behind = {name for name, spec in specs.items() if spec.niceness > 0}
    assert behind == {"publisher", "experience", "evaluator", "trainer", "harness"}, "users first"
    assert specs["gateway"].probe == HttpReady("http://127.0.0.1:8900/readyz")
    assert specs["tansu"].probe == KafkaAnswers("127.0.0.1:8902")
    assert isinstance(specs["objectstore"].probe, S3Writable)
    assert specs["engine"].env["REEF_ENGINE_MODEL_PATH"] == "/models/tiny"


def test_no_two_programs_share_a_port_and_the_grpc_ports_are_counted() -> None:
    site = replace(SITE, store="seaweedfs")
    ports = [port for spec in programs(parse(BASE), site).values() for port in spec.ports]
    assert len(ports) == len(set(ports))
    assert {8904, 18904, 8907, 18907} <= set(ports)


def test_every_variable_is_a_field_of_the_system_settings_and_reads_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = plan.environment(parse(BASE), SITE)
    fields = {f"REEF_{name.upper()}" for name in SystemSettings.model_fields}
    assert {name for name in env if name.startswith("REEF_")} <= fields
    assert env["OMP_NUM_THREADS"] == "1"
    assert env["HF_HUB_OFFLINE"] == "1"
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    settings = SystemSettings.load()
    assert settings.kafka_bootstrap == "127.0.0.1:8902"
    assert settings.engines == ("http://127.0.0.1:8901",)
    assert settings.publisher_url == "http://127.0.0.1:8915"
    assert settings.kafka_idempotence is False


def test_a_real_system_replaces_the_embedded_one() -> None:
    config = parse(
        BASE
        + "serving:\n  engines: ['http://gpu1:8000', 'http://gpu2:8000']\n"
        + "external:\n  kafka: broker:9092\n  redis: redis://cache:6379/0\n  clickhouse: http://ch:8123/reef\n"
    )
    specs = programs(config)
    assert list(specs) == ["publisher", "experience", "evaluator", "trainer", "harness", "gateway"]
    env = specs["trainer"].env
    assert env["REEF_KAFKA_BOOTSTRAP"] == "broker:9092"
    assert env["REEF_KAFKA_IDEMPOTENCE"] == "true"
    assert env["REEF_REDIS_URL"] == "redis://cache:6379/0"
    assert env["REEF_ENGINE_URLS"] == "http://gpu1:8000,http://gpu2:8000"
    assert env["REEF_CLICKHOUSE_URL"] == "http://ch:8123/reef"
    assert specs["publisher"].depends_on == ("topics",)  # its engine is elsewhere


def test_a_memory_broker_needs_no_object_store() -> None:
    wanted = plan.roles(parse(BASE), frozenset({"kafka"}))
    (tansu,) = plan.infrastructure(wanted, replace(SITE, store=None))
    assert "--storage-engine=memory://tansu/" in tansu.argv
    assert plan.listeners(wanted, None) == ("kafka",)


def test_secrets_show_neither_in_arguments_nor_in_a_printed_spec() -> None:
    specs = programs(parse(BASE))
    assert all("SK" not in word for spec in specs.values() for word in spec.argv)
    assert all("'SK'" not in repr(spec) and '"SK"' not in repr(spec) for spec in specs.values())


def test_ports_the_one_asked_for_then_the_last_one_then_the_usual_one_then_a_free_one() -> None:
    taken, count = {8901, 18904}, itertools.count(1)
    chosen = choose(
        ["gateway", "engine", "redis", "s3_master"],
        asked={"gateway": 9999},
        last={"redis": 7777},
        free=lambda port: port not in taken,
        draw=lambda low, _high: low + next(count),
    )
    assert chosen == {"gateway": 9999, "engine": 11_001, "redis": 7777, "s3_master": 11_002}


def test_a_taken_port_is_an_error_only_where_it_was_asked_for() -> None:
    with pytest.raises(CannotStart, match=r"port 9999, wanted for gateway, is taken"):
        choose(["gateway"], asked={"gateway": 9999}, last={}, free=lambda port: port != 9999)
    assert choose(["gateway"], asked={}, last={}, free=lambda port: port != 8900)["gateway"] != 8900


def test_a_gateway_that_had_to_move_says_who_has_its_port() -> None:
    taken = {"free": lambda port: port != 8900, "holder": lambda port: f"python (pid {port})"}
    assert moved({"gateway": 16879}, **taken) == "8900 is taken by python (pid 8900): using 16879"
    assert moved({"gateway": 16879}, free=lambda _port: True) == "", (
        "the port of the last run, by choice"
    )
    assert moved({"gateway": 8900}) == ""


def test_free_ports_are_drawn_throughout_where_the_environment_asks_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen() -> set[int]:
        options = Options(only=frozenset({"redis", "gateway"}))
        site = _site(parse(BASE), tmp_path, options, {"redis": 8903})
        return set(site.ports.values())

    monkeypatch.setenv("REEF_FREE_PORTS", "1")
    assert not chosen() & set(DEFAULTS.values())


def test_what_is_planned_is_what_is_started() -> None:
    for store in object_store.KINDS:
        planned = plan.programs(plan.roles(parse(BASE)), store)
        assert list(programs(parse(BASE), replace(SITE, store=store))) == list(planned)


def test_a_nearly_full_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=r"only 900 MB are free .* 1 GB is needed"):
        check_disk(tmp_path, free=lambda _path: 900 * 1024**2)


def test_the_command_line_changes_the_file_and_keeps_the_knobs() -> None:
    config = override(
        parse(BASE),
        {"gateway": {"port": 9001}, "external": {"kafka": None}, "model": {"name": "tiny"}},
    )
    again = parse(to_yaml(config))
    assert again == config
    assert again.gateway.port == 9001
    assert again.model.name == "tiny"
    assert again.reef[0].knobs == {"batch_size": 1, "max_staleness": 18}
    with pytest.raises(BadConfig, match=r"gateway\.port"):
        override(config, {"gateway": {"port": 0}})


def test_seldom_topics_have_one_partition_on_the_embedded_broker() -> None:
    made = {topic.name: topic.partitions for topic in tansu.TOPICS}
    assert made.keys() == {topic.name for topic in topics.ALL}
    one = {name for name, count in made.items() if count == 1}
    assert one == {f"reef.{n}.v1" for n in
                   ("signals", "proposals", "candidates", "evaluations", "releases", "commands")}  # fmt: skip
    assert all(made[t.name] == t.partitions for t in topics.ALL if t.name not in one)
