"""The tables of docs/settings.md, read from the classes."""

import importlib
from pathlib import Path

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from infra.docs.markdown import table
from infra.jobs import setup
from reefcli.field_words import default
from reefcommon.meanings import meaning
from reefcommon.settings import SystemSettings, prefix_of
from reefstack import settings as stack
from reefstack.objectstore import settings as objectstore

ROOT = Path(__file__).parents[2]


def settings_classes() -> dict[str, type[BaseSettings]]:
    """Return the settings classes by owner: all services, each service, setup, `reef serve`."""
    found: dict[str, type[BaseSettings]] = {"all services": SystemSettings}
    for path in sorted((ROOT / "services").glob("*/settings.py")):
        module = importlib.import_module(f"services.{path.parent.name}.settings")
        found[path.parent.name] = module.Settings
    found |= {"setup": setup.Settings, "reef serve": stack.Settings}
    return {**found, "object store": objectstore.Settings}


def variables(settings: type[BaseSettings]) -> dict[str, FieldInfo]:
    # Variables are the prefix of the class and the name of the field, in capitals.
    prefix = prefix_of(settings)
    return {prefix + name.upper(): field for name, field in settings.model_fields.items()}


def settings_table(settings: type[BaseSettings]) -> str:
    rows = [
        (
            f"`{prefix_of(settings)}{name.upper()}`",
            default(field),
            meaning(settings, name).replace("|", "/"),
        )
        for name, field in settings.model_fields.items()
    ]
    return table(("variable", "default", "what it says"), rows)


def section() -> str:
    return "\n\n".join(
        f"#### {owner}\n\n{settings_table(found)}" for owner, found in settings_classes().items()
    )
