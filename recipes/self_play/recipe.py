"""Self-play: a designer proposes tasks at the edge of the solver's reach; a solver learns them."""

#     round t:
#       designer   `count` proposals; the prompt lists the frontier, the greatest regret first
#       check      valid if the reference scores 1, an empty answer scores below 1, and it is new
#       solver     `plays` answers without a hint (train), `hint_plays` with it (measure alone)
#       regret     mean hinted score - mean plain score: the designer's reward; 0 if invalid
#       bands      mean plain score above 0.9 mastered, below 0.1 out of reach, else frontier
#       A          (r - mean) / std among the proposals of the round, and among the plays of each
#                  task; 0 if all are equal
#       L          mean over rollouts of mean over tokens of  - f(r_t) A log pi(a_t),  f as in SAO
#
# signal      a verifier's score; the designer's is derived from the solver's
# acquisition proactive: `seek` asks in both roles (tag `role`), reports, waits for the new weights
# target      one LoRA adapter for both roles; share: solver_only trains the solver alone
# staleness   none by default: a round of mixed weights is discarded whole (`round_discarded`)
# refused     reports without a place in a round, rounds with a flaw or without any difference. A
#             hinted play has the tag `turn-type: side` and no report: nothing trains on it
# crash       the state is kept after the proposals, after the plays and after the step; asked again
#             under the same key, an answer is the same
# run         reef serve -c recipes/self_play/examples/sums/serve.yaml
# expect      python -m tests.methods.self_play (docs/methods.md): the designer finds the tasks that
#             can be learned; the solver was not faster than on tasks by chance
#
# Regret needs a solver that can use a hint: without this all regrets are noise around 0.

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from recipes.policy_gradient.recipe import AdapterRecipe
from recipes.policy_gradient.seeking import UNCUT, commit, together
from recipes.self_play.admission import DESIGNER, oldest_round
from recipes.self_play.domain import Domain, Role, Task
from recipes.self_play.game import Game, Match, Pending, Proposal, identity_of, load
from recipes.self_play.knobs import Knobs
from reefcommon import recipe
from reefcommon.errors import Poison
from reefcommon.events import Unit
from reefcommon.ids import LoadId
from reefcommon.recipe import Decision, Dimensions, EvaluationPlan, Learner
from reefcommon.recipe_context import Asked, Messages, SeekContext
from reefcommon.recipe_loading import resolve
from reefcommon.statistics import independent_seed

DRAWS = 100


class SelfPlayRecipe(AdapterRecipe):
    name = "self_play"
    summary = (
        "a designer proposes tasks, a solver plays them with and without a hint; the designer "
        "earns the difference"
    )
    dimensions = Dimensions(
        signal="a verifier's score, and the regret of tasks",
        acquisition="proactive",
        evolves=("lora",),
    )
    shown = (
        "toy tasks, three seeds: the designer finds those that can be learned (share 0.25 -> "
        "0.9995 [0.999, 1.000]); the solver is not shown to be faster than on tasks by chance "
        "(-0.004 [-0.114, 0.107]) (docs/methods.md has the command)"
    )
    knobs_type = Knobs
    knobs: Knobs

    def __init__(self, knobs: recipe.Knobs) -> None:
        super().__init__(knobs)
        self.domain: Domain = resolve(self.knobs.domain)

    async def seek(self, ctx: SeekContext) -> None:
        game = load(ctx.store, identity_of(ctx.scenario, self.domain, self.knobs))
        while game.round < self.knobs.rounds:
            if game.pending is None:
                game.pending = Pending(await self._propose(ctx, game))
                await commit(ctx, game)  # checked: the plays of a repeat are of the same tasks
            if game.pending.matches is None:
                game.pending.matches = await self._play(ctx, game.round, game.pending.proposals)
                await commit(ctx, game)  # scored, not yet learned from
            trained = await self._report(ctx, game.round, game.pending)
            game.commit(await ctx.learned(trained) if trained else "no_units")
            await commit(ctx, game)

    async def _propose(self, ctx: SeekContext, game: Game) -> tuple[Proposal, ...]:
        """Ask for the tasks of a round and check them."""
        knobs, recent = self.knobs, game.pool.since(game.round - self.knobs.unique_rounds)
        if knobs.proposer == "uniform":
            return self._drawn(ctx.scenario, game.round, recent)
        messages = self.domain.designer_messages(game.pool.frontier(knobs.frontier_shown))
        asked = await together(
            self._ask(ctx, "designer", messages, round=game.round, proposal=number)
            for number in range(knobs.count)
        )
        proposals: list[Proposal] = []
        for one in asked:
            task = self.domain.parse(one.text)
            fault = "unreadable" if task is None else await self._fault(ctx, task, recent)
            if task is not None and not fault:
                recent.add(task.text)
            proposals.append(Proposal(task, fault, one.receipt))
        return tuple(proposals)

    async def _fault(self, ctx: SeekContext, task: Task, recent: set[str]) -> str:
        """Return why a task is invalid, or nothing."""
        if task.text in recent:
            return "duplicate"
        if await self._score(task, task.reference, ctx) < 1:
            return "reference_fails"
        return "solved_by_nothing" if await self._score(task, "", ctx) >= 1 else ""

    async def _score(self, task: Task, answer: str, ctx: SeekContext) -> float:
        found = await self.domain.score(task, answer, ctx)
        if not isfinite(found):  # kept with its round, it could never be reported
            raise Poison(f"the verifier of {self.domain.name} gave the score {found}")
        return found

    def _drawn(self, scenario: str, number: int, recent: set[str]) -> tuple[Proposal, ...]:
        proposals: list[Proposal] = []
        for draw in range(DRAWS * self.knobs.count):
            task = self.domain.draw(independent_seed(self.knobs.seed, scenario, number, draw))
            if len(proposals) < self.knobs.count and task.text not in recent:
                recent.add(task.text)
                proposals.append(Proposal(task))
        return tuple(proposals)

    async def _play(
        self, ctx: SeekContext, number: int, proposals: Sequence[Proposal]
    ) -> tuple[Match, ...]:
        matches = (
            self._match(ctx, number, place, one.task)
            for place, one in enumerate(proposals)
            if one.task is not None and not one.fault
        )
        return tuple(await together(matches))

    async def _match(self, ctx: SeekContext, number: int, place: int, task: Task) -> Match:
        """Play a task without and with its hint. A verifier that fails stops the round."""
        knobs, domain = self.knobs, self.domain
        plain, hinted = (
            [
                self._ask(
                    ctx,
                    "solver",
                    domain.solver_messages(task, hinted=hinted),
                    hinted=hinted,
                    round=number,
                    task=place,
                    play=play,
                )
                for play in range(plays)
            ]
            for hinted, plays in ((False, knobs.plays), (True, knobs.hint_plays))
        )
        asked = await together([*plain, *hinted])
        scores = await together(self._score(task, one.text, ctx) for one in asked)
        receipts = tuple(one.receipt for one in asked[: knobs.plays])
        return Match(place, receipts, tuple(scores[: knobs.plays]), tuple(scores[knobs.plays :]))

    async def _ask(
        self, ctx: SeekContext, role: Role, messages: Messages, *, hinted: bool = False, **at: int
    ) -> Asked:
        arm = {"arm": "hint"} if hinted else {}
        tags = {"role": role, **arm, **{name: str(number) for name, number in at.items()}}
        key = "-".join(tags.values())
        # A side call is recorded and is never experience.
        side = {"turn-type": "side"} if hinted else {}
        params = {**UNCUT, "temperature": self.knobs.temperature, **self.domain.sampling(role)}
        params["seed"] = independent_seed(self.knobs.seed, ctx.scenario, key)
        return await ctx.ask(messages, key=key, tags={**tags, **side}, **params)

    async def _report(self, ctx: SeekContext, number: int, pending: Pending) -> list[str]:
        """Report on the proposals and the plays. Returns the receipts that train."""
        played = pending.played(number)
        designers = [one for one in pending.proposals if one.receipt is not None]
        taught = self.knobs.share == "both"
        matches = pending.matches or ()
        units = sum(len(m.receipts) for m in matches) + (len(designers) if taught else 0)
        trained: list[str] = []

        def place(role: Role, group: str) -> dict[str, Any]:
            stated = {"algorithm": "self_play", "role": role, "round": number, "group": group}
            return {**stated, "number": len(trained), "units": units}

        for match in matches:
            for receipt, score in zip(match.receipts, match.plain, strict=True):
                await ctx.report(receipt, score, metadata=place("solver", str(match.proposal)))
                trained.append(receipt)
        for index, one in enumerate(pending.proposals):
            if one.receipt is None:
                continue
            stated = place("designer", DESIGNER)
            if not taught:
                del stated["number"], stated["units"]
            result = played.get(index)
            words = f"invalid: {one.fault}" if result is None else result.band
            regret = 0.0 if result is None else result.regret
            await ctx.report(one.receipt, regret, feedback=words, metadata=stated)
            if taught:
                trained.append(one.receipt)
        return trained

    def decide(self, waiting: Sequence[Unit], serving: LoadId) -> Decision:
        return oldest_round(waiting, serving, self.knobs)

    def evaluation(self) -> EvaluationPlan:
        # Held-out samples would leave gaps in the rounds. Name tasks in `serve.yaml` to compare.
        return EvaluationPlan(policy="always")

    def learner(self, model_path: Path) -> Learner:
        from recipes.self_play.learner import SelfPlayLearner  # torch: in the step process only

        return SelfPlayLearner(self.knobs, model_path)
