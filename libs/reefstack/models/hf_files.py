"""The files of a Hugging Face model directory. No torch, no transformers."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reefstack.models.chat_template import chat_template

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from tokenizers import Tokenizer

Progress = Callable[[str, float], None]
# called as `progress(text, share)`, with a share from 0 to 1, in the working thread; must not block


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


_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32",
    "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0,
    "initializer_range": 0.02,
}  # fmt: skip
_TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>",
    "unk_token": "<|endoftext|>", "add_prefix_space": False, "clean_up_tokenization_spaces": False,
}  # fmt: skip


def write_model(
    directory: Path,
    shape: LlamaShape,
    tensors: "Mapping[str, npt.NDArray[np.float32]]",
    tokenizer: "Tokenizer",
    *,
    specials: Sequence[str],
    system: str,
) -> None:
    """Write all files; `config.json` comes last and marks the end.

    `tokenizer` is a byte-level one without its special tokens; `system` is used if a conversation
    has no system message.
    """
    from safetensors.numpy import save_file
    from tokenizers import AddedToken, decoders

    tokenizer.decoder = decoders.ByteLevel()
    added = [AddedToken(token, normalized=False, special=True) for token in specials]
    tokenizer.add_special_tokens(added)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(chat_template(system), encoding="utf-8")
    save_file(dict(tensors), directory / "model.safetensors", metadata={"format": "pt"})
    sizes, length = asdict(shape), {"model_max_length": shape.max_position_embeddings}
    rope = {"rope_type": "default", "rope_theta": shape.rope_theta}
    for name, value in {
        "tokenizer_config.json": _TOKENIZER_CONFIG | length,
        "generation_config.json": {k: v for k, v in sizes.items() if k.endswith("_token_id")},
        "config.json": _CONFIG | {"rope_parameters": rope, "use_cache": True} | sizes,
    }.items():
        text = json.dumps(value, indent=2, ensure_ascii=False)
        (directory / name).write_text(f"{text}\n", encoding="utf-8")
