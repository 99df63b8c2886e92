"""The tokens file: a YAML list of `{sha256, scopes, scenarios, requests_per_s, …}`.

`printf %s "$TOKEN" | sha256sum` makes a digest.
"""

from pathlib import Path

import yaml
from pydantic import TypeAdapter, ValidationError

from reefcommon.config import yaml_mistake
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
    """Read the tokens of a file; no file, no tokens. `default` limits tokens that state no limits.

    Raises:
        BadConfig: the file cannot be read, is empty, or a row is wrong.
    """
    if path is None:
        return Access(default=default)
    try:
        rows = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadConfig(
            f"gateway.tokens_file: cannot read {path}: {error.strerror or error}"
        ) from None
    except UnicodeDecodeError as error:
        raise BadConfig(
            f"gateway.tokens_file: cannot read {path}: it is not UTF-8 text (byte {error.start})"
        ) from None
    except yaml.YAMLError as error:
        raise BadConfig(
            f"gateway.tokens_file: {path} is not valid YAML: {yaml_mistake(error)}"
        ) from None
    try:
        tokens = _ROWS.validate_python(tuple(rows) if isinstance(rows, list) else rows)
    except ValidationError as error:
        raise BadConfig(
            f"gateway.tokens_file: {path}: {_mistakes(error)}. "
            "A row is {sha256: …, scopes: [infer, report, read, admin]}"
        ) from None
    if not tokens:
        raise BadConfig(
            f"gateway.tokens_file: {path} has no token; "
            "without this setting the gateway is open on loopback"
        )
    if len({token.sha256 for token in tokens}) < len(tokens):
        raise BadConfig(f"gateway.tokens_file: {path} has the same token twice; give it one row")
    return Access(tokens, default)


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
