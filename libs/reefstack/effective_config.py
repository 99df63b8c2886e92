"""The serve.yaml in force: the file, with the changes of the command line and the found ports."""

from collections.abc import Mapping
from typing import Any

import orjson
import yaml

from reefcommon.config import ServeConfig, parse
from reefcommon.errors import BadConfig


def override(config: ServeConfig, changes: Mapping[str, Mapping[str, Any]]) -> ServeConfig:
    """`config` with the values of `changes` (section -> key -> value) that are not None.

    Raises:
        BadConfig: a value is not allowed.
    """
    try:
        raw: dict[str, Any] = config.model_dump(mode="json", exclude_unset=True)
        for section, values in changes.items():
            if given := {key: value for key, value in values.items() if value is not None}:
                raw[section] = {**raw.get(section, {}), **given}
        text = orjson.dumps(raw).decode()  # YAML reads JSON
    except (ValueError, TypeError) as error:  # an alias of itself, an integer past 64 bits
        raise BadConfig(f"serve.yaml: a value cannot be written as JSON: {error}") from None
    return parse(text, source="serve.yaml with the options of the command line")


def to_yaml(config: ServeConfig) -> str:
    """`config` as text that reads back as the same configuration."""
    return yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True), sort_keys=False)
