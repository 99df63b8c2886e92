"""The meaning of a settings field, read from the source when it is asked for.

pydantic's `use_attribute_docstrings` reads the source while the class is made. That is a tenth of
the time that a service takes to import.
"""

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise

from pydantic import BaseModel


def meaning(model: type[BaseModel], name: str) -> str:
    """Return the description of a field, or the string below it, or ""."""
    texts = (_strings(cls).get(name) for cls in model.__mro__)
    text = model.model_fields[name].description or next(filter(None, texts), "")
    return " ".join(text.split())


@cache
def _strings(cls: type) -> dict[str, str]:
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    # Made without a file, or built in; or a text of it goes further left than the class.
    except (OSError, TypeError, SyntaxError):
        return {}
    found: dict[str, str] = {}
    assert isinstance(definition, ast.ClassDef)
    for field, below in pairwise(definition.body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = text
    return found
