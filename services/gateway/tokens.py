"""The tokens file: a YAML list of `{sha256, scopes, scenarios, requests_per_s, …}`. `printf %s "$TOKEN" | sha256sum` makes a digest."""

from pathlib import Path

import yaml
from pydantic import TypeAdapter, ValidationError

from reefcommon.errors import BadConfig
from reefcommon.settings import explain
from services.gateway.domain.access import Access, Token
from services.gateway.domain.rate import NO_LIMIT, Limit

_ROWS = TypeAdapter(tuple[Token, ...])


def read(path: Path | None, default: Limit = NO_LIMIT) -> Access:
    """The tokens of a file; none where there is no file. `default` limits those that state no limits of their own.

    Raises:
        BadConfig: the file cannot be read, is empty, or a row is wrong.
    """
    if path is None:
        return Access(default=default)
    try:
        rows = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise BadConfig(f"gateway.tokens_file: cannot read {path}: {error}") from None
    try:
        tokens = _ROWS.validate_python(tuple(rows) if isinstance(rows, list) else rows)
    except ValidationError as error:
        # The values are digests of secrets: show where, not what.
        where = "; ".join(f"row {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_input=False, include_url=False))
        raise BadConfig(
            f"gateway.tokens_file: {path}: {where or explain(error)}. A row is {{sha256: …, scopes: [infer, report, read, admin]}}"
        ) from None
    if not tokens:
        raise BadConfig(f"gateway.tokens_file: {path} has no token; without this setting the gateway is open on loopback")
    if len({token.sha256 for token in tokens}) < len(tokens):
        raise BadConfig(f"gateway.tokens_file: {path} has the same token twice; which of its rows counts would be a matter of luck")
    return Access(tokens, default)
