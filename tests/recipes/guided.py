"""A tiny model that obeys a hint, and codes to learn without it.

A prompt is a letter; the answer is a code of digits. With `[` and digits behind the letter the model
copies these digits. Its share of right codes without a hint is a choice of the warm start.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from reefcommon.events import SampleReady
from reefcommon.ids import LoadId
from reefcommon.recipe import WeightRecipe, has_signal
from tests.recipes.bandit import ALL_LINEAR, AT, START, write_model

CHARACTERS = "0123456789abcdefghijklmno["
HINT = CHARACTERS.index("[")
TEMPLATE = "{prompt}[{demonstration}"
SKILL_A = {"a": "37", "b": "80", "c": "55", "d": "19"}
SKILL_B = {"e": "42", "f": "61", "g": "07", "h": "98"}
ADAPTER = {"lora_r": 32, "lora_alpha": 32, "target_modules": ALL_LINEAR, "policy_lr": 3e-3}
_CHAT = "{{ '<s>' }}{% for message in messages %}{{ message['content'] }}{% endfor %}"


def ids(text: str) -> tuple[int, ...]:
    return tuple(CHARACTERS.index(letter) for letter in text)


def text(tokens: Sequence[int]) -> str:
    return "".join(CHARACTERS[i] if i != START else "" for i in tokens)


def write_tokenizer(directory: Path) -> None:
    """One token a character, and a template that puts a start token before the words."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    vocabulary = {letter: i for i, letter in enumerate(CHARACTERS)} | {"<s>": START}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(_CHAT)
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<s>", "unk_token": "<s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(about))


def warm_start(
    directory: Path,
    *,
    right: Mapping[str, str] | None = None,
    share: float = 0.0,
    digits: int = 2,
    steps: int = 300,
    rows: int = 64,
) -> Path:
    """Train all weights: copy the hint; without a hint guess, and be right in `share` of the answers
    to the letters of `right`.
    """
    from transformers import LlamaForCausalLM

    write_tokenizer(write_model(directory))
    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32)
    torch.set_num_threads(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    draw = torch.Generator().manual_seed(11)
    wanted = {ids(k)[0]: torch.tensor(ids(v)) for k, v in (right or {}).items()}
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, 4 * (1 - step / steps))
        start = torch.full((rows, 1), START)
        codes = torch.randint(10, (rows, digits), generator=draw)
        letters = torch.randint(10, 25, (rows, 1), generator=draw)
        hinted = torch.cat([start, letters, torch.full((rows, 1), HINT), codes, codes], dim=1)
        guesses = torch.randint(10, (rows, digits), generator=draw)
        some = [*wanted] or list(range(10, 25))
        asked = torch.tensor(some)[torch.randint(len(some), (rows, 1), generator=draw)]
        knows = torch.rand(rows, generator=draw) < share
        for row in range(rows):
            if knows[row] and int(asked[row]) in wanted:
                guesses[row] = wanted[int(asked[row])]
        plain = torch.cat([start, asked, guesses, start.expand(-1, digits + 1)], dim=1)
        targets = torch.full_like(torch.cat([hinted, plain]), -100)
        targets[:rows, -digits:], targets[rows:, 2 : 2 + digits] = codes, guesses
        logits = model(torch.cat([hinted, plain])).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(directory)
    return directory


@torch.no_grad()
def rate(model: torch.nn.Module, codes: Mapping[str, str], *, hint: bool = False) -> float:
    """The probability of the right code, mean over the letters; with the hint in the prompt or not."""
    asked = [
        (START, *ids(one), *((HINT, *ids(code)) if hint else ())) for one, code in codes.items()
    ]
    said = torch.tensor([ids(code) for code in codes.values()])
    logits = model(input_ids=torch.cat([torch.tensor(asked), said], 1)).logits
    logp = torch.log_softmax(logits[:, len(asked[0]) - 1 : -1], -1)
    return float(logp.gather(-1, said[:, :, None]).sum(1).exp().mean())


@torch.no_grad()
def play(
    model: torch.nn.Module,
    codes: Mapping[str, str],
    letters: str,
    step: int,
    draw: torch.Generator,
    load: int = 0,
) -> list[SampleReady]:
    """A sampled answer to each letter, with its score (1 if the whole code is right) and its code as
    a demonstration.
    """
    tokens = torch.tensor([[START, *ids(letter)] for letter in letters])
    logps = []
    for _ in range(len(next(iter(codes.values())))):
        logp = torch.log_softmax(model(input_ids=tokens).logits[:, -1], dim=-1)
        token = torch.multinomial(logp.exp(), 1, generator=draw)
        logps.append(logp.gather(1, token))
        tokens = torch.cat([tokens, token], dim=1)
    rows = zip(letters, tokens.tolist(), torch.cat(logps, dim=1).tolist(), strict=True)
    return [
        SampleReady(
            event_id=f"smp-{step}-{i}",
            at=AT,
            scenario="codes",
            record_ids=(f"rec-{step}-{i}",),
            load_id=f"run:{load}",
            score=float(text(row[2:]) == codes[letter]),
            metadata={"demonstration": codes[letter]},
            tokens=tuple(row),
            prompt_length=2,
            loss_mask=(1,) * len(logp),
            logprobs=tuple(min(x, 0.0) for x in logp),
            messages=(
                {"role": "user", "content": letter},
                {"role": "assistant", "content": text(row[2:])},
            ),
            recorded_at=AT,
        )
        for i, (letter, row, logp) in enumerate(rows)
    ]


@dataclass
class Run:
    """A recipe at work: the rate of right codes after each step, and its learner."""

    learner: object
    rates: list[float] = field(default_factory=list)
    watched: list[float] = field(default_factory=list)
    reports: list[dict[str, float]] = field(default_factory=list)


def learn(
    recipe: WeightRecipe,
    model_path: Path,
    codes: Mapping[str, str],
    *,
    steps: int,
    seed: int,
    group: int = 1,
    learner: object = None,
    enough: float = 2.0,
    watch: Mapping[str, str] | None = None,
) -> Run:
    """Let a recipe learn from its own answers, through its own `signal`, `decide` and learner.

    `group` answers to each prompt stand side by side; at a rate of `enough` it ends. `watch`: codes
    that are measured and not trained.
    """
    run = Run(learner or recipe.learner(model_path))
    model = run.learner.policy.model  # type: ignore[attr-defined]
    draw = torch.Generator().manual_seed(seed)
    size = recipe.knobs.batch_size  # type: ignore[attr-defined]
    waiting: list[SampleReady] = []
    load = 0
    for step in range(steps):
        order = torch.randint(len(codes), (size // group,), generator=draw)
        letters = "".join([*codes][i] * group for i in order.tolist())
        waiting += [signalled(recipe, one) for one in play(model, codes, letters, step, draw, load)]
        decision = recipe.decide(waiting, LoadId("run", load))
        settled = {one.event_id for one in decision.batch}
        settled |= {one.event_id for one, _, _ in decision.refused}
        # The others wait, as they do in a host: the weights are still those that sampled them.
        waiting = [one for one in waiting if one.event_id not in settled]
        if decision.batch:
            run.reports.append(dict(run.learner.step(decision.batch).metrics))  # type: ignore[attr-defined]
            load += 1
        run.rates.append(rate(model, codes))
        if watch:
            run.watched.append(rate(model, watch))
        if run.rates[-1] >= enough:
            break
    return run


def signalled(recipe: WeightRecipe, unit: SampleReady) -> SampleReady:
    """The unit with the recipe's signal, as its host would hand it on."""
    if not has_signal(recipe):
        return unit
    return unit.model_copy(update={"signal": asyncio.run(recipe.signal(unit, None))})  # type: ignore[arg-type]
