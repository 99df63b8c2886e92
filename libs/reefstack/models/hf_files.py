"""The files of a Hugging Face model directory. No torch, no transformers."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Progress = Callable[[str, float], None]
# called as `progress(text, share)`, with a share from 0 to 1, in the working thread; must not block

BYTE_LEVEL_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Sizes of a Llama model; names follow transformers' `LlamaConfig`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write UTF-8 with an indent of two spaces and a final newline."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_config(directory: Path, shape: LlamaShape) -> None:
    """Write `config.json` and `generation_config.json`. They come last and mark the end."""
    sizes = asdict(shape)
    tokens = {name: size for name, size in sizes.items() if name.endswith("_token_id")}
    write_json(directory / "generation_config.json", tokens)
    write_json(
        directory / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": "float32",
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
            "use_cache": True,
            **sizes,
        },
    )


def write_tokenizer_config(directory: Path, *, model_max_length: int, template: str) -> None:
    """Write `tokenizer_config.json` and `chat_template.jinja` beside `tokenizer.json`."""
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": model_max_length,
        },
    )


def save_tokenizer(directory: Path, tokenizer: "Tokenizer", specials: Sequence[str]) -> None:
    """Write `tokenizer.json` of a byte-level tokenizer, with these special tokens."""
    from tokenizers import AddedToken, decoders

    tokenizer.decoder = decoders.ByteLevel()
    added = [AddedToken(token, normalized=False, special=True) for token in specials]
    tokenizer.add_special_tokens(added)
    tokenizer.save(str(directory / "tokenizer.json"))
