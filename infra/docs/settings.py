"""The tables of docs/settings.md: every setting of every service, read from the classes."""

import ast
import importlib
import itertools
import re
import sys
from pathlib import Path

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from infra.jobs import setup
from reefcommon.settings import SystemSettings
from reefstack import settings as stack
from reefstack.objectstore import settings as objectstore

ROOT = Path(__file__).parents[2]


def settings_classes() -> dict[str, type[BaseSettings]]:
    """Return every settings class by its owner: all services, each service, setup, `reef serve`."""
    found: dict[str, type[BaseSettings]] = {"all services": SystemSettings}
    for path in sorted((ROOT / "services").glob("*/settings.py")):
        module = importlib.import_module(f"services.{path.parent.name}.settings")
        found[path.parent.name] = module.Settings
    found |= {"setup": setup.Settings, "reef serve": stack.Settings}
    return {**found, "object store": objectstore.Settings}


def variables(settings: type[BaseSettings]) -> dict[str, FieldInfo]:
    # Variables are the prefix of the class and the name of the field, in capitals.
    prefix = str(settings.model_config.get("env_prefix", ""))
    return {prefix + name.upper(): field for name, field in settings.model_fields.items()}


def settings_table(settings: type[BaseSettings]) -> str:
    texts = _attribute_texts(settings)
    rows = ["| variable | default | what it says |", "|---|---|---|"]
    for (variable, field), name in zip(
        variables(settings).items(), settings.model_fields, strict=True
    ):
        text = field.description or texts.get(name, "")
        rows.append(f"| `{variable}` | {_default(field)} | {text.replace('|', '/')} |")
    return "\n".join(rows)


def section() -> str:
    return "\n\n".join(
        f"#### {owner}\n\n{settings_table(found)}" for owner, found in settings_classes().items()
    )


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "required"
    return "" if value in (None, "") else f"`{value}`"


def _attribute_texts(settings: type[BaseSettings]) -> dict[str, str]:
    source = Path(str(sys.modules[settings.__module__].__file__)).read_text(encoding="utf-8")
    body = next(
        node.body
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef) and node.name == settings.__name__
    )
    found = {}
    for field, below in itertools.pairwise(body):
        # A text below a field is no docstring to Python: only the source has it.
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
        ):
            text = ast.literal_eval(below.value)
            found[field.target.id] = re.sub(r"\s+", " ", str(text))
    return found
