"""The invariants, as pure functions over the facts of a run. Each states HELD or BROKEN, over how many things, and the evidence.

Nothing here knows how the run was made: the same functions judge planted faults in the tests and real ones in a campaign.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from reefcommon.events import (
    CandidateEvaluated,
    DeadLettered,
    Event,
    FeedbackReported,
    InferenceRecorded,
    ReleasePublished,
    ReleaseRejected,
    SampleReady,
    StepCompleted,
)
from reefcommon.ids import LoadId
from tests.chaos.facts import Answer, Facts, Happened, Logged

E = TypeVar("E", bound=Event)
# A request may fail while one of these is being broken, or has not recovered; everything else must be borne.
EXPLAINS_FAILURES = frozenset({"gateway", "engine", "valkey", "upstream", "disk"})
# Whether a key that a client chose is new is asked of the store, which has to have read the log: where that cannot be said, the answer
# to a request with a key is 503, by design.
KEYS_NEED = EXPLAINS_FAILURES | {"experience", "tansu", "seaweedfs"}


@dataclass(frozen=True, slots=True)
class Stated:
    """One invariant: what it says, over how many things it was looked at, and what contradicts it."""

    name: str
    says: str
    looked_at: int
    broken: tuple[str, ...] = ()

    @property
    def held(self) -> bool:
        """Whether nothing contradicts it."""
        return not self.broken


Invariant = Callable[[Facts], Stated]


def of_type(facts: Facts, kind: type[E]) -> Iterator[tuple[Logged, E]]:
    """The events of one type, with their places."""
    for logged in facts.log:
        if isinstance(logged.event, kind):
            yield logged, logged.event


def acknowledged(facts: Facts) -> dict[str, Answer]:
    """What clients hold: receipt -> the first whole answer under it."""
    held: dict[str, Answer] = {}
    for answer in facts.answers:
        if answer.complete and answer.receipt:
            held.setdefault(answer.receipt, answer)
    return held


def content_of(event: InferenceRecorded) -> str:
    """The text of an exchange's answer, as its client was given it."""
    choices = (event.response or {}).get("choices") or [{}]
    return str((choices[0].get("message") or {}).get("content") or "")


def receipts_in_the_log(facts: Facts) -> Stated:
    """Loss, duplicates with another content, answers that are not those given."""
    copies: dict[str, list[InferenceRecorded]] = defaultdict(list)
    for _, event in of_type(facts, InferenceRecorded):
        copies[event.event_id].append(event)
    held, broken = acknowledged(facts), []
    for receipt, answer in held.items():
        found = copies.get(receipt, [])
        if not found:
            broken.append(f"lost: {receipt} ({answer.conversation} turn {answer.turn}) is not in the log")
        elif len({event.model_dump_json() for event in found}) > 1:
            broken.append(f"twice: {receipt} is in the log with {len(found)} different contents")
        elif content_of(found[0]) != answer.content:
            broken.append(f"other answer: {receipt} was answered {answer.content!r}, the log says {content_of(found[0])!r}")
    return Stated(
        "receipts in the log", "every acknowledged receipt is in the log, once by effect, with its answer", len(held), tuple(broken)
    )


def receipts_in_the_store(facts: Facts) -> Stated:
    """Every acknowledged receipt is one row, made of the bytes that are in the log; the store has nothing that the log has not."""
    logged = {event.event_id: place.digest for place, event in of_type(facts, InferenceRecorded)}
    rows = Counter(row.record_id for row in facts.records)
    by_id = {row.record_id: row for row in facts.records}
    held, broken = acknowledged(facts), []
    for receipt, answer in held.items():
        if not rows[receipt]:
            broken.append(f"lost: {receipt} is not in the store")
        elif rows[receipt] > 1:
            broken.append(f"twice: {receipt} is in the store {rows[receipt]} times")
        elif by_id[receipt].content != answer.content:
            broken.append(f"other answer: {receipt} was answered {answer.content!r}, the store says {by_id[receipt].content!r}")
    for row in facts.records:
        if row.record_id not in logged:
            broken.append(f"invented: {row.record_id} is in the store and not in the log")
        elif row.digest != logged[row.record_id]:
            broken.append(f"other bytes: {row.record_id} in the store is not what lies in the log")
    broken += [f"missing: {receipt} is in the log and not in the store" for receipt in logged.keys() - rows.keys() - held.keys()]
    return Stated("receipts in the store", "each is one row of the store, as it lies in the log", len(held), tuple(broken))


def reports_applied_once(facts: Facts) -> Stated:
    """Every acknowledged report is in the log, joined in the store, and made exactly one sample."""
    logged: dict[str, set[str]] = defaultdict(set)
    for _, event in of_type(facts, FeedbackReported):
        logged[event.event_id].add(event.content_digest)
    published: dict[str, set[str]] = defaultdict(set)
    for _, sample in of_type(facts, SampleReady):
        published[sample.report_id or ""].add(sample.event_id)
    rows = defaultdict(list)
    for row in facts.stored_reports:
        rows[row.report_id].append(row)
    made = Counter(sample.report_id for sample in facts.samples)
    wanted = {report.report_id for report in facts.reports if report.status == 202}
    broken = []
    for report_id in sorted(wanted):
        states = [row.state for row in rows[report_id]]
        if not logged[report_id]:
            broken.append(f"lost: report {report_id} is not in the log")
        elif len(logged[report_id]) > 1:
            broken.append(f"twice: report {report_id} is in the log with different contents")
        elif states != ["joined"]:
            broken.append(f"not applied: report {report_id} is {' and '.join(states) or 'absent'} in the store")
        elif made[report_id] != 1:
            broken.append(f"applied {made[report_id]} times: report {report_id} has so many samples in the store")
        elif len(published[report_id]) != 1:
            broken.append(f"applied {len(published[report_id])} times: report {report_id} has so many samples in the log")
    return Stated("reports applied once", "every acknowledged report is in the log and made one sample", len(wanted), tuple(broken))


def order_kept(facts: Facts) -> Stated:
    """Turns that followed each other at the client follow each other in one partition."""
    first: dict[str, tuple[int, int]] = {}
    for place, event in of_type(facts, InferenceRecorded):
        first.setdefault(event.event_id, (place.partition, place.offset))
    turns: dict[str, list[Answer]] = defaultdict(list)
    for answer in acknowledged(facts).values():
        if answer.receipt in first:
            turns[answer.conversation].append(answer)
    broken = []
    for name, answers in turns.items():
        in_time = sorted(answers, key=lambda answer: answer.turn)
        for before, after in pairwise(in_time):
            (at, offset), (then_at, then_offset) = first[before.receipt], first[after.receipt]
            if at != then_at or offset >= then_offset:
                broken.append(
                    f"reordered: {name}: turn {before.turn} ({before.receipt}) lies at {at}/{offset}, "
                    f"turn {after.turn} ({after.receipt}) at {then_at}/{then_offset}"
                )
    return Stated("order kept", "the turns of a conversation are in the log in their order", len(turns), tuple(broken))


def steps(facts: Facts) -> dict[str, StepCompleted]:
    """Completed jobs by id; a repeat of the event is the same job."""
    return {event.event_id: event for _, event in of_type(facts, StepCompleted)}


def trained_once(facts: Facts) -> Stated:
    """No sample and no record is in two jobs of one recipe, and a job that is told twice is told alike."""
    record_ids = {sample.event_id: sample.record_ids for _, sample in of_type(facts, SampleReady)}
    told: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for _, event in of_type(facts, StepCompleted):
        told[event.event_id].add(event.sample_ids)
    broken = [f"job {job} was told with {len(sets)} different batches" for job, sets in told.items() if len(sets) > 1]
    used: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for job, step in steps(facts).items():
        for sample_id in step.sample_ids:
            used[step.scenario, step.recipe, sample_id].add(job)
            for record_id in record_ids.get(sample_id, ()):
                used[step.scenario, step.recipe, record_id].add(job)
        if len(set(step.sample_ids)) < len(step.sample_ids):
            broken.append(f"trained twice: job {job} holds a sample twice")
    for (_, recipe, thing), jobs in used.items():
        if len(jobs) > 1:
            broken.append(f"trained twice: {thing} by {recipe} in {', '.join(sorted(jobs))}")
    return Stated("trained once", "no sample and no record trains twice in one recipe", len(used), tuple(broken))


def whole_exchanges_trained(facts: Facts) -> Stated:
    """Nothing that was aborted, failed or cut off was trained on; every trained sample is known."""
    samples = {sample.event_id: sample for _, sample in of_type(facts, SampleReady)}
    outcomes = {event.event_id: event.outcome for _, event in of_type(facts, InferenceRecorded)}
    broken, looked_at = [], 0
    for job, step in steps(facts).items():
        for sample_id in step.sample_ids:
            looked_at += 1
            sample = samples.get(sample_id)
            if sample is None:
                broken.append(f"unknown sample {sample_id} in {job}")
                continue
            if sample.untrainable is not None:
                broken.append(f"untrainable ({sample.untrainable}) sample {sample_id} was trained on in {job}")
            broken += [
                f"{outcomes.get(record, 'unknown')} exchange {record} was trained on in {job}"
                for record in sample.record_ids
                if outcomes.get(record) != "ok"
            ]
    return Stated("whole exchanges trained", "nothing aborted, failed or cut off is trained on", looked_at, tuple(broken))


def jobs_agree(facts: Facts) -> Stated:
    """What the trainer's ledger holds as complete is what it told, and the other way round."""
    told = steps(facts)
    ledger = {job.job_id: job for job in facts.jobs}
    broken = [f"job {job_id} was told, the ledger does not know it" for job_id in told.keys() - ledger.keys()]
    for job_id, job in ledger.items():
        if job.state == "complete" and job_id not in told:
            broken.append(f"job {job_id} is complete in the ledger and was never told")
        if job_id in told and set(told[job_id].sample_ids) != set(job.sample_ids):
            broken.append(f"job {job_id} has other samples in the ledger than were told")
    return Stated("jobs agree", "the trainer's ledger and what it told are the same", len(ledger), tuple(broken))


def staleness_obeyed(facts: Facts) -> Stated:
    """Every sample of a job was at most `max_staleness` loads behind what the job started from, and never ahead."""
    loads = {event.release.release_id: event.release.load_id for _, event in of_type(facts, ReleasePublished)}
    samples = {sample.event_id: sample for _, sample in of_type(facts, SampleReady)}
    broken, looked_at = [], 0
    for job, step in steps(facts).items():
        base = loads.get(step.base_release_id)
        if base is None:
            broken.append(f"job {job} started from {step.base_release_id}, which is no release")
            continue
        for sample_id in step.sample_ids:
            looked_at += 1
            sample = samples.get(sample_id)
            lag = LoadId.parse(sample.load_id).lag_behind(LoadId.parse(base)) if sample is not None and sample.load_id else None
            if lag is None or not 0 <= lag <= facts.max_staleness:
                broken.append(f"stale: {sample_id} in {job} is {lag} releases behind {step.base_release_id}")
    return Stated("staleness obeyed", f"0 <= lag <= {facts.max_staleness} for every trained sample", looked_at, tuple(broken))


def chains(facts: Facts) -> tuple[dict[str, list[ReleasePublished]], list[str]]:
    """Releases of each scenario in the order of the log, repeats left out; and repeats that differ."""
    seen: dict[tuple[str, str], str] = {}
    found: dict[str, list[ReleasePublished]] = defaultdict(list)
    differ = []
    for _, event in of_type(facts, ReleasePublished):
        key, body = (event.scenario, event.release.release_id), event.release.model_dump_json()
        if key not in seen:
            found[event.scenario].append(event)
        elif seen[key] != body:
            differ.append(f"twice: release {event.release.release_id} was published with different contents")
        seen.setdefault(key, body)
    return found, differ


def chain_whole(facts: Facts) -> Stated:
    """Sequences without a gap, each release the only child of the one before."""
    found, broken = chains(facts)
    for scenario, events in found.items():
        releases = sorted((event.release for event in events), key=lambda release: release.sequence)
        children = Counter(release.parent_id for release in releases)
        broken += [f"fork: {parent} of {scenario} has {n} children" for parent, n in children.items() if n > 1]
        for place, release in enumerate(releases):
            if release.sequence != place:
                broken.append(f"gap: {scenario} has no release {place}, but {release.release_id}")
                break
            if place and release.parent_id != releases[place - 1].release_id:
                broken.append(f"fork: {release.release_id} of {scenario} follows {release.parent_id}, not {releases[place - 1].release_id}")
    return Stated("chain whole", "no gap and no fork in the release chain", sum(map(len, found.values())), tuple(broken))


def heads_agree(facts: Facts) -> Stated:
    """Redis holds the chain that the log tells."""
    found, broken = chains(facts)[0], []
    for scenario in found.keys() | facts.heads.keys():
        told = tuple(event.release.release_id for event in sorted(found.get(scenario, []), key=lambda e: e.release.sequence))
        kept = facts.heads.get(scenario)
        if kept is None:
            broken.append(f"Redis has no head of {scenario}")
        elif tuple(reversed(kept.chain)) != told:
            different = next((pair for pair in zip(reversed(kept.chain), told, strict=False) if pair[0] != pair[1]), None)
            broken.append(f"{scenario}: Redis has {len(kept.chain)} releases, the log {len(told)}; first difference: {different}")
        elif told and kept.head != told[-1]:
            broken.append(f"{scenario}: the head in Redis is {kept.head}, in the log {told[-1]}")
    return Stated("heads agree", "the head in Redis is the head in the log", len(found), tuple(broken))


def answered_by_the_chain(facts: Facts) -> Stated:
    """What a client was told of its answer's release is a release, and is what was recorded."""
    releases = {event.release.release_id for _, event in of_type(facts, ReleasePublished)}
    recorded = {event.event_id: event.release_id for _, event in of_type(facts, InferenceRecorded)}
    broken, looked_at = [], 0
    for receipt, answer in acknowledged(facts).items():
        if answer.release_id:
            looked_at += 1
            if answer.release_id not in releases:
                broken.append(f"{receipt} was answered under {answer.release_id}, which is no release")
            elif receipt in recorded and recorded[receipt] != answer.release_id:
                broken.append(f"{receipt} was answered under {answer.release_id} and recorded under {recorded[receipt]}")
    return Stated("answered by the chain", "every answer's release is a release of the chain", looked_at, tuple(broken))


def one_answer_a_key(facts: Facts) -> Stated:
    """Requests that were sent again under one key got one receipt and one answer."""
    given: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for answer in facts.answers:
        if answer.complete and answer.key:
            given[answer.key].add((answer.receipt, answer.content))
    broken = [f"key {key} got {len(answers)} different answers" for key, answers in given.items() if len(answers) > 1]
    broken += [f"key {key} got the receipt {r}" for key, answers in given.items() for r, _ in answers if r != key]
    return Stated("one answer a key", "a request sent again under its key gets the same answer", len(given), tuple(broken))


def nothing_given_up(facts: Facts) -> Stated:
    """No event of this load is poison, so none may end as a dead letter."""
    dead = [event for _, event in of_type(facts, DeadLettered)]
    broken = tuple(
        f"dead letter of {event.group} from {event.topic}/{event.partition}/{event.offset}: {event.reason[:200]}" for event in dead
    )
    return Stated("nothing given up", "no event became a dead letter", len(facts.log), broken)


def failures_explained(facts: Facts) -> Stated:
    """A request fails only while something that it needs is broken."""
    windows = {
        parts: [(h.began_at, h.recovered_at or float("inf")) for h in facts.happened if parts & {*h.parts, h.kind}]
        for parts in (EXPLAINS_FAILURES, KEYS_NEED)
    }
    broke = {event.event_id: at_of(event) for _, event in of_type(facts, InferenceRecorded) if event.outcome != "ok"}
    # A stream that broke off under a key is what is answered under that key from then on: its reason lies where it broke.
    calls = [
        (min(a.sent_at, broke.get(a.key, a.sent_at)), a.ended_at, a.complete or a.left, f"chat {a.status} {a.error}") for a in facts.answers
    ]
    calls += [(r.sent_at, r.ended_at, r.status == 202, f"report {r.status} {r.error}") for r in facts.reports]
    broken = [
        f"failed at {sent:.1f} for {ended - sent:.1f} s without a reason: {words[:200]}"
        for sent, ended, fine, words in calls
        if not fine
        and not any(
            sent <= until and since <= ended for since, until in windows[KEYS_NEED if "keys_unavailable" in words else EXPLAINS_FAILURES]
        )
    ]
    return Stated(
        "failures explained", "requests fail only while the gateway, the engine, Redis or the disk is broken", len(calls), tuple(broken)
    )


def loop_goes_on(facts: Facts) -> Stated:
    """Every fault was recovered from without help, and after it came a sample, a step and a verdict."""
    signs: tuple[tuple[str, tuple[type[Event], ...]], ...] = (
        ("sample", (SampleReady,)),
        ("step", (StepCompleted,)),
        ("verdict", (CandidateEvaluated,)),
        ("release or rejection", (ReleasePublished, ReleaseRejected)),
    )
    last = {word: max((at_of(e.event) for e in facts.log if isinstance(e.event, kinds)), default=0.0) for word, kinds in signs}
    broken = []
    for fault in facts.happened:
        if fault.recovered_at is None:
            broken.append(f"not recovered: {describe(fault)}: {fault.why_not}")
        else:
            broken += [f"no {word} after {describe(fault)}" for word, at in last.items() if at < fault.over_at]
    return Stated("loop goes on", "after every fault come samples, steps and verdicts, by themselves", len(facts.happened), tuple(broken))


def at_of(event: Event) -> float:
    """When it happened, as Unix time."""
    return event.at.timestamp()


def describe(fault: Happened) -> str:
    """One fault in words."""
    return f"fault {fault.number} ({fault.kind} {fault.mode or '+'.join(fault.parts)})"


INVARIANTS: tuple[Invariant, ...] = (
    receipts_in_the_log,
    receipts_in_the_store,
    reports_applied_once,
    order_kept,
    one_answer_a_key,
    trained_once,
    whole_exchanges_trained,
    jobs_agree,
    staleness_obeyed,
    chain_whole,
    heads_agree,
    answered_by_the_chain,
    nothing_given_up,
    failures_explained,
    loop_goes_on,
)


def check(facts: Facts, invariants: Iterable[Invariant] = INVARIANTS) -> list[Stated]:
    """Every invariant, stated."""
    return [invariant(facts) for invariant in invariants]


def all_held(stated: Sequence[Stated]) -> bool:
    """Whether nothing is broken."""
    return all(one.held for one in stated)
