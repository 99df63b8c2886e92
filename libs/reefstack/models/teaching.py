"""A short training of the tiny model. One thread, fixed seeds."""

# The weights may differ in the last bits between processors.

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reefstack.models.tiny import write_tiny

if TYPE_CHECKING:
    from torch import Tensor

Pair = tuple[list[dict[str, str]], str, bool]
"""Messages, the answer, and whether the answer ends there."""


def write_taught(
    directory: Path,
    steps: int,
    rate: float,
    pairs_of: Callable[[int], Sequence[Pair]],
    progress: Callable[[float], None],
) -> None:
    """Write the tiny model after `steps` on the pairs of each step. `progress` gets the share."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    write_tiny(directory, lambda _text, _share: None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
        for step in range(steps):
            progress(step / steps)
            ids, labels = _batch(tokenizer, pairs_of(step))
            model(input_ids=ids, labels=labels).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
    finally:
        torch.set_num_threads(threads)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def _batch(tokenizer: Any, pairs: Sequence[Pair]) -> "tuple[Tensor, Tensor]":
    import torch

    rows = []
    for messages, answer, ends in pairs:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompt = tokenizer.encode(text, add_special_tokens=False)
        said = tokenizer.encode(answer, add_special_tokens=False)
        rows.append((prompt, [*said, tokenizer.eos_token_id] if ends else said))
    width = max(len(prompt) + len(said) for prompt, said in rows)
    ids = torch.full((len(rows), width), tokenizer.pad_token_id)
    labels = torch.full((len(rows), width), -100)
    for row, (prompt, said) in enumerate(rows):
        # Padding on the right, after the last label: it changes nothing.
        ids[row, : len(prompt) + len(said)] = torch.tensor([*prompt, *said])
        labels[row, len(prompt) : len(prompt) + len(said)] = torch.tensor(said)
    return ids, labels
