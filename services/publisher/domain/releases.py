"""How a release follows from its parent and from what caused it. Everything is derived, so that a repeat plans the same release."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from reefcommon.artifacts import BASE_CONTENT_ID
from reefcommon.config import RecipeBinding, ServeConfig
from reefcommon.events import CandidateEvaluated, Operation, Release
from reefcommon.ids import LoadId, digest
from reefcommon.releases import BASE_ADAPTER, adapter_name, base_weights, next_contents
from services.publisher.domain.work import Turned

_WITHOUT_NODES = frozenset({"harness", "routing"})


def release_id(scenario: str, sequence: int, parent_id: str | None, cause: str) -> str:
    """`r<sequence>-<6 hex>`: another cause, or another parent, gives another id."""
    return f"r{sequence}-{digest('release', scenario, parent_id, cause, length=6)}"


def creation(scenario: str, cause: str, incarnation: str, at: datetime) -> Release:
    """The first release of a scenario: the base model as it is. Its incarnation is that of the whole chain."""
    return Release(
        release_id=release_id(scenario, 0, None, f"{cause}:{incarnation}"),
        scenario=scenario,
        sequence=0,
        parent_id=None,
        kind="base",
        content_id=BASE_CONTENT_ID,
        contents={"base": BASE_CONTENT_ID},
        operation="creation",
        load_id=str(LoadId(incarnation, 0)),
        adapter=BASE_ADAPTER,
        created_at=at,
    )


def _follow(head: Release, cause: str, at: datetime, **fields: object) -> Release:
    load = LoadId.parse(head.load_id)
    sequence = head.sequence + 1
    rid = release_id(head.scenario, sequence, head.release_id, cause)
    values: dict[str, object] = {
        "release_id": rid,
        "scenario": head.scenario,
        "sequence": sequence,
        "parent_id": head.release_id,
        "load_id": str(LoadId(load.incarnation, load.sequence + 1)),
        "created_at": at,
    }
    return Release.model_validate({**values, **fields})


def from_candidate(head: Release, event: CandidateEvaluated) -> Release:
    """The release that a selected candidate becomes on this head.

    Raises:
        Turned: the candidate was made from another release, or its kind cannot be served.
    """
    candidate = event.candidate
    if candidate.base_release_id != head.release_id:
        raise Turned(
            "conflicted",
            f"made from {candidate.base_release_id}, but {head.release_id} is the head",
        )
    if candidate.kind == "base":
        raise Turned(
            "aborted",
            "kind base: the base model is served as it is; roll back to a release of it instead",
        )
    if not candidate.content_id.startswith(f"{candidate.kind}-"):
        raise Turned(
            "aborted",
            f"kind {candidate.kind} with the content {candidate.content_id}, which is another kind's",
        )
    operation: Operation = (
        "harness"
        if candidate.kind in _WITHOUT_NODES
        else "training"
        if candidate.lineage.recipe
        else "manual"
    )
    cause = candidate.event_id
    own_name = adapter_name(
        head.scenario, release_id(head.scenario, head.sequence + 1, head.release_id, cause)
    )
    return _follow(
        head,
        cause,
        event.at,
        kind=candidate.kind,
        content_id=candidate.content_id,
        contents=next_contents(head, candidate.kind, candidate.content_id),
        operation=operation,
        adapter=head.adapter
        if candidate.kind in _WITHOUT_NODES
        else BASE_ADAPTER
        if candidate.kind == "checkpoint"
        else own_name,
        candidate_id=candidate.event_id,
        metrics=candidate.metrics,
        evaluation=event.evaluation,
        lineage=candidate.lineage,
        reason=candidate.reason,
    )


def rolled_back(head: Release, target: Release, cause: str, at: datetime, reason: str) -> Release:
    """A new release with all contents of an old one, under the adapter name that its content had: same name, same path, same bytes.

    Raises:
        Turned: the target is the head.
    """
    if target.release_id == head.release_id:
        raise Turned("aborted", f"{target.release_id} is the head already")
    return _follow(
        head,
        cause,
        at,
        kind=target.kind,
        content_id=target.content_id,
        contents=target.contents,
        operation="rollback",
        adapter=target.adapter,
        metrics=target.metrics,
        lineage=target.lineage,
        reason=reason or f"rolled back to {target.release_id}",
    )


def promoted(head: Release, pending: Release, at: datetime, reason: str) -> Release:
    """A pending release as it goes live, under the id that the person saw.

    Raises:
        Turned: another release became the head while it waited.
    """
    if pending.parent_id != head.release_id:
        raise Turned(
            "conflicted",
            f"{pending.release_id} was made from {pending.parent_id}, but {head.release_id} is the head",
        )
    return pending.model_copy(
        update={"operation": "promote", "created_at": at, "reason": reason or pending.reason}
    )


def rebased(release: Release, head: Release, cause: str) -> Release:
    """A rollback that lost a race, on the new head: people mean the content, whatever serves at that moment."""
    fields = {name: getattr(release, name) for name in type(release).model_fields}
    for derived in ("release_id", "scenario", "sequence", "parent_id", "load_id", "created_at"):
        fields.pop(derived)
    return _follow(head, cause, release.created_at, **fields)


def needs_nodes(release: Release) -> bool:
    """Whether serving nodes must hold something new before the head may move."""
    return release.operation != "creation" and (
        release.kind not in _WITHOUT_NODES or release.operation == "rollback"
    )


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a node must hold for a release: the content of its base weights, and the adapter on top with its content, if any."""

    base: str = BASE_CONTENT_ID
    adapter: str | None = None
    lora: str | None = None


def wanted(release: Release) -> Wanted:
    """What a node must hold for a release."""
    return Wanted(
        base_weights(release),
        release.adapter,
        release.contents["lora"] if release.adapter is not None else None,
    )


def adapter_of(release: Release) -> dict[str, str]:
    """The adapter of a release with its content; empty where the base weights serve it."""
    return {release.adapter: release.contents["lora"]} if release.adapter is not None else {}


def resident(chain: Sequence[Release], keep: int) -> dict[str, str]:
    """Adapters that stay loaded, with their contents, the head's first: those of the `keep` newest releases of a chain that were made for
    the base weights that serve now."""
    fitting = [
        release for release in chain[:keep] if base_weights(release) == base_weights(chain[0])
    ]
    return {name: content for release in fitting for name, content in adapter_of(release).items()}


def lingering(chain: Sequence[Release], keep: int) -> dict[str, str]:
    """Adapters of the `keep` newest releases, whatever base weights they were made for: requests may still name them for a moment."""
    return {
        name: content for release in chain[:keep] for name, content in adapter_of(release).items()
    }


def check_alone(planned: Release, before: str, others: Mapping[str, str]) -> None:
    """Full weights replace the base model of every node, so the nodes that serve them must serve one scenario alone.

    Args:
        planned: the release that is about to be published.
        before: the base weights of its scenario now.
        others: the base weights of every other scenario, by name.

    Raises:
        Turned: other scenarios are served by the same nodes.
    """
    if others and (
        base_weights(planned) != before or any(base != BASE_CONTENT_ID for base in others.values())
    ):
        names = ", ".join(sorted(others)[:3])
        raise Turned(
            "aborted",
            f"full weights replace the model of every serving node, and these serve {names} too: give it nodes of its own",
        )


def needs_review(config: ServeConfig, scenario: str, own: Sequence[RecipeBinding]) -> bool:
    """Whether a winner waits for a person. `own`: the bindings of its recipe; a candidate of no bound recipe waits where any recipe of
    the scenario does."""
    asked = own or [binding for binding in config.reef if binding.scenario == scenario]
    return any(binding.review == "manual" for binding in asked)
