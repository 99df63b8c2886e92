"""A harness recipe with a signal, for a host that runs as a process: each unit is judged on its words."""

from reefcommon.events import Signal
from reefcommon.harness.tree import HarnessRecipe, Mutation
from reefcommon.recipe import Decision, Dimensions


class JudgedRules(HarnessRecipe):
    """Two units whose words the judge calls better become a rule."""

    name = "judged_rules"
    summary = "for tests"
    dimensions = Dimensions(signal="a judge", evolves=("harness",))

    async def signal(self, unit, ctx):
        question = [{"role": "user", "content": f"{unit.event_id}: {unit.feedback}"}]
        (reply,) = await ctx.models["judge"].chat(question, purpose="vote")
        ctx.store.put("judged", ctx.store.get("judged", 0) + 1)
        return Signal(score=float(reply.text == "better"))

    def decide(self, waiting):
        good = tuple(unit for unit in waiting if unit.reward == 1.0)
        return Decision(batch=good[:2] if len(good) >= 2 else ())

    async def propose(self, ctx, tree, units, rejected):
        text = f"Judged: {units[0].feedback}"
        name = f"r{len(tree)}"
        return (Mutation("create", name, {"kind": "rules", "config": {"text": text}}, "judged"),)
