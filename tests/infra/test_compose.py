"""docker-compose.yml: bounded, checked, pinned, closed to the outside, and told only what somebody reads."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from infra.docs.settings import settings_classes, variables

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE = yaml.safe_load(TEXT)
SERVICES = COMPOSE["services"]
OURS = {path.parent.name for path in (ROOT / "services").glob("*/__init__.py")}
JOBS = {"setup", "model"}
# Images without a shell or an HTTP client: Prometheus watches them instead.
BARE = {"collector", "tempo"}
EXAMPLE = dict(re.findall(r"^([A-Z_]+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE))
each = pytest.mark.parametrize("name", SERVICES)


class Tagged(yaml.SafeLoader):
    """YAML with compose's own tags, which say how a value is merged."""


def _untagged(loader, _suffix, node):
    return {
        yaml.ScalarNode: lambda: loader.construct_scalar(node),
        yaml.SequenceNode: lambda: loader.construct_sequence(node, deep=True),
        yaml.MappingNode: lambda: loader.construct_mapping(node, deep=True),
    }[type(node)]()


Tagged.add_multi_constructor("!", _untagged)
OFFLINE = yaml.load((ROOT / "infra/compose.offline.yml").read_text(), Tagged)


def environment(service: dict) -> dict:
    return service.get("environment") or {}


def test_every_service_of_ours_and_every_system_is_there():
    systems = {
        "kafka",
        "redis",
        "clickhouse",
        "lakefs",
        "collector",
        "tempo",
        "prometheus",
        "grafana",
    }
    assert SERVICES.keys() == OURS | JOBS | systems | {"engine-gpu"}
    assert {
        "gateway",
        "experience",
        "trainer",
        "harness",
        "evaluator",
        "publisher",
        "engine",
    } <= OURS


@each
def test_a_service_tells_whether_it_is_healthy(name):
    check = SERVICES[name].get("healthcheck")
    if name in JOBS | BARE:
        # `up --wait` takes an absent check for "running", and never comes back from a disabled one.
        assert check is None
        return
    assert check["test"][0] in ("CMD", "CMD-SHELL")
    assert {"interval", "timeout", "retries", "start_period"} <= check.keys()


@each
def test_a_service_is_bounded_and_comes_back(name):
    service = SERVICES[name]
    assert service["restart"] == ("no" if name in JOBS else "unless-stopped")
    assert service["mem_limit"]
    assert service["logging"]["options"]["max-size"]
    assert service["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", sorted(OURS | JOBS))
def test_our_containers_can_do_little(name):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "privileged" not in service
    assert service["build"]["target"] == (
        "learn" if name in ("trainer", "engine", "model") else "service"
    )
    assert service["image"].startswith(f"reef/{service['build']['target']}:")


@each
def test_an_image_is_pinned_to_a_release(name):
    image = SERVICES[name]["image"]
    assert re.fullmatch(
        r"[\w/-]+:(v?\d+\.\d+\.\d+(\.\d+)?(-alpine)?|\${VERSION:-\d+\.\d+\.\d+})", image
    ), image


@each
def test_ports_are_published_on_loopback_only(name):
    for port in SERVICES[name].get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\${[A-Z]+_PORT:-\d+}:\d+", port)
    assert SERVICES[name].get("network_mode") is None


def test_what_serves_models_is_reached_by_us_alone():
    """Its admin routes load files and weights and ask for no token."""
    assert COMPOSE["networks"]["serving"] == {"internal": True}
    for name in ("engine", "engine-gpu"):
        assert list(SERVICES[name]["networks"]) == ["serving"]
        assert "ports" not in SERVICES[name]
    assert "engine" in SERVICES["engine-gpu"]["networks"]["serving"]["aliases"]
    assert {name for name in SERVICES if "serving" in SERVICES[name]["networks"]} == OURS | JOBS | {
        "engine-gpu",
        "prometheus",
    }


@each
def test_every_reef_variable_is_read_by_somebody(name):
    """An unknown variable with a service's own prefix ends the service; any other would be silently ignored."""
    classes = settings_classes()
    shared = set(variables(classes["all services"]))
    own = set(variables(classes[name])) if name in classes else set()
    for variable in environment(SERVICES[name]):
        if variable.startswith("REEF_"):
            assert variable in shared | own


@pytest.mark.parametrize("name", sorted(OURS - {"engine"}))
def test_the_settings_of_a_service_are_accepted_as_given(name):
    classes = settings_classes()
    known = {**variables(classes["all services"]), **variables(classes[name])}
    given = {
        key: value for key, value in environment(SERVICES[name]).items() if key.startswith("REEF_")
    }
    values = {key: re.sub(r"\${\w+:?[-?]?([^}]*)}", "x1", value) for key, value in given.items()}
    for owner in ("all services", name):
        settings = classes[owner]
        prefix = settings.model_config["env_prefix"]
        fields = {
            key.removeprefix(prefix).lower(): value
            for key, value in values.items()
            if key in variables(settings)
        }
        settings(**fields)
    assert given.keys() <= known.keys()


@pytest.mark.parametrize("name", sorted(OURS))
def test_health_is_asked_at_the_port_that_others_use(name):
    env = environment(SERVICES["gateway"])
    url = env["REEF_ENGINE_URLS"] if name == "engine" else env[f"REEF_{name.upper()}_URL"]
    port = url.rsplit(":", 1)[1]
    assert url == f"http://{name}:{port}"
    assert f"http://127.0.0.1:{port}/" in SERVICES[name]["healthcheck"]["test"][-1]


@pytest.mark.parametrize(
    ("writer", "folder"), [("publisher", "staging"), ("evaluator", "evaluator")]
)
def test_an_adapter_has_one_path_for_all_who_name_it(writer, folder):
    """The publisher and the evaluator send a path to the serving node: it must be the same directory there, and not its to change."""
    path = f"/var/lib/reef/{folder}"
    (volume,) = [volume for volume in SERVICES[writer]["volumes"] if volume.endswith(f":{path}")]
    for node in ("engine", "engine-gpu"):
        assert f"{volume}:ro" in SERVICES[node]["volumes"]
    assert environment(SERVICES[writer])["REEF_STATE_DIR"] == "/var/lib/reef"
    source = (ROOT / "services" / writer / "app.py").read_text()
    assert {"staging": 'system.state_dir / "staging"', "evaluator": "system.state_dir / SERVICE"}[
        folder
    ] in source


def test_large_bodies_are_where_every_service_looks():
    for name in ("gateway", "experience", "trainer", "harness", "evaluator", "publisher"):
        assert "bodies:/var/lib/reef/bodies" in SERVICES[name]["volumes"]


def test_data_lies_in_named_volumes():
    named = {
        volume.split(":")[0]
        for service in SERVICES.values()
        for volume in service.get("volumes", [])
        if not volume.startswith("./")
    }
    assert named == COMPOSE["volumes"].keys()
    assert all(
        "ro" in v.split(":")[2:]
        for service in SERVICES.values()
        for v in service.get("volumes", [])
        if v.startswith("./")
    )
    for system in ("kafka", "redis", "clickhouse", "lakefs", "prometheus", "grafana", "tempo"):
        assert any(volume.startswith(f"{system}:") for volume in SERVICES[system]["volumes"])


def test_files_that_are_mounted_exist():
    for given in COMPOSE["configs"].values():
        path = re.sub(r"\${\w+:-([^}]*)}", r"\1", given["file"])
        assert (ROOT / path).is_file(), path
    used = {row["source"] for service in SERVICES.values() for row in service.get("configs", [])}
    assert used == COMPOSE["configs"].keys()


def test_the_example_names_every_variable_and_no_other():
    asked = dict(re.findall(r"(?<!\$)\${([A-Z_]+)(:[-?][^}]*)?}", TEXT))
    assert asked.keys() == EXAMPLE.keys() - {"COMPOSE_PROFILES"}
    for name, fallback in asked.items():
        if re.search(r"PASSWORD|SECRET|LAKEFS_ACCESS|ENCRYPT", name):
            assert fallback == ":?run infra/secrets.sh", f"{name} must have no default"
            assert EXAMPLE[name] == "generate"
        else:
            assert fallback.startswith(":-")
            assert fallback.removeprefix(":-") == EXAMPLE[name]


def test_a_changed_serve_yaml_is_another_container():
    reads = {
        name for name, service in SERVICES.items() if "serve_yaml" in str(service.get("configs"))
    }
    assert reads >= OURS - {"engine"}
    for name in reads:
        assert SERVICES[name]["labels"] == {"reef.serve-yaml": "${SERVE_YAML_SUM:-}"}
    assert "SERVE_YAML_SUM=$$(" in (ROOT / "Makefile").read_text()


def test_a_slow_machine_does_not_fail_the_start():
    checks = {name: service.get("healthcheck", {}) for name, service in SERVICES.items()}
    limits = {check["start_period"] for check in checks.values() if check}
    assert limits == {"${START_WITHIN:-10m}"}


def test_the_offline_variant_watches_what_it_runs():
    gone = {name for name, service in OFFLINE["services"].items() if "profiles" in service}
    place = OFFLINE["configs"]["prometheus"]["file"]
    jobs = yaml.safe_load((ROOT / place).read_text())["scrape_configs"]
    hosts = {
        target.partition(":")[0]
        for job in jobs
        for row in job["static_configs"]
        for target in row["targets"]
    }
    assert hosts - {"localhost"} == OURS
    assert not hosts & gone


def test_one_profile_serves_and_the_example_chooses_it():
    assert {
        name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service
    } == {
        "engine": ["cpu"],
        "engine-gpu": ["gpu"],
    }
    assert EXAMPLE["COMPOSE_PROFILES"] == "cpu"


def test_a_service_waits_for_what_it_needs():
    for name in OURS - {"engine"}:
        assert SERVICES[name]["depends_on"]["setup"] == {
            "condition": "service_completed_successfully"
        }
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            healthy = "test" in SERVICES[other].get("healthcheck", {})
            assert how["condition"] == (
                "service_healthy" if healthy else "service_completed_successfully"
            ), (name, other)


def test_the_log_is_durable_and_takes_what_we_send():
    env = environment(SERVICES["kafka"])
    assert env["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"
    assert (
        int(env["KAFKA_MESSAGE_MAX_BYTES"]) >= 8 * 1024 * 1024
    )  # max_request_size of our producers
    assert env["KAFKA_LOG_DIRS"] in SERVICES["kafka"]["volumes"][0]
    command = SERVICES["redis"]["command"]
    assert command[command.index("--appendonly") + 1] == "yes"
    assert command[command.index("--appendfsync") + 1] == "always"


def test_vllm_is_started_as_the_services_need_it():
    engine = SERVICES["engine-gpu"]
    flags = " ".join(engine["command"])
    for needed in (
        "--enable-lora",
        "--enable-scale-out",
        "--logprobs-mode=processed_logprobs",
        "--scheduling-policy=priority",
        "--weight-transfer-config=",
    ):
        assert needed in flags
    assert environment(engine)["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "true"
    assert environment(engine)["VLLM_SERVER_DEV_MODE"] == "1"


def test_vllm_takes_as_long_a_context_as_our_own_engine():
    ours = variables(settings_classes()["engine"])["REEF_ENGINE_MAX_MODEL_LEN"].default
    command = SERVICES["engine-gpu"]["command"]
    assert f"--max-model-len=${{VLLM_MAX_MODEL_LEN:-{ours}}}" in command
    assert EXAMPLE["VLLM_MAX_MODEL_LEN"] == str(ours)


def test_stand_ins_replace_systems_and_nothing_else():
    """And under names of their own: a stand-in must never pass for the real image in the local cache."""
    for name, service in OFFLINE["services"].items():
        if name == "s3" or (name in SERVICES and name not in OURS | JOBS and "build" in service):
            assert service["image"].startswith("reef/stand-in-")
            assert service["build"]["context"] == "infra/offline"
    absent = {
        name
        for name, service in OFFLINE["services"].items()
        if service.get("profiles") == ["registry"]
    }
    assert absent == {"clickhouse", "lakefs", "tempo", "grafana"}
    for name in OURS - {"engine"}:
        given = OFFLINE["services"][name]["environment"]
        assert (
            given["REEF_CLICKHOUSE_URL"],
            given["REEF_ARTIFACTS_URL"],
            given["REEF_KAFKA_IDEMPOTENCE"],
        ) == ("", "", "false")


def _compose() -> list[str] | None:
    if (
        shutil.which("docker")
        and subprocess.run(
            ["docker", "compose", "version"], capture_output=True, check=False
        ).returncode
        == 0
    ):
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else None


@pytest.mark.skipif(_compose() is None, reason="docker compose is not installed")
@pytest.mark.parametrize(
    "files",
    [
        ["docker-compose.yml"],
        ["docker-compose.yml", "infra/compose.offline.yml"],
        ["docker-compose.yml", "infra/compose.gpu.yml"],
    ],
    ids=["production", "offline", "gpu"],
)
@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_compose_itself_accepts_the_files(tmp_path, files, profile):
    env = tmp_path / "env"
    env.write_text((ROOT / ".env.example").read_text().replace("=generate", "=x1"))
    chosen = [word for file in files for word in ("-f", file)]
    command = [
        *(_compose() or []),
        "--env-file",
        str(env),
        *chosen,
        "--profile",
        profile,
        "config",
        "-q",
    ]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
