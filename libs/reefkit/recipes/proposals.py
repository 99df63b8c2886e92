"""Candidates that a seeker proposes by itself: a directory, stored and announced once."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import cast

from reefcommon import topics
from reefcommon.artifacts import describe
from reefcommon.errors import Poison, Unavailable
from reefcommon.events import Kind, Publication, Release
from reefcommon.ids import digest
from reefkit.jobs import model
from reefkit.jobs.context import Kit
from reefkit.jobs.model import Job
from reefkit.recipe_binding import Binding
from reefkit.recipes.seek_services import SUFFIX
from reefkit.recipes.verdicts import told


@dataclass(frozen=True, slots=True)
class Proposals:
    """The proposals of a binding. Each is a job without samples, in the state `announced`."""

    binding: Binding  # type: ignore[type-arg]
    kit: Kit

    @property
    def key(self) -> str:
        return self.binding.key + SUFFIX

    async def propose(
        self, kind: Kind, directory: Path, *, metrics: Mapping[str, float], reason: str
    ) -> str:
        """Store a directory and announce it; return the candidate's id. A repeat is the same.

        Raises:
            Poison: it holds no files, or more than regular files.
            Unavailable: the scenario has no release yet, or the store does not answer.
        """
        kit, scenario = self.kit, self.binding.scenario
        if any(not isfinite(value) for value in metrics.values()):
            raise Poison("the metrics of a candidate are finite numbers")
        head = await asyncio.to_thread(kit.store.head, scenario)
        if head is None:
            raise Unavailable(f"scenario {scenario!r} has no release yet")
        # The lock until the job is saved: retention must not drop the content in between.
        async with kit.storing:
            job = await asyncio.to_thread(
                self._stored, kind, directory, head, dict(metrics), reason
            )
        if job.state == "open":
            event = (model.candidate(self.binding, kind, job), topics.CANDIDATES)
            announced = replace(job, state="announced")
            await asyncio.to_thread(kit.store.save, announced, expected="open", events=(event,))
        await kit.outbox.flush()
        assert job.candidate_id is not None
        return job.candidate_id

    def apply_verdict(self, job: Job, publication: Publication) -> None:
        """Keep a verdict. Blocks."""
        if (after := model.after_verdict(job, publication)) is None:
            return
        # The publisher has it evaluated again by itself, if it may be.
        ended = replace(after, state="aborted") if after.state == "conflicted" else after
        evaluation = model.evaluation_in(publication)
        kind = cast("Kind", str(job.content_id).partition("-")[0])
        judged = told(self.binding, kind, ended, evaluation)
        self.kit.store.save(ended, expected=job.state, judged=judged)

    def _stored(
        self, kind: Kind, directory: Path, head: Release, metrics: dict[str, float], reason: str
    ) -> Job:
        store, binding = self.kit.store, self.binding
        manifest = describe(directory, kind, metrics=metrics)
        job_id = "job-" + digest("seek", binding.key, manifest.content_id)
        candidate_id = "cnd-" + digest("seek", binding.key, manifest.content_id)
        known = store.of_candidate(candidate_id)
        if known is not None and known.state != "open":
            return known
        lineage = binding.lineage(job_id, (), 0).model_copy(update={"step": None})
        content = self.kit.artifacts.put(
            directory, manifest.model_copy(update={"lineage": lineage}), binding.scenario
        )
        if known is not None:
            return known
        now = self.kit.clock()
        job = Job(
            job_id=job_id,
            binding=self.key,
            scenario=binding.scenario,
            base_release_id=head.release_id,
            base_load=model.load_of(head, kind),
            base_content=model.content_of(head, kind),
            sample_ids=(),
            opened_at=now,
            step=0,
            metrics=metrics,
            proposes=True,
            content_id=content,
            candidate_id=candidate_id,
            finished_at=now,
            summary=reason,
        )
        store.open(job, (), once_per_record=False)
        return job
