"""The adapters that are served by name. Requests hold their adapter itself, so unloading never disturbs them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import structlog

from services.engine.domain.errors import InvalidRequestError, NotServedError
from services.engine.lora import Adapter, AdapterError, load_adapter

log = structlog.get_logger(__name__)


class AdapterRegistry:
    """Name -> loaded adapter, at most `limit`. An unloaded adapter's memory goes with its last request."""

    def __init__(
        self, *, base_name: str, shapes: Mapping[str, tuple[int, int]], limit: int, max_rank: int
    ) -> None:
        self._base_name = base_name
        self._shapes = shapes
        self._limit = limit
        self._max_rank = max_rank
        self._loaded: dict[str, Adapter] = {}

    def loaded(self) -> list[Adapter]:
        """In order of loading."""
        return list(self._loaded.values())

    def resolve(self, model: str | None) -> Adapter | None:
        """The adapter that a request's `model` names; None for the base. Raises `NotServedError`."""
        if not model or model == self._base_name:
            return None
        adapter = self._loaded.get(model)
        if adapter is None:
            raise NotServedError("model", f"The model `{model}` does not exist.")
        return adapter

    def load(self, name: str, path: str, *, in_place: bool, base_version: str) -> Adapter:
        """Read an adapter from its directory and serve it; blocks on the disk.

        `in_place` replaces one of the same name: requests in flight finish on the old. Raises `InvalidRequestError`
        (name taken, no room, unfit adapter) or `NotServedError` (no adapter at that path).
        """
        self._check_room(name, in_place=in_place)
        try:
            adapter = replace(
                load_adapter(name, Path(path), self._shapes, self._max_rank),
                base_version=base_version,
            )
        except AdapterError as error:
            if str(error).startswith("No adapter found"):
                raise NotServedError("lora_path", str(error)) from error
            raise InvalidRequestError("lora_path", str(error)) from error
        self._check_room(name, in_place=in_place)
        self._loaded[name] = adapter
        log.info("adapter_loaded", name=name, path=path, rank=adapter.rank)
        return adapter

    def unload(self, name: str) -> None:
        """Serve it no longer. Raises `NotServedError`."""
        if self._loaded.pop(name, None) is None:
            raise NotServedError("lora_name", f"The lora adapter '{name}' cannot be found.")
        log.info("adapter_unloaded", name=name)

    def _check_room(self, name: str, *, in_place: bool) -> None:
        if name == self._base_name:
            raise InvalidRequestError("lora_name", f"'{name}' is the name of the base model")
        if name in self._loaded:
            if not in_place:
                msg = (
                    f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, "
                    "set 'load_inplace' to True."
                )
                raise InvalidRequestError("lora_name", msg)
        elif len(self._loaded) >= self._limit:
            msg = f"{self._limit} adapters are loaded, which is the most this server holds (max_loras): unload one first"
            raise InvalidRequestError("lora_name", msg)
