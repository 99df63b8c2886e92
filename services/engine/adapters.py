"""The adapters that are served by name."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from services.engine.domain.errors import InvalidRequestError, NotServedError
from services.engine.lora import Adapter, AdapterError, Shapes, load_adapter
from services.engine.settings import Settings

log = structlog.get_logger(__name__)


@dataclass
class AdapterRegistry:
    """Loaded adapters by name, at most `max_loras`."""

    # A request holds its adapter itself: unloading does not disturb it, and the memory is freed
    # when its last request ends.

    settings: Settings
    shapes: Shapes
    _loaded: dict[str, Adapter] = field(default_factory=dict, init=False)

    def loaded(self) -> list[Adapter]:
        return list(self._loaded.values())

    def resolve(self, model: str | None) -> Adapter | None:
        """The adapter that `model` names; None for the base model. Raises `NotServedError`."""
        if not model or model == self.settings.served_model_name:
            return None
        adapter = self._loaded.get(model)
        if adapter is None:
            raise NotServedError("model", f"The model `{model}` does not exist.")
        return adapter

    def load(self, name: str, path: str, *, in_place: bool, base_version: str) -> Adapter:
        """Read an adapter from its directory and serve it. Blocks on the disk.

        With `in_place` it replaces its namesake; requests in flight keep the old.

        Raises `InvalidRequestError`, or `NotServedError` if the path holds no adapter.
        """
        self._check_room(name, in_place=in_place)
        try:
            adapter = load_adapter(name, Path(path), self.shapes, self.settings.max_lora_rank)
        except AdapterError as error:
            if str(error).startswith("No adapter found"):
                raise NotServedError("lora_path", str(error)) from error
            raise InvalidRequestError("lora_path", str(error)) from error
        self._check_room(name, in_place=in_place)
        adapter = self._loaded[name] = replace(adapter, base_version=base_version)
        log.info("adapter_loaded", name=name, path=path, rank=adapter.rank)
        return adapter

    def unload(self, name: str) -> None:
        """Stop serving an adapter. Raises `NotServedError`."""
        if self._loaded.pop(name, None) is None:
            raise NotServedError("lora_name", f"The lora adapter '{name}' cannot be found.")
        log.info("adapter_unloaded", name=name)

    def _check_room(self, name: str, *, in_place: bool) -> None:
        if name == self.settings.served_model_name:
            raise InvalidRequestError("lora_name", f"'{name}' is the name of the base model")
        if name in self._loaded:
            if not in_place:
                advice = "If you want to load the adapter in place, set 'load_inplace' to True."
                message = f"The lora adapter '{name}' has already been loaded. {advice}"
                raise InvalidRequestError("lora_name", message)
        elif len(self._loaded) >= (most := self.settings.max_loras):
            msg = f"{most} adapters are loaded, the most that max_loras allows: unload one"
            raise InvalidRequestError("lora_name", msg)
