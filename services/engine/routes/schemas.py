"""Request bodies. Types are checked here, ranges in the domain."""
# Numbers are strict, as OpenAI's are: "0.5" or false for a temperature is an error of the client,
# and whatever it is taken for, the record says something else. Flags are read as vLLM reads them.
# Unknown fields are ignored; for known but unsupported fields see params.py.

from typing import Annotated, Any, TypeVar

from fastapi import Body
from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, StrictFloat, StrictInt
from typing_extensions import TypeAliasType

from services.engine.domain.messages import MAX_ENTRIES
from services.engine.domain.sampling import MAX_BIASES

T = TypeVar("T")

# A list ends at its first wrong entry: pydantic would describe each of a million, and no other
# request is served meanwhile.
Entries = TypeAliasType("Entries", Annotated[list[T], FailFast()], type_params=(T,))
# Each message and each tool costs time, however short it is.
Objects = Annotated[Entries[dict[str, Any]], Field(max_length=MAX_ENTRIES)]


def _few_biases(given: Any) -> Any:
    # Mappings have no FailFast.
    if isinstance(given, dict) and len(given) > MAX_BIASES:
        raise ValueError(f"logit_bias takes at most {MAX_BIASES} entries, got {len(given)}")
    return given


class StreamOptions(BaseModel):
    """OpenAI's `stream_options`."""

    include_usage: bool = False


class ResponseFormat(BaseModel):
    """Only `text` is served."""

    type: str = "text"


class SamplingFields(BaseModel):
    """Fields of all generating routes."""

    model_config = ConfigDict(extra="allow")

    n: StrictInt | None = None
    max_tokens: StrictInt | None = None
    min_tokens: StrictInt | None = None
    temperature: StrictFloat | None = None
    top_p: StrictFloat | None = None
    top_k: StrictInt | None = None
    min_p: StrictFloat | None = None
    seed: StrictInt | None = None
    stop: str | Entries[str] | None = None
    stop_token_ids: Entries[StrictInt] | None = None
    ignore_eos: bool | None = None
    frequency_penalty: StrictFloat | None = None
    presence_penalty: StrictFloat | None = None
    repetition_penalty: StrictFloat | None = None
    logit_bias: Annotated[dict[str, StrictFloat] | None, BeforeValidator(_few_biases)] = None
    allowed_token_ids: Entries[StrictInt] | None = None
    prompt_logprobs: StrictInt | None = None
    priority: StrictInt | None = None


class GenerationFields(SamplingFields):
    """Fields of OpenAI's two routes."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None


class TemplateFields(BaseModel):
    """Input of the chat template beside the messages."""

    tools: Objects | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None


class ChatRequest(TemplateFields, GenerationFields):
    """`POST /v1/chat/completions`."""

    messages: Objects
    max_completion_tokens: StrictInt | None = None
    logprobs: bool | None = None
    top_logprobs: StrictInt | None = None
    tool_choice: str | dict[str, Any] | None = None


class CompletionRequest(GenerationFields):
    """`POST /v1/completions`."""

    prompt: str | Entries[StrictInt] | Entries[Entries[StrictInt]] | Entries[str]
    logprobs: StrictInt | None = None
    echo: bool = False
    suffix: str | None = None


class TokenSampling(SamplingFields):
    """`sampling_params` of `POST /inference/v1/generate`."""

    logprobs: StrictInt | None = None


class GenerateRequest(BaseModel):
    """`POST /inference/v1/generate`: token ids in, token ids out."""

    token_ids: Entries[StrictInt]
    sampling_params: TokenSampling = Field(default_factory=TokenSampling)
    model: str | None = None
    request_id: str | None = None
    stream: bool | None = None


class TokenizeRequest(TemplateFields):
    """`POST /tokenize`, of a text or of a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Objects | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(BaseModel):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: Entries[StrictInt]


class LoadAdapterRequest(BaseModel):
    """`POST /v1/load_lora_adapter`."""

    lora_name: str = Field(min_length=1)
    lora_path: str = Field(min_length=1)
    load_inplace: bool = False


class TransferInit(BaseModel):
    """Address of the trainer, which is rank 0. This node's rank is `rank_offset`."""

    master_address: str
    master_port: int = Field(ge=1, le=65535)
    rank_offset: int = Field(default=1, ge=1)
    world_size: int = Field(default=2, ge=2)
    timeout_s: float | None = Field(default=None, gt=0, le=86_400)


class UpdateInfo(BaseModel):
    """Tensors in the order of their broadcast, or a path to safetensors."""

    names: list[str] = Field(default_factory=list)
    dtype_names: list[str] = Field(default_factory=list)
    shapes: list[list[int]] = Field(default_factory=list)
    packed: bool = False
    weights_path: str | None = None
    timeout_s: float | None = Field(default=None, gt=0, le=86_400)


# A string that is the only field of its body.
Named = Annotated[str, Body(embed=True, min_length=1)]
