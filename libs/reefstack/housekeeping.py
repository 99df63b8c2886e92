"""The care of the embedded log: jobs that run in turn."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from reefstack import s3, tansu
from reefstack.merger import filer_log
from reefstack.merger.objects import Limits
from reefstack.merger.rounds import Merger
from reefstack.restart_policy import StackEvent
from reefstack.spec import S3Writable

_FIRST_AFTER_S = 10.0
Job = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class LogStore:
    """The bucket of the broker's log. `filer_url` is "" if the store has no filer."""

    bucket: S3Writable
    filer_url: str = ""


async def keep_log(
    log: LogStore, limits: Limits, every_s: float, listener: Callable[[StackEvent], None]
) -> None:
    """Merge small objects, and remove the change log of SeaweedFS, for the life of the stack."""
    merger = Merger(s3.bucket(log.bucket, timeout_s=30), limits)
    jobs: dict[str, Job] = {"merging small objects of the log": merger.round}
    if log.filer_url:
        jobs["removing the filer's change log"] = lambda: filer_log.purge(
            log.filer_url, before=datetime.now(UTC) - filer_log.KEPT
        )
    await keep_house(jobs, every_s, lambda why: listener(StackEvent(tansu.NAME, "note", why)))


async def keep_house(
    jobs: Mapping[str, Job], every_s: float, on_failure: Callable[[str], None]
) -> None:
    """Run all jobs in turn, for ever. `on_failure` hears the first of several failures in a row."""
    failed: set[str] = set()
    await asyncio.sleep(min(_FIRST_AFTER_S, every_s))
    while True:
        for name, job in jobs.items():
            try:
                await job()
                failed.discard(name)
            except Exception as error:  # noqa: BLE001 - care of the log must not end the stack
                if name not in failed:
                    cause = " ".join(repr(error).split())[:200]
                    on_failure(f"{name}: failed, and is tried again ({cause})")
                failed.add(name)
        await asyncio.sleep(every_s)
