"""What was trained on: once, whole, fresh, and told."""

from collections import defaultdict

from reefcommon.events import InferenceRecorded, ReleasePublished, SampleReady, StepCompleted
from reefcommon.ids import LoadId
from tests.chaos.facts import Facts
from tests.chaos.reading import Stated, of_type, steps


def trained_once(facts: Facts) -> Stated:
    """No sample and no record is in two jobs of one recipe; a repeat tells of a job the same."""
    record_ids = {sample.event_id: sample.record_ids for _, sample in of_type(facts, SampleReady)}
    told: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for _, event in of_type(facts, StepCompleted):
        told[event.event_id].add(event.sample_ids)
    broken = [
        f"job {job} was told with {len(sets)} different batches"
        for job, sets in told.items()
        if len(sets) > 1
    ]
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
    return Stated(
        "trained once",
        "no sample and no record trains twice in one recipe",
        len(used),
        tuple(broken),
    )


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
                broken.append(
                    f"untrainable ({sample.untrainable}) sample {sample_id} was trained on in {job}"
                )
            broken += [
                f"{outcomes.get(record, 'unknown')} exchange {record} was trained on in {job}"
                for record in sample.record_ids
                if outcomes.get(record) != "ok"
            ]
    return Stated(
        "whole exchanges trained",
        "nothing aborted, failed or cut off is trained on",
        looked_at,
        tuple(broken),
    )


def jobs_agree(facts: Facts) -> Stated:
    """What the trainer's ledger holds as complete is what it told, and the other way round."""
    told = steps(facts)
    ledger = {job.job_id: job for job in facts.jobs}
    broken = [
        f"job {job_id} was told, the ledger does not know it"
        for job_id in told.keys() - ledger.keys()
    ]
    for job_id, job in ledger.items():
        if job.state not in ("open", "produced", "stored") and job_id not in told:
            broken.append(f"job {job_id} is complete in the ledger and was never told")
        if job_id in told and set(told[job_id].sample_ids) != set(job.sample_ids):
            broken.append(f"job {job_id} has other samples in the ledger than were told")
    return Stated(
        "jobs agree",
        "the trainer's ledger and what it told are the same",
        len(ledger),
        tuple(broken),
    )


def staleness_obeyed(facts: Facts) -> Stated:
    """Every sample of a job was at most `max_staleness` loads behind what the job started from,
    and never ahead.
    """
    loads = {
        event.release.release_id: event.release.load_id
        for _, event in of_type(facts, ReleasePublished)
    }
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
            lag = (
                LoadId.parse(sample.load_id).lag_behind(LoadId.parse(base))
                if sample is not None and sample.load_id
                else None
            )
            if lag is None or not 0 <= lag <= facts.max_staleness:
                broken.append(
                    f"stale: {sample_id} in {job} is {lag} releases behind {step.base_release_id}"
                )
    return Stated(
        "staleness obeyed",
        f"0 <= lag <= {facts.max_staleness} for every trained sample",
        looked_at,
        tuple(broken),
    )
