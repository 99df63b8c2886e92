"""A harness recipe on the real host in memory: scripted models, users who report, a judge, a chain."""

from contextlib import contextmanager
from dataclasses import dataclass, field

from recipes.reflection.examples import house
from recipes.reflection.examples.models import house_model
from reefcommon.config_sections import EvaluationSection, ModelEndpoint
from reefcommon.evaluator import as_tasks
from reefcommon.events import (
    CandidateProposed,
    Evaluation,
    ReleaseRejected,
    SampleReady,
    SessionEnded,
    TaskResult,
    utc_now,
)
from reefcommon.harness.delivery import episode_messages
from reefcommon.harness.files import read_tree
from reefkit.artifacts.cache import FetchedTrees
from reefkit.jobs.context import Kit
from reefkit.jobs.host import build
from reefkit.jobs.outbox import Outbox
from reefkit.jobs.store import JobStore
from reefkit.recipe_binding import Binding
from reefkit.recipes.endpoint import Answered, Endpoint
from reefkit.recipes.models import ModelPool
from reefkit.recipes.runtime import RecipeServices
from reefkit.retry import RetryPolicy
from services.evaluator.domain.policies import Rule, decide
from tests.fakes.artifacts import MemoryArtifactStore
from tests.fakes.leases import SoleHolder
from tests.harness.support import AT, Published, base_release, executor, first, published

SCENARIO = "default"


class Scripted(Endpoint):
    """A model that is a function of messages and seed."""

    def __init__(self, name, entry, answer, life):
        super().__init__(name, entry)
        self.answer, self.life = answer, life

    async def ask(self, path, body, headers):
        self.life.effect(f"ask {self.name}")
        seed = int(body.get("seed") or 0)
        texts = [self.answer(body["messages"], seed + n) for n in range(body["n"])]
        choices = [
            {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            for text in texts
        ]
        return Answered({"choices": choices}, 10, 2)


class Killed(Exception):
    """The process ends here."""


@dataclass
class Life:
    """Counts effects, and ends the process before the chosen one: none follows."""

    at: int = 0
    effects: list[str] = field(default_factory=list)
    dead: bool = False

    def effect(self, name):
        self.effects.append(name)
        self.dead = self.dead or len(self.effects) == self.at
        if self.dead:
            raise Killed


class MortalStore(JobStore):
    """A job store whose saves are effects; once the process is dead, nothing is written."""

    life: Life | None = None

    def save(self, job, **how):
        self.life.effect(f"save {job.state}")
        return super().save(job, **how)

    @contextmanager
    def _transaction(self):
        if self.life is not None and self.life.dead:
            raise Killed
        with super()._transaction() as db:
            yield db


class HarnessWorld:
    """`run` lets the host work and judges its candidates, until neither has anything to do."""

    def __init__(
        self, home, recipe, proposer, *, served=house_model, tasks=house.HELD_OUT,
        score="recipes.reflection.examples.house:score", policy="strictly_better", attempts=3, samples=1,
    ):  # fmt: skip
        self.home, self.recipe, self.policy, self.attempts = home, recipe, policy, attempts
        self.samples = samples
        self.proposer, self.served, self.tasks = proposer, served, as_tasks(tasks)
        self.section = EvaluationSection(score=score, samples_per_task=1)
        self.out, self.artifacts, self.life = Published(), MemoryArtifactStore(), Life()
        self.release, self.verdicts, self.asked = base_release(), {}, 0
        self.units = []
        home.mkdir(parents=True, exist_ok=True)
        self.begin()

    def begin(self):
        """Start the host on what is on disk."""
        self.store = MortalStore(self.home / "ledger.sqlite")
        self.store.life = self.life
        pool = ModelPool(
            self.store,
            {"proposer": ModelEndpoint(url="http://proposer/v1", model="m")},
            gateway_url="http://gateway",
        )
        for name, answer in {"proposer": self.proposer, "served": self.served}.items():
            pool.endpoints[name] = Scripted(name, pool.endpoints[name].entry, answer, self.life)
        retry = RetryPolicy(0.01, 0.02, self.attempts)
        services = RecipeServices(self.store, utc_now, pool, retry, evaluation=self.section)
        outbox = Outbox(self.store, self.out, SoleHolder())
        kit = Kit(
            self.home,
            self.store,
            self.artifacts,
            FetchedTrees(self.home / "trees"),
            outbox,
            utc_now,
            retry,
            10.0,
            services,
        )
        binding = Binding(SCENARIO, f"tests:{type(self.recipe).__name__}", self.recipe)
        self.handlers = build((binding,), kit, executor)
        (self.loop,) = self.handlers.loops

    def restart(self):
        self.close()
        self.life = Life()
        self.begin()

    def close(self):
        self.loop.runtime.stop()
        self.store.close()

    @property
    def tree(self):
        return self.tree_of(self.release.contents.get("harness", ""))

    def tree_of(self, content):
        if not content:
            return ()
        return read_tree(self.loop.kit.trees.fetch(self.artifacts, content, SCENARIO))

    def state(self, key):
        import json

        found = self.store.state_value(self.loop.binding.key, key)
        return None if found is None else json.loads(found[1])

    # ------------------------------------------------------------------ users

    def answer(self, tree, task, seed=0):
        messages = episode_messages(tree, task.messages)
        text = self.served(messages, seed)
        number, words = self._score(task.given, text)
        return text, number, words

    def _score(self, given, text):
        from reefcommon.recipe_loading import resolve

        return resolve(self.section.score)(given, text)

    def report(self, given, **fields):
        """A user asks, and reports the score and the verifier's words."""
        (task,) = as_tasks([given])
        self.asked += 1
        text, number, words = self.answer(self.tree, task, self.asked)
        told = {
            "score": number,
            "feedback": words,
            "metadata": {k: given[k] for k in ("kind", "wanted")},
        }
        return self._unit(SampleReady, task, text, **{**told, **fields})

    def session(self, given, *, score=None, more=(), words=None):
        (task,) = as_tasks([given])
        self.asked += 1
        text, _, said = self.answer(self.tree, task, self.asked)
        turns = [{"role": "user", "content": said if words is None else words}, *more]
        return self._unit(SessionEnded, task, text, turns, score=score)

    def _unit(self, kind, task, text, after=(), **fields):
        messages = (*task.messages, {"role": "assistant", "content": text}, *after)
        unit = kind(
            event_id=f"unit-{self.asked}", at=fields.pop("at", AT), scenario=SCENARIO, record_ids=(f"rec-{self.asked}",),
            release_id=self.release.release_id, messages=messages, recorded_at=AT, **fields,
        )  # fmt: skip
        self.units.append(unit)
        return unit

    async def deliver(self):
        """All that the log holds, again: units and the present head."""
        await self.handlers.on_publication(first(self.release))
        for unit in self.units:
            await self.handlers.on_unit(unit)

    # ------------------------------------------------------------------ the host and its judge

    async def run(self):
        await self.deliver()
        progress = True
        while progress:
            progress = False
            while await self.loop.once():
                progress = True
            await self.loop.verdicts.settle()
            for candidate in self.out.of(CandidateProposed):
                if candidate.event_id not in self.verdicts:
                    self.verdicts[candidate.event_id] = self.judge(candidate)
                    progress = True
            for verdict in self.verdicts.values():
                await self.handlers.on_publication(verdict)
            await self.loop.verdicts.settle()

    def judge(self, candidate):
        trees = self.tree_of(candidate.content_id), self.tree
        results = tuple(self._paired(task, *trees) for task in self.tasks)
        ruling = decide(results, Rule(self.policy))
        evaluation = Evaluation(
            verdict=ruling.verdict, policy=self.policy, reason=ruling.reason, pairs=len(results),
            head_release_id=self.release.release_id, tasks=results,
        )  # fmt: skip
        if ruling.verdict == "select":
            event = published(candidate, self.release)
            self.release = event.release.model_copy(update={"evaluation": evaluation})
            return event.model_copy(update={"release": self.release})
        return ReleaseRejected(
            event_id=f"rejected-{candidate.event_id}", at=AT, scenario=SCENARIO, outcome="rejected",
            reason=ruling.reason, candidate_id=candidate.event_id, evaluation=evaluation,
        )  # fmt: skip

    def _paired(self, task, mine, theirs):
        runs = [
            [self.answer(tree, task, n) for n in range(self.samples)] for tree in (mine, theirs)
        ]
        own, head = (sum(score for _, score, _ in each) / self.samples for each in runs)
        return TaskResult(task=task.name, candidate=own, head=head, candidate_words=runs[0][0][2])

    @property
    def outcomes(self):
        return [type(event).__name__ for event in self.verdicts.values()]

    def mean(self, tasks=house.HELD_OUT, seeds=(0,)):
        """The score of the tree that serves."""
        found = [
            self.answer(self.tree, task, seed)[1] for task in as_tasks(tasks) for seed in seeds
        ]
        return sum(found) / len(found)


async def lived(world):
    """Run until there is nothing to do, or the process is killed; returns whether it was."""
    try:
        await world.run()
    except Exception:
        if world.life.dead:
            return True
        raise
    return False
