"""Feedback rules: the words of users about bad answers become a rule of the harness."""

# report(score <= max_score, words) --normalise--> the same words min_agreement times
#     --create--> rules entry
#
# No model writes anything: users said whatever the harness says, and every rule can be traced to
# its reports. It is the first recipe to read: the whole path of a harness (window, proposal,
# admission, paired episodes, release) without tuning.
#
# signal      a score and a sentence in one report
# target      `rules` entries of the harness tree
# window      once `batch_size` reports wait, the first text that was said `min_agreement` times is
#             one proposal; at most `max_waiting` others go on waiting. Case, spacing and end marks
#             do not count.
# staleness   none. A rule among the last 25 rejected proposals is not tried again.
# run         reef serve -c recipes/feedback_rules/examples/greeting/serve.yaml
# expect      four reports that say the same give one candidate. If tasks score the wish, it wins
#             them and the next release carries the rule.

import re
import unicodedata
from collections.abc import Mapping, Sequence

from pydantic import Field

from reefcommon.events import Unit
from reefcommon.harness.tree import HarnessRecipe, Mutation, Rejection, Tree
from reefcommon.ids import digest
from reefcommon.recipe import Decision, Dimensions, Knobs, sift
from reefcommon.recipe_context import Context

RULE_PREFIX = "feedback-"


class FeedbackRulesKnobs(Knobs):
    batch_size: int = Field(4, ge=1, le=256)
    """reports with words that must wait before the recipe looks at them"""
    min_agreement: int = Field(3, ge=1, le=256)
    """reports that must say the same before it becomes a rule"""
    max_score: float = Field(0.0, description="a report counts only if its score is at most this")
    max_rule_chars: int = Field(280, ge=8, le=4000)
    """longer words are refused, not cut: half a sentence may mean another thing"""
    max_rules: int = Field(20, ge=1, le=100)
    """rules of this recipe in the tree; the oldest makes room for a new one"""
    max_waiting: int = Field(512, ge=1, le=5000)
    """reports that may wait for agreement; the oldest are refused past this"""


def words_of(sample: Unit) -> str:
    """Return the feedback of a report, or its `text`, on a single line."""
    said = sample.feedback.get("text") if isinstance(sample.feedback, Mapping) else sample.feedback
    return " ".join(said.split()) if isinstance(said, str) else ""


def normalise(words: str) -> str:
    """Return the canonical form of a sentence: case, spacing and end marks do not count."""
    even = " ".join(unicodedata.normalize("NFKC", words).casefold().split())
    return re.sub(r"^\W+|\W+$", "", even)


def unusable(sample: Unit, knobs: FeedbackRulesKnobs) -> str | None:
    """Return why a sample can never become a rule, or None."""
    if sample.score is None or sample.score > knobs.max_score:
        return "not_scored_low"
    if not normalise(words_of(sample)):
        return "no_words"
    return "words_too_long" if len(words_of(sample)) > knobs.max_rule_chars else None


def first_agreement(usable: Sequence[Unit], min_agreement: int) -> tuple[Unit, ...]:
    """Return all samples of the first text that was said `min_agreement` times."""
    same: dict[str, list[Unit]] = {}
    winner = None
    for sample in usable:
        text = normalise(words_of(sample))
        same.setdefault(text, []).append(sample)
        if winner is None and len(same[text]) >= min_agreement:
            winner = text
    return tuple(same[winner]) if winner is not None else ()


def rule_id(words: str) -> str:
    return RULE_PREFIX + digest("rule", normalise(words), length=16)


def rule_text(words: str) -> str:
    # The quotation marks are ours: the words cannot end the quotation.
    quoted = re.sub(r"[\"“”„«»]", "'", words)
    return f'Users asked for this, in their own words: "{quoted}"'


class FeedbackRulesRecipe(HarnessRecipe):
    name = "feedback_rules"
    summary = "what users keep saying about bad answers becomes a rule, in their own words"
    dimensions = Dimensions(signal="score and a sentence per report", evolves=("harness",))
    knobs_type = FeedbackRulesKnobs
    knobs: FeedbackRulesKnobs

    def decide(self, waiting: Sequence[Unit]) -> Decision:
        usable, refused = sift(waiting, lambda sample: unusable(sample, self.knobs))
        enough = len(usable) >= self.knobs.batch_size
        batch = first_agreement(usable, self.knobs.min_agreement) if enough else ()
        chosen = {sample.event_id for sample in batch}
        rest = [sample for sample in usable if sample.event_id not in chosen]
        too_many = max(0, len(rest) - self.knobs.max_waiting)
        expired = [(sample, "no_agreement", None) for sample in rest[:too_many]]
        return Decision(batch=batch, refused=(*refused, *expired))

    async def propose(
        self, ctx: Context, tree: Tree, units: Sequence[Unit], rejected: Sequence[Rejection]
    ) -> Sequence[Mutation]:
        new_id = rule_id(words_of(units[0]))
        lost = [mutation for rejection in rejected for mutation in rejection.mutations]
        tried = {mutation.id for mutation in lost if mutation.op == "create"}
        if new_id in tried or any(entry.id == new_id for entry in tree):
            return ()
        own = [entry.id for entry in tree if entry.id.startswith(RULE_PREFIX)]
        too_many = max(0, len(own) + 1 - self.knobs.max_rules)
        why = "the oldest rule makes room"
        room = [Mutation("remove", old, reason=why) for old in own[:too_many]]
        options = {"kind": "rules", "config": {"text": rule_text(words_of(units[0]))}}
        said = "a person asked for it"
        reason = (
            said if units[0].metadata.get("instruction") else f"{len(units)} reports said the same"
        )
        return (*room, Mutation("create", new_id, options, reason))
