"""How a release follows from its parent and its cause."""

# Every field is derived, so that a repeat plans the same release.

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from reefcommon import releases
from reefcommon.artifacts import BASE_CONTENT_ID
from reefcommon.config import ServeConfig
from reefcommon.config_sections import RecipeBinding
from reefcommon.events import CandidateEvaluated, Operation, Partner, Release
from reefcommon.ids import LoadId, digest
from reefcommon.kinds import KINDS
from services.publisher.domain.work import NotPublished

_CARRIED = (
    "kind content_id operation adapter candidate_id partner metrics evaluation lineage reason"
)


def release_id(scenario: str, sequence: int, parent_id: str | None, cause: str) -> str:
    """Return `r<sequence>-<6 hex>`: another cause or parent gives another id."""
    return f"r{sequence}-{digest('release', scenario, parent_id, cause, length=6)}"


def creation(scenario: str, cause: str, incarnation: str, at: datetime) -> Release:
    load = str(LoadId(incarnation, 0))
    return Release(
        release_id=release_id(scenario, 0, None, f"{cause}:{incarnation}"),
        scenario=scenario,
        sequence=0,
        parent_id=None,
        kind="base",
        content_id=BASE_CONTENT_ID,
        contents={"base": BASE_CONTENT_ID},
        operation="creation",
        load_id=load,
        loads=dict.fromkeys(releases.GROUPS, load),
        adapter=releases.BASE_ADAPTER,
        created_at=at,
    )


def _follow(
    head: Release, cause: str, at: datetime, contents: Mapping[str, str], **fields: object
) -> Release:
    sequence = head.sequence + 1
    loads = _next_loads(head, contents)
    values = {
        "release_id": release_id(head.scenario, sequence, head.release_id, cause),
        "scenario": head.scenario,
        "sequence": sequence,
        "parent_id": head.release_id,
        "contents": contents,
        "load_id": loads["weights"],
        "loads": loads,
        "created_at": at,
    }
    return Release.model_validate({**values, **fields})


def _next_loads(head: Release, contents: Mapping[str, str]) -> dict[str, str]:
    loads = releases.loads_of(head)
    for group, load in loads.items():
        served = releases.group_contents(head.contents, group)
        if served != releases.group_contents(contents, group):
            before = LoadId.parse(load)
            loads[group] = str(LoadId(before.incarnation, before.sequence + 1))
    return loads


def from_candidate(head: Release, event: CandidateEvaluated) -> Release:
    """Return the release of a selected candidate on this head.

    Raises:
        NotPublished: it was compared with another head, or its kind cannot be served.
    """
    candidate = event.candidate
    compared = event.evaluation.head_release_id
    if compared != head.release_id:
        moved = f"compared with {compared}, but {head.release_id} is the head"
        raise NotPublished("conflicted", moved)
    if candidate.kind == "base":
        instead = "the base model is served as it is; roll back to a release of it instead"
        raise NotPublished("aborted", f"kind base: {instead}")
    if not candidate.content_id.startswith(f"{candidate.kind}-"):
        other = f"the content {candidate.content_id} of another kind"
        raise NotPublished("aborted", f"kind {candidate.kind} with {other}")
    cause = candidate.event_id
    operation: Operation = "training" if candidate.lineage.recipe else "manual"
    adapter = releases.BASE_ADAPTER
    if candidate.kind == "lora":
        rid = release_id(head.scenario, head.sequence + 1, head.release_id, cause)
        adapter = releases.adapter_name(head.scenario, rid)
    row = KINDS[candidate.kind]
    operation = row.operation or operation
    if not row.needs_nodes:
        adapter = head.adapter
    partner = None
    if (one := event.partner) is not None:
        about = {"kind": one.kind, "content_id": one.content_id}
        partner = Partner(candidate_id=one.event_id, **about)
    carried = ("kind", "content_id", "metrics", "lineage", "reason")
    return _follow(
        head,
        cause,
        event.at,
        _with_partner(releases.next_contents(head, candidate.kind, candidate.content_id), partner),
        **{name: getattr(candidate, name) for name in carried},
        operation=operation,
        adapter=adapter,
        candidate_id=candidate.event_id,
        partner=partner,
        evaluation=event.evaluation,
    )


def _with_partner(contents: dict[str, str], partner: Partner | None) -> dict[str, str]:
    return contents if partner is None else {**contents, partner.kind: partner.content_id}


def rolled_back(head: Release, target: Release, cause: str, at: datetime, reason: str) -> Release:
    """Return a new release with an old release's contents, under their adapter name.

    Raises:
        NotPublished: the target is the head.
    """
    if target.release_id == head.release_id:
        raise NotPublished("aborted", f"{target.release_id} is the head already")
    names = ("kind", "content_id", "adapter", "metrics", "lineage")
    kept = {name: getattr(target, name) for name in names}
    reason = reason or f"rolled back to {target.release_id}"
    return _follow(head, cause, at, target.contents, **kept, operation="rollback", reason=reason)


def promoted(
    head: Release, parent: Release | None, pending: Release, at: datetime, reason: str
) -> Release:
    """Return a pending release as it goes live on `head`, under its reviewed id.

    Changes of other kinds since its `parent` are kept.

    Raises:
        NotPublished: its own kind, or the base weights, changed since its parent.
    """
    kinds = [pending.kind, *([pending.partner.kind] if pending.partner is not None else [])]
    if not all(releases.may_follow("merge", parent, head, kind) for kind in kinds):
        base = f"{pending.release_id} was made from {pending.parent_id}"
        raise NotPublished("conflicted", f"{base}, but {head.release_id} is the head")
    changes: dict[str, Any] = {"release_id": pending.release_id, "operation": "promote"}
    if not KINDS[pending.kind].needs_nodes:
        changes["adapter"] = head.adapter
    if reason:
        changes["reason"] = reason
    contents = releases.next_contents(head, pending.kind, pending.content_id)
    contents = _with_partner(contents, pending.partner)
    if pending.kind != "routing":
        # A trial beside the head ends: the release is the head now.
        contents.pop("routing", None)
    return _follow(head, "", at, contents, **_carried(pending) | changes)


def rebased(release: Release, head: Release, cause: str) -> Release:
    """Return a rollback that lost a race, on the new head."""
    return _follow(head, cause, release.created_at, release.contents, **_carried(release))


def _carried(release: Release) -> dict[str, Any]:
    return {name: getattr(release, name) for name in _CARRIED.split()}


def needs_nodes(release: Release) -> bool:
    if release.operation in ("creation", "rollback"):
        return release.operation == "rollback"
    return KINDS[release.kind].needs_nodes


@dataclass(frozen=True, slots=True)
class NodeContents:
    """A node's base weights, and an adapter on top, if any."""

    base: str = BASE_CONTENT_ID
    adapter: str | None = None
    lora: str | None = None


def needed(release: Release) -> NodeContents:
    lora = release.contents["lora"] if release.adapter is not None else None
    return NodeContents(releases.base_weights(release), release.adapter, lora)


def adapters_of(found: Iterable[Release]) -> dict[str, str]:
    """Return the adapters of releases, with their contents."""
    return {r.adapter: r.contents["lora"] for r in found if r.adapter is not None}


def resident(chain: Sequence[Release]) -> dict[str, str]:
    """Return the adapters of a chain for the head's base weights, the head's first."""
    bases = [releases.base_weights(release) for release in chain]
    return adapters_of(r for r, base in zip(chain, bases, strict=True) if base == bases[0])


def check_one_scenario(planned: Release, before: str, others: Mapping[str, str]) -> None:
    """Check that nodes with full weights serve a single scenario.

    `before`: its present base weights; `others`: those of other scenarios.

    Raises:
        NotPublished: the nodes serve other scenarios.
    """
    # Full weights replace the base model of every node.
    changes = releases.base_weights(planned) != before
    if others and (changes or any(base != BASE_CONTENT_ID for base in others.values())):
        names = ", ".join(sorted(others)[:3])
        remedy = f"these serve {names} too: give the scenario nodes of its own"
        replaced = "full weights replace the model of every serving node"
        raise NotPublished("aborted", f"{replaced}, and {remedy}")


def needs_review(config: ServeConfig, scenario: str, own: Sequence[RecipeBinding]) -> bool:
    """Return whether a winner waits for review.

    `own`: its recipe's bindings. If there are none, the strictest of the scenario counts.
    """
    asked = own or [binding for binding in config.reef if binding.scenario == scenario]
    return any(binding.review == "manual" for binding in asked)
