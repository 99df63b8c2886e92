"""Settings of the serving node (`REEF_ENGINE_…`)."""

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from reefcommon.settings import EnvironmentSettings


class Settings(EnvironmentSettings):
    """The node; unknown variables are ignored, since `REEF_ENGINE_URLS` is another's."""

    model_config = SettingsConfigDict(env_prefix="REEF_ENGINE_", protected_namespaces=())

    model_path: Path
    """A Hugging Face model directory (see `reefstack.models.prepare`)."""
    served_model_name: str = Field("reef", description="Name under which the model is served.")
    host: str = "127.0.0.1"
    """Loopback: without `REEF_ENGINE_API_KEY` the admin routes ask for no token."""
    port: int = Field(8901, ge=0, le=65535, description="Its own HTTP port; 0: any free one.")
    max_num_seqs: int = Field(32, ge=1, description="Choices that are generated at the same time.")
    max_model_len: int = Field(8192, ge=8)
    """Prompt plus completion, tokens. If it is not set, at most the model's own limit."""
    max_queued_requests: int = Field(default=256, ge=1)
    """Requests that may wait for a row before new ones get 503."""
    prefill_chunk_tokens: int = Field(default=256, ge=1)
    """Prompt tokens read between two decode steps: the bound on how long others wait."""
    background_chunk_tokens: int = Field(default=32, ge=1)
    """The same for prompts of background requests (`priority` above 0) while users are served."""
    background_share: float = Field(default=0.08, gt=0, lt=1)
    """Share of the time that background requests get while users are served."""
    background_linger_s: float = Field(default=0.1, ge=0)
    """Users count as present for this long after their last work."""
    text_timeout_s: float = Field(default=10.0, gt=0)
    """Longest time for the chat template and the tokenizer on one request."""
    max_loras: int = Field(8, ge=1, description="Adapters that may be loaded at the same time.")
    max_lora_rank: int = Field(64, ge=1, description="Rank of an adapter; above it: refused.")
    api_key: SecretStr = SecretStr("")
    """Bearer token that every route but `/health` and `/metrics` asks for; empty: none."""
    seed: int | None = None
    """Makes requests that bring no seed reproducible in order of arrival."""
    weight_version: str = Field("base", description="Name of the weights in `model_path`.")
    weight_transfer_timeout_s: float = Field(default=60.0, gt=0)
    """Longest wait for one step of a weight transfer (rendezvous, one tensor)."""
    torch_threads: int = Field(default=1, ge=1)
    """More than 1 is faster on an idle machine and many times slower on a busy machine."""
    log_level: str = Field("INFO", description="Level of its log.")
