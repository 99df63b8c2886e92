"""The whole loop in memory: users' answers and reports become weights and a harness that serve."""

import asyncio
from pathlib import Path

from reefcommon.events import ReleasePublished, ReleaseRejected
from reefcommon.releases import loads_of
from tests.flow.loop import Loop, running


async def release_with(loop: Loop, *kinds: str) -> None:
    async with asyncio.timeout(20):
        while not set(kinds) <= (await loop.heads.chain("default"))[0].contents.keys():
            await asyncio.sleep(0.01)


async def test_reports_become_weights_and_a_rule_that_serve(tmp_path: Path) -> None:
    async with running(tmp_path) as loop:
        for _ in range(3):
            answer = await loop.ask()
            assert answer.status_code == 200, answer.text
            await loop.report(answer.headers["x-reef-agent-record-id"])
        await release_with(loop, "lora", "harness")
        head = (await loop.heads.chain("default"))[0]
        served = await loop.ask()
        assert served.headers["x-reef-release-id"] == head.release_id
        assert loop.engine.requests[-1]["model"] == head.adapter
        assert head.adapter in loop.node.adapters
        await loop.trials.settled()
    chain = [event.release for event in loop.seen if isinstance(event, ReleasePublished)]
    assert chain[0].operation == "creation"
    assert {release.operation for release in chain[1:]} == {"training", "harness"}
    assert not [event for event in loop.seen if isinstance(event, ReleaseRejected)]
    assert all(
        release.evaluation and release.evaluation.strength == "strong" for release in chain[1:]
    )
    assert loads_of(head)["weights"].endswith(":1")
    assert loads_of(head)["harness"].endswith(":1")
