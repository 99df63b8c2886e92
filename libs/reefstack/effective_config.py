"""The serve.yaml in force: the file, with the changes of the command line and the found ports."""

from collections.abc import Mapping
from typing import Any

import yaml

from reefcommon.config import ServeConfig, parse


def override(config: ServeConfig, changes: Mapping[str, Mapping[str, Any]]) -> ServeConfig:
    """`config` with the values of `changes` (section -> key -> value) that are not None.

    Raises:
        BadConfig: a value is not allowed.
    """
    raw: dict[str, Any] = config.model_dump(mode="json", exclude_unset=True)
    for section, values in changes.items():
        given = {key: value for key, value in values.items() if value is not None}
        if given:
            raw[section] = {**raw.get(section, {}), **given}
    return parse(
        yaml.safe_dump(_plain(raw)), source="serve.yaml with the options of the command line"
    )


def to_yaml(config: ServeConfig) -> str:
    """`config` as text that reads back as the same configuration."""
    return yaml.safe_dump(
        _plain(config.model_dump(mode="json", exclude_unset=True)), sort_keys=False
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
