"""A third kind of recipe for the host's tests: it counts the words of a batch. No service of its own."""

import json
from collections import Counter

from reefcommon.recipe import Decision, Dimensions, Recipe
from reefkit.jobs.ports import Executor, Produced


class WordsRecipe(Recipe):
    """Takes two samples at a time."""

    name = "words"
    summary = "for tests"
    dimensions = Dimensions(signal="words", evolves=("routing",))

    def decide(self, waiting):
        silent = [(sample, "no_words", None) for sample in waiting if not sample.feedback]
        said = tuple(sample for sample in waiting if sample.feedback)
        return Decision(batch=said[:2] if len(said) >= 2 else (), refused=tuple(silent))


class WordsExecutor(Executor):
    """`ran`: the jobs that were run, for the tests."""

    kind = "routing"
    once_per_record = True

    def __init__(self, binding, kit):
        self.recipe, self.ran = binding.recipe, []

    def decide(self, waiting, head):
        return self.recipe.decide(waiting)

    async def run(self, job, samples):
        self.ran.append(job.job_id)
        words = Counter(word for sample in samples for word in sample.feedback.split())
        if not words - Counter(["nothing"] * len(samples)):
            return Produced(reason="there are no words to count", end="finished")
        if "bad" in words:
            raise ValueError("words of a user")
        return Produced({"words": words}, {"words": float(len(words))}, reason="counted")

    def tree(self, job, scratch):
        (scratch / "words.json").write_text(json.dumps(job.output["words"], sort_keys=True))
        return scratch
