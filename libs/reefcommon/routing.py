"""A routing policy: shares of sessions for releases of a scenario, and rules by tag.

A content of kind `routing` is this file alone: `routing.json`.
"""

# A session is sent by a hash of its scenario and name, so that every gateway sends it alike, now
# and after a restart, and none has to remember it. The hash is taken once for each release that
# may answer, and weighed with its share (rendezvous hashing): a share that grows takes sessions
# from the others, and moves none between these. The head is a release like the others, under a
# name that does not change, so that a new head moves no session either.

import hashlib
import math
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from reefcommon.errors import Poison
from reefcommon.settings import explain

FILE = "routing.json"
HEAD = "head"
MAX_RELEASES = 8  # each of them keeps its adapter loaded
_SUM_SLACK = 1e-9

ReleaseId = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[\x21-\x7e]+$")]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Rule(BaseModel):
    """Requests whose tag has this value (`*` fits any part) go to a release, or to `head`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tag: str = Field(min_length=1, max_length=100)
    value: str = Field(max_length=256)
    release: ReleaseId


class RoutingPolicy(BaseModel):
    """`shares`: of the sessions that no rule fits, by release; the head answers the others.

    The first rule that fits wins.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    shares: dict[ReleaseId, Share] = {}
    rules: tuple[Rule, ...] = Field((), max_length=100)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if sum(self.shares.values()) > 1 + _SUM_SLACK or HEAD in self.shares:
            raise ValueError("the shares must add up to at most 1; the head answers the rest")
        if len(self.releases) > MAX_RELEASES:
            raise ValueError(f"a policy may name at most {MAX_RELEASES} releases")
        return self

    @property
    def releases(self) -> tuple[str, ...]:
        """Return the releases that it names, without the head."""
        named = (*self.shares, *(rule.release for rule in self.rules))
        return tuple(dict.fromkeys(name for name in named if name != HEAD))

    @property
    def rest(self) -> float:
        """Return the share of the head."""
        return max(0.0, 1.0 - sum(self.shares.values()))

    def choose(self, scenario: str, session: str, tags: Mapping[str, str]) -> str:
        """Return the release of a session, or `head`."""
        for rule in self.rules:
            if rule.tag in tags and fnmatchcase(tags[rule.tag], rule.value):
                return rule.release
        return min(self._weighed(scenario, session), default=(0.0, HEAD))[1]

    def _weighed(self, scenario: str, session: str) -> Iterator[tuple[float, str]]:
        for release, share in (*self.shares.items(), (HEAD, self.rest)):
            if share > 0:
                yield -math.log(_uniform(scenario, session, release)) / share, release


def _uniform(*parts: str) -> float:
    """Return a number between 0 and 1, both excluded."""
    found = hashlib.blake2b("\x00".join(parts).encode(), digest_size=8).digest()
    return ((int.from_bytes(found) >> 12) + 0.5) / 2**52


def read_policy(tree: Path) -> RoutingPolicy:
    """Read a content. Raises Poison."""
    try:
        return RoutingPolicy.model_validate_json((tree / FILE).read_bytes())
    except OSError:  # absent, or a folder
        raise Poison(f"a routing policy is a file {FILE}") from None
    except ValidationError as error:
        raise Poison(f"not a routing policy: {explain(error)}") from None


def write_policy(policy: RoutingPolicy, tree: Path) -> None:
    (tree / FILE).write_text(policy.model_dump_json(indent=1) + "\n", encoding="utf-8")
