"""`ctx.models`: tries, kept answers, budgets, and the requests that others see."""

import asyncio

import pytest

from reefcommon.config import parse
from reefcommon.config_sections import ModelEndpoint
from reefcommon.errors import BadConfig, Unavailable
from reefcommon.recipe_context import BudgetSpent, ModelFailed
from reefkit.jobs.store import JobStore
from reefkit.recipe_binding import Binding
from reefkit.recipes import endpoint as endpoints
from reefkit.recipes.endpoint import Endpoint, ModelAway
from reefkit.recipes.models import ModelPool
from reefkit.recipes.runtime import RecipeRuntime, RecipeServices
from reefkit.retry import RetryPolicy
from tests.fakes.judge import Judge
from tests.jobs.words import WordsRecipe
from tests.recipes.samples import AT

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(autouse=True)
def short_tries(monkeypatch):
    monkeypatch.setattr(endpoints, "TRIES", RetryPolicy(0.01, 0.02, 3))


@pytest.fixture
async def judge():
    async with Judge() as made:
        yield made


class Host:
    """A binding on a job store. `entry`: of the model `judge`."""

    def __init__(self, home, judge, gateway_url="", **entry):
        made = ModelEndpoint(url=judge.url, model="judge-1", **{"timeout_s": 0.5} | entry)
        self.store = JobStore(home / "ledger.sqlite")
        self.pool = ModelPool(self.store, {"judge": made}, gateway_url=gateway_url, priority=10)
        binding = Binding("default", "tests:Words", WordsRecipe(None))
        services = RecipeServices(self.store, lambda: AT, self.pool, RetryPolicy(0.01, 0.05, 3))
        self.runtime = RecipeRuntime(binding, services)
        self.key = binding.key

    async def on_thread(self, use, subject=""):
        """Use a context on the thread of the recipe."""
        return await self.runtime.call(use, self.runtime.context(subject), timeout_s=20.0)

    async def close(self):
        self.runtime.stop()
        await self.pool.close()
        self.store.close()


@pytest.fixture
async def host(tmp_path, judge):
    made = Host(tmp_path, judge)
    yield made
    await made.close()


async def ask(ctx, text="hello", n=1, **params):
    messages = [{"role": "user", "content": text}]
    return await ctx.models["judge"].chat(messages, purpose="vote", n=n, **params)


async def nine_times(ctx):
    for _ in range(9):
        await ask(ctx)


async def test_a_chat_gives_all_choices(host, judge):
    found = await host.on_thread(lambda ctx: ask(ctx, n=3, temperature=0.7))
    assert [(reply.text, reply.finish_reason, reply.tokens) for reply in found] == [
        ("better", "stop", 12)
    ] * 3
    (body,) = judge.bodies
    assert body == {"model": "judge-1", "messages": HELLO, "n": 3, "temperature": 0.7}


async def test_tokens_are_scored(host, judge):
    found = await host.on_thread(lambda ctx: ctx.models["judge"].score([5, 6, 7], purpose="kl"))
    assert found == [-0.5, -0.5]
    assert judge.bodies[0]["prompt"] == [5, 6, 7]


@pytest.mark.parametrize("moods", [["500"], ["429", "503"], ["slow"]])
async def test_a_model_is_asked_again_with_the_same_key(host, judge, moods):
    judge.moods = list(moods)
    await host.on_thread(ask, "unit-1")
    assert judge.calls == len(moods) + 1
    assert len(judge.keys) == 1
    assert host.store.used("judge").calls == 1


async def test_a_key_that_was_replaced_is_read_again(tmp_path, judge):
    (tmp_path / "key").write_text("old\n")
    host = Host(tmp_path / "host", judge, key_file=tmp_path / "key")
    await host.on_thread(ask)
    (tmp_path / "key").write_text("new\n")
    judge.moods = ["401"]
    await host.on_thread(ask)
    keys = [headers["Authorization"] for headers in judge.headers]
    assert keys == ["Bearer old", "Bearer old", "Bearer new"]
    judge.moods = ["401"]
    with pytest.raises(ModelAway):
        await host.on_thread(ask)
    await host.close()


@pytest.mark.parametrize(
    ("mood", "error", "calls"),
    [("500", ModelAway, 3), ("400", ModelFailed, 1), ("401", ModelAway, 1), ("rubbish", ModelAway, 3), ("302", ModelAway, 1), ("no choices", ModelAway, 1)],
)  # fmt: skip
async def test_a_model_that_gives_no_answer(host, judge, mood, error, calls):
    judge.mood = mood
    with pytest.raises(ModelFailed, match="model judge") as raised:
        await host.on_thread(ask)
    assert type(raised.value) is error
    assert isinstance(raised.value, Unavailable) == (error is ModelAway)
    assert judge.calls == calls


async def test_an_unknown_model_names_the_known(host):
    async def use(ctx):
        assert "teacher" not in ctx.models
        assert list(ctx.models) == ["judge"]
        return ctx.models["teacher"]

    with pytest.raises(ModelAway, match="no model 'teacher' under `models:`; there: judge"):
        await host.on_thread(use)


async def test_answers_of_a_subject_are_kept_and_told_apart(host, judge):
    """The same question twice is two votes; after a crash each has the same answer."""

    async def votes(ctx):
        found = await asyncio.gather(ask(ctx), ask(ctx), ask(ctx, "else"))
        return [reply.text for (reply,) in found]

    assert await host.on_thread(votes, "unit-1") == ["better"] * 3
    judge.text = "worse"
    assert await host.on_thread(votes, "unit-1") == ["better"] * 3
    assert await host.on_thread(votes, "unit-2") == ["worse"] * 3
    assert (judge.calls, len(judge.keys)) == (6, 6)
    assert all(key.startswith("reef-") for key in judge.keys)
    logged = host.store.logged_calls(host.key, 9)
    assert [(row["model"], row["purpose"], row["outcome"]) for row in logged] == [
        ("judge", "vote", "ok")
    ] * 6
    assert {(row["prompt_tokens"], row["completion_tokens"]) for row in logged} == {(10, 2)}


async def test_without_a_subject_every_call_is_new(host, judge):
    for _ in range(2):
        await host.on_thread(ask)
    assert judge.calls == 2
    assert "idempotency-key" not in {name.lower() for name in judge.headers[0]}


async def test_a_call_in_flight_at_a_crash_counts_once(tmp_path, judge):
    first, judge.mood = Host(tmp_path, judge, timeout_s=30.0, max_calls=1), "slow"
    task = asyncio.create_task(first.on_thread(ask, "unit-1"))
    async with asyncio.timeout(5):
        while not judge.calls:
            await asyncio.sleep(0.01)
    task.cancel()
    await first.close()
    judge.mood = "well"
    second = Host(tmp_path, judge, max_calls=1)
    assert (await second.on_thread(ask, "unit-1"))[0].text == "better"
    assert (judge.calls, len(judge.keys)) == (2, 1)
    with pytest.raises(BudgetSpent, match=r"'judge' is used up: 1 of 1 calls used; raise it"):
        await second.on_thread(ask, "unit-2")
    await second.close()


@pytest.mark.parametrize(
    ("entry", "calls"),
    [
        ({"max_calls": 3}, 3),
        ({"max_tokens": 25}, 3),  # 12 tokens a call: the third begins below the limit
        ({"max_cost": 0.05, "prompt_price": 1000.0, "completion_price": 5000.0}, 3),
        ({"max_calls": 0}, 0),
    ],
)
async def test_each_limit_stops_the_asking(tmp_path, judge, entry, calls):
    host = Host(tmp_path, judge, **entry)
    with pytest.raises(BudgetSpent):
        await host.on_thread(nine_times)
    assert judge.calls == calls
    facts = host.pool.facts()["judge"]
    assert len(facts["spent"]) == 1
    assert facts["used"]["tokens"] == 12 * calls
    await host.close()


async def test_calls_without_an_answer_are_not_counted(host, judge):
    judge.mood = "500"
    for subject in ("", "unit-1", "unit-1"):
        with pytest.raises(ModelAway):
            await host.on_thread(ask, subject)
    assert host.store.used("judge").calls == 1  # that of unit-1, which still asks
    assert [row["outcome"][:20] for row in host.store.logged_calls(host.key, 9)] == [
        "model judge is away "
    ] * 3


async def test_no_more_requests_are_under_way_than_allowed(tmp_path, judge):
    judge.delay_s, host = 0.05, Host(tmp_path, judge, concurrency=2)

    async def many(ctx):
        await asyncio.gather(*(ask(ctx, str(n)) for n in range(8)))

    await host.on_thread(many)
    assert judge.most_at_once == 2
    await host.close()


async def test_reefs_own_model_is_asked_as_a_side_call(tmp_path, judge):
    host = Host(tmp_path, judge, gateway_url=judge.url.removesuffix("/v1"))

    async def use(ctx):
        return await ctx.models["served"].chat(HELLO, purpose="wenn möglich\nkurz")

    await host.on_thread(use, "unit-1")
    headers = {name.lower(): value for name, value in judge.headers[0].items()}
    assert headers["x-reef-tag-turn-type"] == "side"
    assert headers["x-reef-tag-purpose"] == "wenn möglich kurz"
    assert headers["x-reef-scenario"] == "default"
    assert headers["x-reef-agent-record-id"].startswith("side-")
    assert (judge.bodies[0]["model"], judge.bodies[0]["priority"]) == ("reef", 10)
    await host.close()


async def test_the_key_is_sent_and_never_shown(tmp_path, judge, monkeypatch):
    (tmp_path / "key").write_text("secret-1\n")
    monkeypatch.setenv("JUDGE_KEY", "secret-2")
    for number, entry in enumerate(({"key_file": tmp_path / "key"}, {"key_env": "JUDGE_KEY"}), 1):
        host = Host(tmp_path / str(number), judge, **entry)
        await host.on_thread(ask)
        assert judge.headers[-1]["Authorization"] == f"Bearer secret-{number}"
        shown = f"{host.pool.facts()} {host.pool.endpoints['judge'].entry!r}"
        assert "secret" not in shown
        await host.close()


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"key_env": "NO_SUCH_KEY"}, "models.judge.key_env: NO_SUCH_KEY is not set"),
        ({"key_file": "no/such/file"}, "models.judge.key_file: cannot read no/such/file"),
    ],
)
def test_a_key_that_cannot_be_read_is_a_mistake_of_a_person(entry, words):
    with pytest.raises(BadConfig, match=words):
        Endpoint("judge", ModelEndpoint(url="http://h/v1", model="m", **entry))


REEF = "reef: {recipe: a:B}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "models: {judge: {url: 'http://h/v1', model: m, timeot_s: 3}}",
            "did you mean 'timeout_s'",
        ),
        ("models: {judge: {url: 'http://h/v1', model: m, key: sk-secret}}", "unknown key 'key'"),
        ("models: {judge: {url: 'ftp://u:secret@h', model: m}}", "must be of the form http"),
        ("models: {judge: {model: m}}", "judge needs a url"),
        ("models: {judge: {url: 'http://h/v1'}}", "judge needs the name of its model"),
        ("models: {served: {url: 'http://h/v1'}}", "served needs no url"),
        ("models: {judge: {url: 'http://h/v1', model: m, max_cost: 1}}", "max_cost, but no prices"),
        ("models: {judge: {url: 'http://h/v1', model: m, key_file: f, key_env: E}}", "only one"),
        ("models: {Judge: {url: 'http://h/v1', model: m}}", "Judge"),
    ],
)
def test_a_mistake_in_models_is_named(text, words):
    with pytest.raises(BadConfig, match=words) as raised:
        parse(REEF + text)
    assert "secret" not in str(raised.value)


def test_models_are_read_with_their_limits():
    served = parse(
        REEF + "models:\n  judge: {url: 'http://h/v1/', model: m, max_calls: 5}\n"
        "  served: {max_tokens: 100}\n"
    )
    assert served.models["judge"].limits == {"calls": 5}
    assert served.models["judge"].url == "http://h/v1"
    assert served.models["served"].limits == {"tokens": 100}


async def test_a_model_that_knows_no_max_tokens_is_told_the_limit_by_its_own_name(tmp_path, judge):
    host = Host(tmp_path, judge, timeout_s=20.0)
    judge.refused = ("max_tokens",)

    async def three(ctx):
        await asyncio.gather(*(ask(ctx, str(n), max_tokens=7) for n in range(3)))
        await ask(ctx, max_tokens=7)

    await host.on_thread(three)
    renamed = [body for body in judge.bodies if "max_completion_tokens" in body]
    assert [body["max_completion_tokens"] for body in renamed] == [7] * 4
    assert "max_tokens" not in judge.bodies[-1]
    assert 5 <= judge.calls <= 7, "each that was under way is told once, and no later one"
    await host.close()


async def test_a_model_that_takes_no_such_temperature_is_waited_for(host, judge):
    """A person changes the knob or the model; the backlog is not refused meanwhile."""
    judge.refused = ("temperature",)
    with pytest.raises(ModelAway, match="model judge takes no such temperature"):
        await host.on_thread(lambda ctx: ask(ctx, temperature=0.6))
