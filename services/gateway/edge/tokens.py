"""The tokens file: YAML rows `{sha256, scopes, scenarios, requests_per_s, …}`.

`printf %s "$TOKEN" | sha256sum` makes a digest.
"""

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from reefcommon.config import read_yaml
from reefcommon.errors import BadConfig
from services.gateway.domain.access import SCOPES, Access, Token
from services.gateway.domain.rate import NO_LIMIT, Limit

_ROWS = TypeAdapter(tuple[Token, ...])
_WORDS = {
    "string_pattern_mismatch": 'not the 64 digits that `printf %s "$TOKEN" | sha256sum` prints',
    "too_short": "names no scope",
    "literal_error": f"a scope is {', '.join(map(repr, SCOPES[:-1]))} or {SCOPES[-1]!r}",
    "missing": "missing",
    "extra_forbidden": f"unknown key; there are {', '.join(Token.model_fields)}",
}


def read(path: Path | None, default: Limit = NO_LIMIT) -> Access:
    """Read the tokens of a file (None: no tokens). `default` fills limits.

    Raises:
        BadConfig: the file cannot be read, is empty, or a row is wrong.
    """
    if path is None:
        return Access(default=default)
    try:
        rows = read_yaml(path)
        tokens = _ROWS.validate_python(tuple(rows) if isinstance(rows, list) else rows)
    except BadConfig as error:
        words = str(error)
    except ValidationError as error:
        row = "A row is {sha256: …, scopes: [infer, report, read, admin]}"
        words = f"{path}: {_mistakes(error)}. {row}"
    else:
        if tokens and len({token.sha256 for token in tokens}) == len(tokens):
            return Access(tokens, default)
        words = f"{path} has no token; without this setting the gateway is open on loopback"
        if tokens:
            words = f"{path} has the same token twice; give it one row"
    raise BadConfig(f"gateway.tokens_file: {words}")


def _mistakes(error: ValidationError) -> str:
    # places and rules only: the values are digests of secrets
    found = error.errors(include_input=False, include_url=False)
    places = [item["loc"] for item in found]
    return "; ".join(
        ("row " + ".".join(map(str, item["loc"])) if item["loc"] else "the file")
        + f": {_WORDS.get(item['type'], item['msg'])}"
        for item in found
        # a scope that nobody knows leaves an empty list behind, which is no mistake of its own
        if not (item["type"] == "too_short" and any(place[:-1] == item["loc"] for place in places))
    )
