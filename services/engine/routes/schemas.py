"""Request bodies. Types are checked here, ranges in the domain.

Numbers are strict, as OpenAI's are: text, booleans and 1.0 for an integer are refused, since a
request that means something else than it says is sampled from another distribution. Flags are
read as vLLM reads them. An unknown field is ignored, but see `params.UNSUPPORTED`.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt


class StreamOptions(BaseModel):
    """OpenAI's `stream_options`."""

    include_usage: bool = False


class ResponseFormat(BaseModel):
    """Only `text` is served; the rest is refused with a reason."""

    type: str = "text"


class SamplingFields(BaseModel):
    """What all generating routes take."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    n: StrictInt | None = None
    max_tokens: StrictInt | None = None
    min_tokens: StrictInt | None = None
    temperature: StrictFloat | None = None
    top_p: StrictFloat | None = None
    top_k: StrictInt | None = None
    min_p: StrictFloat | None = None
    seed: StrictInt | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[StrictInt] | None = None
    ignore_eos: bool | None = None
    frequency_penalty: StrictFloat | None = None
    presence_penalty: StrictFloat | None = None
    repetition_penalty: StrictFloat | None = None
    logit_bias: dict[str, StrictFloat] | None = None
    prompt_logprobs: StrictInt | None = None
    priority: StrictInt | None = None


class GenerationFields(SamplingFields):
    """What the two OpenAI routes share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None


class ChatRequest(GenerationFields):
    """`POST /v1/chat/completions`."""

    messages: list[dict[str, Any]]
    max_completion_tokens: StrictInt | None = None
    logprobs: bool | None = None
    top_logprobs: StrictInt | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionRequest(GenerationFields):
    """`POST /v1/completions`."""

    prompt: str | list[StrictInt] | list[list[StrictInt]] | list[str]
    logprobs: StrictInt | None = None
    echo: bool = False
    suffix: str | None = None


class TokenSampling(SamplingFields):
    """`sampling_params` of `POST /inference/v1/generate`."""

    logprobs: StrictInt | None = None


class GenerateRequest(BaseModel):
    """`POST /inference/v1/generate`: token ids in, token ids out."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    token_ids: list[StrictInt]
    sampling_params: TokenSampling = Field(default_factory=TokenSampling)
    model: str | None = None
    request_id: str | None = None
    stream: bool | None = None


class TokenizeRequest(BaseModel):
    """`POST /tokenize`: of a text, or of a conversation as the chat route would render it."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(BaseModel):
    """`POST /detokenize`."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    model: str | None = None
    tokens: list[StrictInt]


class LoadAdapterRequest(BaseModel):
    """`POST /v1/load_lora_adapter`."""

    lora_name: str = Field(min_length=1)
    lora_path: str = Field(min_length=1)
    load_inplace: bool = False


class UnloadAdapterRequest(BaseModel):
    """`POST /v1/unload_lora_adapter`."""

    lora_name: str = Field(min_length=1)


class TransferInit(BaseModel):
    """Where the trainer waits. This node's rank is `rank_offset`; rank 0 is the trainer and hosts the store."""

    master_address: str
    master_port: int = Field(ge=1, le=65535)
    rank_offset: int = Field(default=1, ge=1)
    world_size: int = Field(default=2, ge=2)
    timeout_s: float | None = Field(default=None, gt=0)


class InitTransferRequest(BaseModel):
    """`POST /init_weight_transfer_engine`."""

    init_info: TransferInit


class UpdateInfo(BaseModel):
    """Tensors in the order in which they are broadcast; or a directory (or file) of safetensors to read instead."""

    names: list[str] = Field(default_factory=list)
    dtype_names: list[str] = Field(default_factory=list)
    shapes: list[list[int]] = Field(default_factory=list)
    packed: bool = False
    weights_path: str | None = None
    timeout_s: float | None = Field(default=None, gt=0)


class UpdateWeightsRequest(BaseModel):
    """`POST /update_weights`."""

    update_info: UpdateInfo


class FinishUpdateRequest(BaseModel):
    """`POST /finish_weight_update`."""

    weight_version: str = Field(min_length=1)


class NewVersionRequest(BaseModel):
    """`POST /update_weight_version`."""

    new_version: str = Field(min_length=1)


PauseName = Literal["abort", "wait", "keep"]
