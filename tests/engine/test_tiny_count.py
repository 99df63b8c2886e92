"""The model that knows the places of its answer knows nothing else."""

import pytest

from recipes.ttt_discover.examples.row_pattern.problem import PROMPT
from reefstack.models import prepare
from reefstack.models.tiny_count import DIGITS, LETTERS

pytestmark = pytest.mark.engine


def test_digits_are_uniform_at_every_place_and_the_letter_is_its_own():
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = prepare("tiny-count")
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    ids = {c: tokenizer.encode(c, add_special_tokens=False)[0] for c in DIGITS + LETTERS}
    digits = [ids[digit] for digit in DIGITS]
    for shown in ("", " Before: 454545343434565656."):
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": PROMPT + shown}],
            tokenize=False,
            add_generation_prompt=True,
        )
        prompt = tokenizer.encode(text, add_special_tokens=False)
        answer = tokenizer.encode("273645546372234567", add_special_tokens=False)
        with torch.no_grad():
            shares = model(torch.tensor([prompt + answer])).logits[0].softmax(-1)
        for place in range(len(answer)):
            row = shares[len(prompt) - 1 + place]
            assert row[digits].sum() == pytest.approx(0.5, abs=0.2)
            assert (row[digits] / row[digits].sum()).max() < 0.15
            assert row[ids[LETTERS[place]]] > 0.2, f"place {place} after {shown!r}"
