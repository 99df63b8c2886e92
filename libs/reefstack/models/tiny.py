"""A tiny Llama with random weights, equal on every machine, for tests and demonstrations."""

# 2 layers, hidden 64, a token for each byte and three ChatML tokens, head_dim 32 (the least that
# vLLM's CPU attention takes), an lm_head of its own so that an adapter on it can learn.

from collections.abc import Iterator
from pathlib import Path

from reefstack.models.hf_files import LlamaShape, Progress, write_model

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SEED = 20250
STD = 0.02

TINY = LlamaShape(
    vocab_size=259, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=1, head_dim=32, max_position_embeddings=2048,
    rope_theta=10_000.0, rms_norm_eps=1e-5, tie_word_embeddings=False,
    bos_token_id=257, eos_token_id=258, pad_token_id=258,
)  # fmt: skip


def write_tiny(directory: Path, progress: Progress) -> None:
    """Write the whole model directory."""
    import numpy as np
    from tokenizers import Tokenizer, models, pre_tokenizers

    progress("drawing weights", 0.0)
    draw = np.random.default_rng(SEED)
    tensors = {
        name: np.ones(size, np.float32)
        if len(size) == 1
        else draw.standard_normal(size, dtype=np.float32) * np.float32(STD)
        for name, size in _sizes(TINY)
    }
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate([*letters, *SPECIALS])}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    write_model(directory, TINY, tensors, tokenizer, specials=SPECIALS, system="")


def _sizes(shape: LlamaShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries = shape.num_attention_heads * shape.head_dim
    keys = shape.num_key_value_heads * shape.head_dim
    yield "model.embed_tokens.weight", (shape.vocab_size, hidden)
    for layer in range(shape.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (hidden,)
        for name, size in (("q", queries), ("k", keys), ("v", keys)):
            yield f"{prefix}self_attn.{name}_proj.weight", (size, hidden)
        yield prefix + "self_attn.o_proj.weight", (hidden, queries)
        yield prefix + "post_attention_layernorm.weight", (hidden,)
        yield prefix + "mlp.gate_proj.weight", (inner, hidden)
        yield prefix + "mlp.up_proj.weight", (inner, hidden)
        yield prefix + "mlp.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (shape.vocab_size, hidden)
