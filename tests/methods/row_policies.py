"""Policies of row patterns: a table, a model, and a linear copy of the model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from recipes.ttt_discover.advantages import entropic, fold_kl, informative, mean_baseline
from recipes.ttt_discover.examples.row_pattern.pattern import DIGITS, LENGTH
from recipes.ttt_discover.examples.row_pattern.problem import PROMPT
from recipes.ttt_discover.recipe import TTTDiscoverRecipe
from reefcommon.events import Sampling
from tests.recipes.seeking import Answer

RANK, ADAM = 32, (0.9, 0.95)
Array = np.ndarray


class Policy(Protocol):
    def draw(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[Answer]: ...
    def train(self, batch: Sequence[Any]) -> None: ...


class Table:
    """A distribution over the digits for each of the 18 places; Adam on the same advantages."""

    def __init__(self, arm: str, lr: float, kl: float) -> None:
        self.credit = entropic if arm == "entropic" else mean_baseline
        self.lr, self.kl, self.steps = lr, kl, 0
        self.weights = [np.zeros((LENGTH, len(DIGITS)))]
        self.moments: list[list[Array]] = []

    def logits(self) -> Array:
        return self.weights[0]

    def gradients(self, of_logits: Array) -> list[Array]:
        return [of_logits]

    def draw(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[Answer]:
        shares = self._shares()
        ends, places = shares.cumsum(axis=1), np.arange(LENGTH)
        answers = []
        for seed in seeds:
            uniform = np.random.default_rng(seed).random((LENGTH, 1)) * ends[:, -1:]
            chosen = (uniform >= ends).sum(axis=1)
            text = "".join(DIGITS[i] for i in chosen)
            logps = np.log(shares[places, chosen]).tolist()
            answers.append(Answer(text, {"tokens": (0, *chosen.tolist()), "prompt_length": 1,
                                         "loss_mask": (1,) * LENGTH,
                                         "logprobs": tuple(logps)}))  # fmt: skip
        return answers

    def train(self, batch: Sequence[Any]) -> None:
        groups: dict[int, list[Any]] = {}
        for unit in batch:
            groups.setdefault(unit.metadata["group"], []).append(unit)
        kept, _ = informative({g: [u.score for u in units] for g, units in groups.items()})
        units = [unit for group in kept for unit in groups[group]]
        credits_ = [a for g in kept for a in self.credit([u.score for u in groups[g]])]
        uniform = [[-np.log(len(DIGITS))] * LENGTH] * len(units)
        masks, drawn = [unit.loss_mask for unit in units], [unit.logprobs for unit in units]
        folded, _ = fold_kl(credits_, drawn, uniform, masks, self.kl)
        shares, gradient = self._shares(), np.zeros((LENGTH, len(DIGITS)))
        for unit, row in zip(units, folded, strict=True):
            gradient -= np.array(row)[:, None] * shares
            gradient[np.arange(LENGTH), list(unit.tokens[1:])] += row
        self._ascend(self.gradients(gradient))

    def _shares(self) -> Array:
        logits = self.logits()
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    def _ascend(self, gradients: Sequence[Array]) -> None:
        self.steps += 1
        self.moments = self.moments or [[0 * g, 0 * g] for g in gradients]
        for weight, both, gradient in zip(self.weights, self.moments, gradients, strict=True):
            for at, (decay, power) in enumerate(zip(ADAM, (1, 2), strict=True)):
                both[at] = decay * both[at] + (1 - decay) * gradient**power
            mean, scale = (x / (1 - d**self.steps) for x, d in zip(both, ADAM, strict=True))
            np.add(weight, self.lr * mean / (np.sqrt(scale) + 1e-8), out=weight)


class Linear(Table):
    """The model's mean hidden state of each place [18, H] under an adapter on the output layer."""

    def __init__(self, arm: str, lr: float, kl: float, seed: int, hidden: Array) -> None:
        super().__init__(arm, lr, kl)
        self.hidden, width = hidden, hidden.shape[1]
        drawn = np.random.default_rng(seed).uniform(-1, 1, (RANK, width)) / width**0.5
        self.weights = [drawn, np.zeros((len(DIGITS), RANK))]

    def logits(self) -> Array:
        inner, outer = self.weights
        return self.hidden @ inner.T @ outer.T

    def gradients(self, of_logits: Array) -> list[Array]:
        inner, outer = self.weights
        return [outer.T @ of_logits.T @ self.hidden, of_logits.T @ (self.hidden @ inner.T)]


class Model:
    """A served model under the recipe's own learner."""

    def __init__(self, recipe: TTTDiscoverRecipe, path: Path) -> None:
        from transformers import AutoTokenizer

        self.learner: Any = recipe.learner(path)
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.allowed = tuple(recipe.knobs.allowed_token_ids)
        assert [self.tokenizer.decode([i]) for i in self.allowed] == list(DIGITS)

    def draw(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[Answer]:
        answers: dict[int, Answer] = {}
        tokens = [self._tokens(prompt) for prompt in prompts]
        for length in sorted({len(row) for row in tokens}):
            rows = [i for i, row in enumerate(tokens) if len(row) == length]
            drawn = self._generate([tokens[i] for i in rows], [seeds[i] for i in rows])
            answers |= dict(zip(rows, drawn, strict=True))
        return [answers[i] for i in range(len(prompts))]

    def train(self, batch: Sequence[Any]) -> None:
        self.learner.step(batch)

    def _tokens(self, prompt: str) -> list[int]:
        messages = [{"role": "user", "content": prompt}]
        text = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _generate(self, prompts: list[list[int]], seeds: Sequence[int]) -> list[Answer]:
        import torch

        model = self.learner.policy.causal
        draws = torch.tensor(np.array([np.random.default_rng(s).random(LENGTH) for s in seeds]))
        ids, past = torch.tensor(prompts), None
        chosen, logps, fed = [], [], ids
        with torch.no_grad():
            for place in range(LENGTH):
                # By position: the cache's name differs between versions of transformers.
                out = model(fed, None, None, past, use_cache=True)
                past = out.past_key_values
                logp = torch.log_softmax(out.logits[:, -1, list(self.allowed)].double(), -1)
                ends = logp.exp().cumsum(-1)
                pick = torch.searchsorted(ends, draws[:, place : place + 1] * ends[:, -1:])
                chosen.append(pick)
                logps.append(logp.gather(1, pick))
                fed = torch.tensor(self.allowed)[pick]
        picks, logp = torch.cat(chosen, 1).tolist(), torch.cat(logps, 1).tolist()
        mask = Sampling(allowed_token_ids=self.allowed)
        return [
            Answer(
                "".join(DIGITS[i] for i in row),
                {
                    "tokens": (*prompt, *(self.allowed[i] for i in row)),
                    "prompt_length": len(prompt),
                    "loss_mask": (1,) * LENGTH,
                    "logprobs": tuple(min(x, 0.0) for x in scores),
                    "sampling": (mask,),
                },
            )
            for prompt, row, scores in zip(prompts, picks, logp, strict=True)
        ]

    def hidden(self, answers: int = 64) -> Array:
        """Return the mean last hidden state of each place [18, H] over answers by chance."""
        import torch

        prompt = self._tokens(PROMPT)
        draw = np.random.default_rng(0).integers(0, len(DIGITS), (answers, LENGTH))
        ids = torch.tensor([[*prompt, *(self.allowed[i] for i in row)] for row in draw.tolist()])
        with torch.no_grad():
            states = self.learner.policy.causal.model(ids).last_hidden_state
        found: Array = states[:, len(prompt) - 1 : -1].mean(0).double().numpy()
        return found
