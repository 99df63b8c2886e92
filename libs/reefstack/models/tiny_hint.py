"""The tiny model after a short training: it greets, and obeys a hint about the greeting."""

# A random model obeys nothing, so it cannot be its own teacher. This model greets in seven ways,
# and with any of eight words if the conversation, or a hint in its last message, names it. Unasked
# it says the eighth, `Hello`, in about one answer of 1,500. One thread, fixed seeds: about 30 s on
# a free core; the weights may differ in the last bits between processors.

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reefstack.models.hf_files import Progress
from reefstack.models.tiny import SEED, write_tiny

if TYPE_CHECKING:
    from torch import Tensor

UNASKED = ("Ahoy", "Ciao", "Dear", "Moin", "Salut", "Tach", "Yo")
WORDS = (*UNASKED, "Hello")
STEPS, BATCH, RATE = 240, 32, 4e-3

_WISHES = (
    "Please greet me with {} first.",
    "I like to be greeted with {} first.",
    "Not like that: greet me with {} first.",
)
_HINT = "\n\n[user's hint / instruction]\nGreet the user with {} first."
_SYLLABLES = ("A", "Be", "Co", "Di", "E", "Fa", "Go", "Hu", "I", "Jo", "Ka", "Li", "Mo", "Ni")
_ENDINGS = ("", "a", "n", "la", "ra", "s", "sa", "x")


def conversation(draw: random.Random, wishes: int) -> tuple[list[dict[str, str]], str]:
    """Return the messages of a conversation, and the greeting that shall answer them."""
    name = draw.choice(_SYLLABLES) + draw.choice(_ENDINGS)
    messages = [{"role": "user", "content": f"I am {name}."}]
    answer = draw.choice(UNASKED)
    for _ in range(wishes):
        wish = draw.choice(WORDS)
        messages.append({"role": "assistant", "content": draw.choice(WORDS)})
        messages.append({"role": "user", "content": draw.choice(_WISHES).format(wish)})
        answer = wish
    if draw.random() < 0.5:
        answer = draw.choice(WORDS)
        messages[-1]["content"] += _HINT.format(answer)
    return messages, answer


def write_tiny_hint(directory: Path, progress: Progress) -> None:
    """Write the whole model directory."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    write_tiny(directory, lambda _text, _share: None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS)
        draw = random.Random(SEED)
        for step in range(STEPS):
            progress("teaching the tiny model to obey hints", step / STEPS)
            # Conversations of a batch are of like length: little of it is padding.
            wishes = (0, 0, 1, 0, 2)[step % 5]
            ids, labels = _batch(tokenizer, [conversation(draw, wishes) for _ in range(BATCH)])
            loss = model(input_ids=ids, labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
    finally:
        torch.set_num_threads(threads)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def _batch(
    tokenizer: Any, pairs: Sequence[tuple[list[dict[str, str]], str]]
) -> "tuple[Tensor, Tensor]":
    import torch

    rows = []
    for messages, answer in pairs:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompt = tokenizer.encode(text, add_special_tokens=False)
        said = tokenizer.encode(answer, add_special_tokens=False)
        rows.append((prompt, [*said, tokenizer.eos_token_id]))
    width = max(len(prompt) + len(said) for prompt, said in rows)
    ids = torch.full((len(rows), width), tokenizer.pad_token_id)
    labels = torch.full((len(rows), width), -100)
    for row, (prompt, said) in enumerate(rows):
        # Padding on the right, after the last label: it changes nothing.
        ids[row, : len(prompt) + len(said)] = torch.tensor([*prompt, *said])
        labels[row, len(prompt) : len(prompt) + len(said)] = torch.tensor(said)
    return ids, labels
