"""The installation on a user's machine: whole, again, cut off, changed, unsafe."""

import json
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from reefcommon.harness.agent import Place, find_agent
from reefcommon.harness.installation import Version, failure_script, plan_of, script_of, tree_digest
from reefcommon.harness.tree import Entry, Tree
from tests.agents.machine import FakeGateway, Machine

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
SHELLS = [shell for shell in ("dash", "bash", "sh") if shutil.which(shell)]
FIRST = (Entry("r", "rules", {"text": 'It\'s "so" $HOME `id`; \\n'}),)
SKILL = {"name": "sieve", "description": "count primes", "text": "Use a sieve."}
SECOND = (*FIRST, Entry("s", "skill", SKILL))


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway() as running:
        yield running


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path / 'it\'s a "home" $here')
    made.prepare()
    return made


def plan(tree: Tree, release: str, gateway: FakeGateway, **more: object) -> dict:
    content = f"harness-{release}"
    place = Place(gateway.url, "packing", "smollm2")
    return plan_of(find_agent("pi"), tree, place, Version(release, content, "why")) | more


def installed(machine: Machine, planned: dict, shell: str = "bash", **env: str) -> str:
    done = machine.run(shell, stdin=script_of(planned), **env)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_a_bare_home_gets_the_agent_and_a_second_time_says_current(
    shell: str, machine: Machine, gateway: FakeGateway
) -> None:
    said = installed(machine, plan(SECOND, "r1", gateway), shell)
    assert "reef-pi is installed: release r1 of packing" in said
    home = machine.root / "home"
    assert (home / "AGENTS.md").read_text() == FIRST[0].config["text"].strip() + "\n"
    assert (home / "skills/sieve/SKILL.md").exists()
    token = machine.root / "token"
    assert (token.read_text(), oct(token.stat().st_mode & 0o777)) == ("t 1'", "0o600")
    assert "is current" in installed(machine, plan(SECOND, "r1", gateway), shell)
    assert len(machine.npm_calls) == 1, "the agent itself is fetched once"

    # started by its wrapper, without the variable
    del machine.env["REEF_TOKEN"]
    ran = machine.started("-p", "two words", "it's")
    assert ran["argv"] == ["-p", "two words", "it's"]
    assert ran["env"]["PI_CODING_AGENT_DIR"] == str(home)
    assert ran["env"]["REEF_TOKEN"] == "t 1'"
    assert machine.agent("-p", "x", AGENT_EXIT="7").returncode == 7


def test_an_update_prunes_what_was_installed_and_keeps_what_was_not(
    machine: Machine, gateway: FakeGateway
) -> None:
    installed(machine, plan(SECOND, "r1", gateway))
    home = machine.root / "home"
    (home / "skills/mine").mkdir()
    (home / "skills/mine/SKILL.md").write_text("mine")
    said = installed(machine, plan((), "r2", gateway))
    assert "is updated from r1" in said
    assert not (home / "AGENTS.md").exists()
    assert not (home / "skills/sieve").exists()
    assert (home / "skills/mine/SKILL.md").read_text() == "mine"


def test_a_changed_file_stops_the_start_and_doctor_restores_it(
    machine: Machine, gateway: FakeGateway
) -> None:
    installed(machine, plan(FIRST, "r1", gateway))
    rules = machine.root / "home/AGENTS.md"
    rules.write_text("other rules")
    done = machine.agent("-p", "x")
    assert (done.returncode, done.stdout) == (3, "")
    assert "AGENTS.md" in done.stderr
    assert "doctor" in done.stderr
    assert "restored: AGENTS.md" in machine.agent("doctor").stderr
    assert rules.read_text() == FIRST[0].config["text"].strip() + "\n"
    assert (machine.root / "home/AGENTS.md.yours").read_text() == "other rules"
    assert machine.started("-p", "x")["argv"] == ["-p", "x"]


def test_an_update_is_named_once_headless_and_installed_by_update(
    machine: Machine, gateway: FakeGateway
) -> None:
    installed(machine, plan(FIRST, "r1", gateway))
    row = {"release_id": "r2", "content_id": "harness-r2", "reason": "four said so"}
    gateway.answers["/reef/harness/releases"] = {"data": [row]}
    done = machine.agent("-p", "x")
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert "a new harness, r2, is there: four said so (reef-pi update)" in done.stderr
    gateway.answers["/reef/harness/plan"] = plan(SECOND, "r2", gateway, url="http://other.test")
    assert "is updated from r1" in machine.agent("update").stderr
    assert (machine.root / "home/skills/sieve/SKILL.md").exists()
    assert machine.agent("-p", "x").stderr == ""
    assert "r2 (installed) four said so" in machine.agent("versions").stdout
    asked, headers, _ = gateway.asked[-1]
    assert asked.startswith("/reef/harness/releases?scenario=packing")
    assert headers["authorization"] == "Bearer t 1'"


def test_h4_a_release_that_waits_is_told_in_one_line(
    machine: Machine, gateway: FakeGateway
) -> None:
    """H4. And nothing of it is offered."""
    installed(machine, plan(FIRST, "r1", gateway))
    row = {"release_id": "r1", "content_id": "harness-r1", "reason": ""}
    waiting = [{"release_id": "r2", "content_id": "harness-r2", "reason": "secret"}]
    gateway.answers["/reef/harness/releases"] = {"data": [row], "pending": waiting}
    done = machine.agent("-p", "x")
    assert done.returncode == 0
    assert done.stderr == "reef: r2 waits for a person: reef promote packing r2\n"


def test_reef_being_away_stops_no_start(machine: Machine, gateway: FakeGateway) -> None:
    installed(machine, plan(FIRST, "r1", gateway))
    gateway.__exit__()
    assert machine.started("-p", "x")["argv"] == ["-p", "x"]
    done = machine.agent("update")
    assert done.returncode == 1
    gateway.__init__()  # type: ignore[misc]  the fixture closes it again
    gateway.__enter__()


def test_a_report_names_the_last_receipt(machine: Machine, gateway: FakeGateway) -> None:
    installed(machine, plan(FIRST, "r1", gateway))
    assert "there is no answer" in machine.agent("report", "bad").stderr
    (machine.root / "receipts").write_text("rec-1\nrec-2\n")
    gateway.answers["/reef/report"] = {"agent_record_id": "rep-1"}
    assert "rep-1" in machine.agent("report", "--score", "0", 'not "so"', "please").stderr
    _, headers, body = gateway.asked[-1]
    assert headers["x-reef-scenario"] == "packing"
    expected = {"references": ["rec-2"], "score": 0, "feedback": 'not "so" please'}
    assert json.loads(body) == expected
    assert "usage" in machine.agent("report").stderr


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("part", [0.02, 0.5, 0.97, 0.9999])
def test_a_script_that_is_cut_off_runs_nothing(
    part: float, shell: str, machine: Machine, gateway: FakeGateway
) -> None:
    script = script_of(plan(FIRST, "r1", gateway)).rstrip()
    done = machine.run(shell, stdin=script[: int(len(script) * part)])
    assert done.returncode != 0 or part == 0.02  # only the first comment came
    assert not machine.root.exists()
    assert machine.npm_calls == []


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/x", "a/../../x", "a//b", "a/./b", "x\ny", "a\\b", "..", "", "a/"],
)
def test_h2_an_unsafe_path_is_refused(name: str, machine: Machine, gateway: FakeGateway) -> None:
    """H2."""
    planned = plan(FIRST, "r1", gateway)
    planned["files"][name] = planned["files"]["AGENTS.md"]
    planned["sums"][name] = planned["sums"]["AGENTS.md"]
    planned["digest"] = tree_digest(planned["sums"])
    done = machine.run("bash", stdin=script_of(planned))
    assert done.returncode == 1
    assert "unsafe path" in done.stderr
    assert not machine.root.exists()


@pytest.mark.parametrize("link", ["AGENTS.md", "extensions", "."])
def test_h2_a_link_out_of_the_folder_is_refused(
    link: str, machine: Machine, gateway: FakeGateway, tmp_path: Path
) -> None:
    """H2."""
    installed(machine, plan((), "r1", gateway))
    outside = tmp_path / "outside"
    outside.mkdir()
    target = machine.root / "home" / link
    if target.is_dir():
        shutil.rmtree(target)
    target.symlink_to(outside if link != "AGENTS.md" else outside / "file")
    done = machine.run("bash", stdin=script_of(plan(SECOND, "r2", gateway)))
    assert done.returncode == 1
    assert "is a link" in done.stderr
    assert list(outside.iterdir()) == []


def test_a_file_that_arrived_otherwise_is_refused(machine: Machine, gateway: FakeGateway) -> None:
    for change in ("files", "digest"):
        planned = plan(SECOND, "r1", gateway)
        if change == "files":
            planned["files"]["AGENTS.md"] = "b3RoZXI="
        else:
            planned["digest"] = "0" * 64
        done = machine.run("bash", stdin=script_of(planned))
        assert (done.returncode, "did not arrive" in done.stderr) == (1, True)
        assert not (machine.root / "plan.json").exists()


def test_a_disk_that_is_full_leaves_the_installed_version(
    machine: Machine, gateway: FakeGateway
) -> None:
    installed(machine, plan(FIRST, "r1", gateway))
    other = plan(SECOND, "r2", gateway)
    other["packages"][0]["version"] = "9.9.9"
    done = machine.run("bash", stdin=script_of(other), FAKE_NPM_FAILS="1")
    assert done.returncode == 1
    assert "npm could not install" in done.stderr
    assert machine.started("-p", "x")["argv"] == ["-p", "x"]
    assert "is updated from r1" in installed(machine, other)


def test_a_disk_that_takes_half_of_a_file_leaves_the_installed_version(
    machine: Machine, gateway: FakeGateway
) -> None:
    installed(machine, plan(FIRST, "r1", gateway))
    carried = machine.home / "plan.json"
    carried.write_text(json.dumps(plan(SECOND, "r2", gateway)))
    half = carried.stat().st_size // 2
    program = str(machine.root / "reef-agent.mjs")
    done = subprocess.run(
        ("node", program, "install", str(carried)), env=machine.env, capture_output=True,
        text=True, timeout=60, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (half, half)),
    )  # fmt: skip
    assert done.returncode != 0
    assert machine.started("-p", "x")["argv"] == ["-p", "x"]
    assert json.loads((machine.root / "plan.json").read_text())["release"] == "r1"
    assert "is updated from r1" in installed(machine, plan(SECOND, "r2", gateway))


def test_an_installation_that_was_cut_off_is_finished_by_the_next_start(
    machine: Machine, gateway: FakeGateway
) -> None:
    installed(machine, plan(FIRST, "r1", gateway))
    (machine.root / "plan.next.json").write_text(json.dumps(plan(SECOND, "r2", gateway)))
    (machine.root / "home/AGENTS.md").unlink()
    assert machine.started("-p", "x")["argv"] == ["-p", "x"]
    assert (machine.root / "home/skills/sieve/SKILL.md").exists()
    assert json.loads((machine.root / "plan.json").read_text())["release"] == "r2"


def test_another_program_of_that_name_is_left_alone(machine: Machine, gateway: FakeGateway) -> None:
    machine.wrapper.parent.mkdir(parents=True)
    machine.wrapper.write_text("#!/bin/sh\necho mine\n")
    done = machine.run("bash", stdin=script_of(plan(FIRST, "r1", gateway)))
    assert (done.returncode, "not Reef's" in done.stderr) == (1, True)
    assert machine.wrapper.read_text() == "#!/bin/sh\necho mine\n"


def test_a_token_is_asked_for_before_anything_is_fetched(
    machine: Machine, gateway: FakeGateway
) -> None:
    del machine.env["REEF_TOKEN"]
    script = script_of(plan(FIRST, "r1", gateway, needs_token=True))
    done = machine.run("bash", stdin=script)
    assert (done.returncode, "export REEF_TOKEN" in done.stderr) == (1, True)
    assert machine.npm_calls == []


def test_a_node_that_has_moved_is_found_again(machine: Machine, gateway: FakeGateway) -> None:
    installed(machine, plan(FIRST, "r1", gateway))
    text = machine.wrapper.read_text()
    node = text.split("node='")[1].split("'")[0]
    assert Path(node).is_file()
    machine.wrapper.write_text(text.replace(node, "/opt/node-of-last-year/bin/node"))
    assert machine.started("-p", "hi")["argv"][-1] == "hi"


def test_folders_that_are_named_from_here_are_found_from_elsewhere(
    machine: Machine, gateway: FakeGateway
) -> None:
    installed(machine, plan(FIRST, "r1", gateway), REEF_AGENTS="agents", REEF_BIN="bin", HOME="")
    wrapper = str(machine.home / "bin/reef-pi")
    done = machine.run("sh", "-c", 'cd / && exec "$0" -p hi', wrapper)
    assert done.returncode == 0, done.stderr
    assert (machine.home / "agents/pi/plan.json").is_file()


def test_an_update_stays_in_the_folders_of_its_installation(
    machine: Machine, gateway: FakeGateway
) -> None:
    installed(machine, plan(FIRST, "r1", gateway), REEF_AGENTS="agents", REEF_BIN="bin")
    gateway.answers["/reef/harness/plan"] = plan(SECOND, "r2", gateway)
    done = machine.run(str(machine.home / "bin/reef-pi"), "update")
    assert "is updated from r1" in done.stderr
    assert json.loads((machine.home / "agents/pi/plan.json").read_text())["release"] == "r2"
    assert not (machine.home / ".local").exists()


def test_a_program_that_is_gone_is_fetched_again(machine: Machine, gateway: FakeGateway) -> None:
    installed(machine, plan(FIRST, "r1", gateway))
    assert "--include=optional --global=false" in machine.npm_calls[0]
    shutil.rmtree(next(machine.root.glob("app/*/node_modules")))
    assert machine.agent("doctor").returncode == 0
    assert len(machine.npm_calls) == 2
    assert machine.started("-p", "hi")["argv"][-1] == "hi"


@pytest.mark.parametrize("program", ["node", "npm"])
def test_a_missing_program_is_named(program: str, machine: Machine, gateway: FakeGateway) -> None:
    bare = machine.home / "bare"
    bare.mkdir()
    for name in ("sh", "bash", "cat", "mktemp", "rm", "node"):
        if name != program:
            (bare / name).symlink_to(str(shutil.which(name)))
    done = machine.run("bash", stdin=script_of(plan(FIRST, "r1", gateway)), PATH=str(bare))
    assert (done.returncode, "is needed" in done.stderr) == (1, True)
    assert not machine.root.exists()


def test_an_older_node_gets_one_of_its_own_for_the_agent(
    machine: Machine, gateway: FakeGateway
) -> None:
    planned = plan(FIRST, "r1", gateway)
    planned["packages"][0]["node"] = "99.1.0"
    installed(machine, planned)
    assert "@99" in machine.npm_calls[0]
    assert "node_modules/node-" in (machine.root / "plan.json").read_text() or machine.started("-p")
    old = next(one for one in planned["packages"] if one["version"] != "99")
    installed(machine, planned, REEF_AGENT_VERSION=planned["packages"][1]["version"])
    assert planned["packages"][1]["version"] in machine.npm_calls[-1]
    fetched = len(machine.npm_calls)
    machine.started("-p")
    installed(machine, planned)
    assert len(machine.npm_calls) == fetched, "the version that was asked for stays"
    assert old


@pytest.mark.parametrize("shell", SHELLS)
def test_a_refusal_is_a_script_that_fails(shell: str, machine: Machine) -> None:
    done = machine.run(shell, stdin=failure_script(404, 'There\'s no `scenario`\n"x".'))
    assert done.returncode == 1
    assert '404 There\'s no `scenario` "x".' in done.stderr


def test_what_the_agent_writes_into_its_settings_is_no_change_and_stays(
    machine: Machine, gateway: FakeGateway
) -> None:
    """Pi notes at its first start on a terminal which changes it has shown."""
    installed(machine, plan(FIRST, "r1", gateway))
    settings = machine.root / "home/settings.json"
    told = json.loads(settings.read_text())
    settings.write_text(json.dumps({"theme": "light", **told, "lastChangelogVersion": "1.6.0"}))
    assert machine.started("-p", "x")["argv"] == ["-p", "x"]
    calm = Entry("c", "config", {"target": "primary", "values": {"steeringMode": "all"}})
    installed(machine, plan((*FIRST, calm), "r2", gateway))
    kept = json.loads(settings.read_text())
    assert kept == {
        **told,
        "steeringMode": "all",
        "theme": "light",
        "lastChangelogVersion": "1.6.0",
    }
    assert not settings.with_name("settings.json.yours").exists()
    for change in ({"httpProxy": "http://elsewhere.test"}, {"defaultModel": "other"}):
        settings.write_text(json.dumps({**kept, **change}))
        assert machine.agent("-p", "x").returncode == 3
        assert "restored: settings.json" in machine.agent("doctor").stderr
        assert json.loads(settings.read_text()) == kept
    settings.write_text("no JSON")
    assert machine.agent("-p", "x").returncode == 3
    machine.agent("doctor")
    assert json.loads(settings.read_text()) == {**told, "steeringMode": "all"}
