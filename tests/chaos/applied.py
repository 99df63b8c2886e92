"""Reports: there, joined, and each token that their answers sampled in one sample."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reefcommon.events import FeedbackReported, InferenceRecorded, SampleReady
from tests.chaos.facts import Facts, StoredReport
from tests.chaos.reading import Stated, of_type

Exchanges = Mapping[str, InferenceRecorded]


def reports_applied_once(facts: Facts) -> Stated:
    """Every acknowledged report is joined, and its samples hold each sampled token once.

    A report makes as many samples as the tokens of its records do not join.
    """
    reports = _Reports.of(facts)
    wanted = sorted({report.report_id for report in facts.reports if report.status == 202})
    return Stated(
        "reports applied once",
        "every acknowledged report is joined, each token of its answers in one sample",
        len(wanted),
        tuple(line for report_id in wanted for line in reports.wrong(report_id)),
    )


@dataclass(frozen=True, slots=True)
class _Reports:
    """The reports, exchanges and samples of a run by their ids; samples by their report's."""

    logged: Mapping[str, Sequence[FeedbackReported]]
    rows: Mapping[str, Sequence[StoredReport]]
    told: Mapping[str, Sequence[SampleReady]]
    stored: Mapping[str, Sequence[SampleReady]]
    exchanges: Exchanges

    @classmethod
    def of(cls, facts: Facts) -> "_Reports":
        logged, rows = defaultdict(list), defaultdict(list)
        told, stored = defaultdict(list), defaultdict(list)
        for _, report in of_type(facts, FeedbackReported):
            logged[report.event_id].append(report)
        for row in facts.stored_reports:
            rows[row.report_id].append(row)
        for _, sample in of_type(facts, SampleReady):
            told[sample.report_id or ""].append(sample)
        for sample in facts.samples:
            stored[sample.report_id or ""].append(sample)
        exchanges = {event.event_id: event for _, event in of_type(facts, InferenceRecorded)}
        return cls(logged, rows, told, stored, exchanges)

    def wrong(self, report_id: str) -> list[str]:
        """Say what is wrong with a report; empty if it was applied once."""
        logged = self.logged.get(report_id, ())
        states = [row.state for row in self.rows.get(report_id, ())]
        if not logged:
            return [f"lost: report {report_id} is not in the log"]
        if len({report.content_digest for report in logged}) > 1:
            return [f"twice: report {report_id} is in the log with different contents"]
        if states != ["joined"]:
            state = " and ".join(states) or "absent"
            return [f"not applied: report {report_id} is {state} in the store"]
        stored = self.stored.get(report_id, ())
        wrong = _copies(stored, self.told.get(report_id, ()))
        references = logged[0].references
        wrong = wrong or misplaced_tokens(references, stored, self.exchanges)
        return [f"report {report_id}: {words}" for words in wrong]


def _copies(stored: Sequence[SampleReady], told: Sequence[SampleReady]) -> list[str]:
    rows = Counter(sample.event_id for sample in stored)
    wrong = [f"{sample} is in the store {n} times" for sample, n in rows.items() if n > 1]
    by_id: dict[str, set[object]] = defaultdict(set)
    for sample in (*stored, *told):
        by_id[sample.event_id].add(_trained(sample))
    wrong += [f"{sample} has several contents" for sample, found in by_id.items() if len(found) > 1]
    # A repeat in the log is the same sample: its readers know it by its id.
    names = {sample.event_id for sample in told}
    wrong += [f"{sample} is in the store alone" for sample in sorted(rows.keys() - names)]
    return wrong + [f"{sample} is in the log alone" for sample in sorted(names - rows.keys())]


def _trained(sample: SampleReady) -> tuple[object, ...]:
    place = sample.record_ids, sample.prompt_length, sample.untrainable
    return *place, sample.tokens, sample.loss_mask, sample.logprobs


def misplaced_tokens(
    references: Sequence[str], samples: Sequence[SampleReady], exchanges: Exchanges
) -> list[str]:
    """Say which sampled tokens of the referenced exchanges are not in exactly one sample.

    The load repeats no request within a report, so no referenced answer may be left out.
    """
    if any(sample.untrainable for sample in samples):
        return _needlessly_untrainable(references, samples, exchanges)
    wrong: list[str] = []
    taken: Counter[tuple[str, int]] = Counter()
    for sample in samples:
        begin = sample.prompt_length
        marked = {begin + place for place, mark in enumerate(sample.loss_mask) if mark}
        for record_id in sample.record_ids:
            event = exchanges.get(record_id)
            whole = _seen_by_engine(event) if event is not None else ()
            if event is None or sample.tokens[: len(whole)] != whole:
                wrong.append(f"{sample.event_id} does not begin with the tokens of {record_id}")
                continue
            first = len(event.prompt_token_ids)
            found = marked & set(range(first, len(whole)))
            taken.update((record_id, place - first) for place in found)
            # So that a second exchange at the same place finds none.
            marked -= found
        if marked:
            wrong.append(f"{sample.event_id} trains on {len(marked)} tokens that it did not sample")
    for record_id in references:
        sampled = range(len(_sampled(exchanges[record_id]))) if record_id in exchanges else ()
        times = {taken.pop((record_id, place), 0) for place in sampled}
        wrong += [f"{record_id} has tokens in {n} samples" for n in sorted(times - {1})]
    strangers = sorted({record_id for record_id, _ in taken})
    return wrong + [f"{record_id} is trained on without a reference" for record_id in strangers]


def _needlessly_untrainable(
    references: Sequence[str], samples: Sequence[SampleReady], exchanges: Exchanges
) -> list[str]:
    first = samples[0]
    if len(samples) > 1 or sorted(first.record_ids) != sorted(references) or first.tokens:
        return ["is untrainable and has more than its one sample without tokens"]
    if all(record_id in exchanges and _whole(exchanges[record_id]) for record_id in references):
        return [f"is {first.untrainable}, and all its exchanges can be trained on"]
    return []


def _whole(event: InferenceRecorded) -> bool:
    sampled = event.completions[0] if len(event.completions) == 1 else None
    return (
        event.outcome == "ok"
        and sampled is not None
        and 0 < len(sampled.token_ids) == len(sampled.logprobs)
        and len({span.version for span in sampled.weight_versions}) <= 1
    )


def _sampled(event: InferenceRecorded) -> tuple[int, ...]:
    return event.completions[0].token_ids if event.completions else ()


def _seen_by_engine(event: InferenceRecorded) -> tuple[int, ...]:
    return (*event.prompt_token_ids, *_sampled(event))
