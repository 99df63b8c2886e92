"""A contextual bandit for a tiny Llama: four letters, each with a hidden two-digit answer; half a
point for each right digit.

`train` plays it through a recipe's own `decide` and learner, with the behaviour policy `lag`
releases behind.
"""

from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from reefcommon.events import SampleReady
from reefcommon.ids import LoadId
from reefcommon.recipe import WeightRecipe

START = 26  # after ten digits and sixteen letters
ANSWERS = {11: (3, 7), 14: (8, 0), 19: (5, 5), 23: (1, 9)}
ALL_LINEAR = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "lm_head",
)
AT = datetime(2026, 1, 1, tzinfo=UTC)


def write_model(directory: Path, start: int = START) -> Path:
    """A random Llama of about 80,000 weights, the same every time. `start`: its last token."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=start + 1,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        bos_token_id=start,
        eos_token_id=start,
        pad_token_id=start,
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        LlamaForCausalLM(config).save_pretrained(directory)
    return directory


def reward(letter: int, answer: Sequence[int]) -> float:
    """Half a point for each right digit."""
    return sum(
        0.5 for wanted, given in zip(ANSWERS[letter], answer, strict=True) if wanted == given
    )


@torch.no_grad()
def play(
    model: torch.nn.Module, letters: Sequence[int], generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two sampled tokens for each letter, and their log-probabilities: [B, 2] each."""
    ids = torch.tensor([[START, letter] for letter in letters])
    logps = []
    for _ in range(2):
        logp = torch.log_softmax(model(input_ids=ids).logits[:, -1], dim=-1)
        token = torch.multinomial(logp.exp(), 1, generator=generator)
        logps.append(logp.gather(1, token))
        ids = torch.cat([ids, token], dim=1)
    return ids[:, 2:], torch.cat(logps, dim=1)


def samples(
    model: torch.nn.Module,
    letters: Sequence[int],
    sequence: int,
    step: int,
    generator: torch.Generator,
) -> list[SampleReady]:
    """Scored rollouts as the experience service would hand them on."""
    tokens, logps = play(model, letters, generator)
    return [
        SampleReady(
            event_id=f"smp-{step}-{i}",
            at=AT,
            scenario="bandit",
            record_ids=(f"rec-{step}-{i}",),
            load_id=f"run:{sequence}",
            score=reward(letter, answer),
            tokens=(START, letter, *answer),
            prompt_length=2,
            loss_mask=(1, 1),
            logprobs=tuple(min(x, 0.0) for x in logp),
            recorded_at=AT,
        )
        for i, (letter, answer, logp) in enumerate(
            zip(letters, tokens.tolist(), logps.tolist(), strict=True)
        )
    ]


def train(
    recipe: WeightRecipe, model_path: Path, *, steps: int, seed: int, lag: int = 0, group: int = 1
) -> list[float]:
    """Mean reward of each step's batch. `group`: rollouts of one letter side by side."""
    learner = recipe.learner(model_path)
    model = learner.policy.model  # type: ignore[attr-defined]
    trainable = [p for p in model.parameters() if p.requires_grad]
    generator = torch.Generator().manual_seed(seed)
    history: deque[list[torch.Tensor]] = deque(maxlen=lag + 1)
    curve: list[float] = []
    waiting: list[SampleReady] = []
    size = recipe.knobs.batch_size  # type: ignore[attr-defined]
    for step in range(steps):
        history.append([p.detach().clone() for p in trainable])
        behind = len(history) - 1
        order = (
            torch.randint(4, (size // group,), generator=generator)
            .repeat_interleave(group)
            .tolist()
        )
        letters = [list(ANSWERS)[i] for i in order]
        played = _with(
            trainable,
            history[0],
            lambda n=step, b=behind, w=letters: samples(model, w, n - b, n, generator),
        )
        curve.append(sum(s.score or 0.0 for s in played) / len(played))
        waiting += played
        decision = recipe.decide(waiting, LoadId("run", step))
        settled = {s.event_id for s in decision.batch} | {
            s.event_id for s, _, _ in decision.refused
        }
        waiting = [s for s in waiting if s.event_id not in settled]
        if decision.batch:
            learner.step(decision.batch)
    return curve


def _with(trainable: list[torch.Tensor], old: list[torch.Tensor], act):
    """Run `act` under the weights of an earlier release."""
    now = [p.detach().clone() for p in trainable]
    with torch.no_grad():
        for p, value in zip(trainable, old, strict=True):
            p.copy_(value)
        result = act()
        for p, value in zip(trainable, now, strict=True):
            p.copy_(value)
    return result


def tenth(curve: Sequence[float], which: int) -> float:
    """Mean of one tenth of the curve: 0 the first, -1 the last."""
    size = max(len(curve) // 10, 1)
    part = curve[:size] if which == 0 else curve[-size:]
    return sum(part) / len(part)
