"""A recipe of your own over HTTP: it tries a release on a share of the sessions, by their rewards.

    reef releases default
    python -m recipes.examples.canary default RELEASE_ID --share 0.1

Shown worse than the other sessions, the release gets none of them any more; shown better, it is
promoted if it waits for that, and else stays for a person to decide. REEF_TOKEN is the token.
"""

# samples --by session--> mean rewards of both sides --Welch--> nothing yet | worse | better
#
# Turns of one session are not independent, so a draw is a session. The sides are compared when the
# release has 20 sessions, 40, 80 …; the k-th look has an error of (1 - confidence) * 6 / (pi k)^2,
# so that all looks together keep to `1 - confidence`.

import argparse
import asyncio
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Any, Literal

import httpx

from reefcommon.statistics import student_quantile

FIRST_LOOK = 20
Verdict = Literal["open", "worse", "better"]


def look_of(sessions: int) -> int:
    """Return how many looks so many sessions give: at 20, 40, 80 …"""
    return 0 if sessions < FIRST_LOOK else int(math.log2(sessions / FIRST_LOOK)) + 1


def error_at(look: int, confidence: float) -> float:
    """Return the error that a look may have: all together keep to `1 - confidence`."""
    return (1 - confidence) * 6 / (math.pi * look) ** 2


def verdict(tried: Sequence[float], others: Sequence[float], error: float) -> Verdict:
    """Return what the mean rewards of sessions show of a release. `error`: of this look alone."""
    spreads = [variance(side) / len(side) for side in (tried, others)]
    difference = fmean(tried) - fmean(others)
    # At least as wide as Welch's: the freedom of the smaller side.
    freedom = min(len(tried), len(others)) - 1
    bound = student_quantile(freedom, 1 - error) * math.sqrt(sum(spreads))
    if abs(difference) <= bound:
        return "open"
    return "better" if difference > 0 else "worse"


def by_session(
    samples: Sequence[Mapping[str, Any]], release_id: str
) -> tuple[list[float], list[float]]:
    """Return the mean rewards of the sessions of a release, and of all others."""
    scores: dict[tuple[str, bool], list[float]] = {}
    for sample in samples:
        if sample.get("score") is not None:
            session = sample.get("session_id") or sample["sample_id"]
            key = session, sample.get("release_id") == release_id
            scores.setdefault(key, []).append(float(sample["score"]))
    means = [(mine, fmean(values)) for (_, mine), values in scores.items()]
    return [mean for mine, mean in means if mine], [mean for mine, mean in means if not mine]


@dataclass(frozen=True, slots=True)
class Canary:
    http: httpx.AsyncClient
    scenario: str
    release_id: str
    share: float
    confidence: float
    every_s: float = 5.0

    async def run(self) -> Verdict:
        """Share the sessions until the rewards say more. Raises httpx.HTTPError."""
        seen = {sample["sample_id"] for sample in await self._samples()}
        await self._route({self.release_id: self.share}, "its trial begins")
        looks = 0
        while True:
            fresh = [one for one in await self._samples() if one["sample_id"] not in seen]
            tried, others = by_session(fresh, self.release_id)
            look = min(look_of(len(tried)), look_of(len(others)))
            if look > looks:  # between looks there is no test: each has its chance to be wrong
                looks, found = look, verdict(tried, others, error_at(look, self.confidence))
                if found != "open":
                    break
            await asyncio.sleep(self.every_s)
        reason = f"{found}: {fmean(tried):.3g} in {len(tried)} sessions against {fmean(others):.3g}"
        if found == "worse":
            await self._route({}, reason)
        elif await self._waits():
            await self._post("promote", {"release_id": self.release_id, "reason": reason})
        sys.stdout.write(f"{self.release_id} is {reason}\n")
        return found

    async def _samples(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            query = {"limit": "1000", **({"cursor": cursor} if cursor else {})}
            answer = await self.http.get(f"/reef/scenarios/{self.scenario}/samples", params=query)
            page = answer.raise_for_status().json()
            found += page["data"]
            if (cursor := page.get("next_cursor")) is None:
                return found

    async def _waits(self) -> bool:
        answer = await self.http.get(f"/reef/scenarios/{self.scenario}/releases")
        rows = answer.raise_for_status().json()["data"]
        return any(row["pending"] for row in rows if row["release_id"] == self.release_id)

    async def _route(self, shares: dict[str, float], reason: str) -> None:
        await self._post("routing", {"shares": shares, "reason": reason})

    async def _post(self, verb: str, body: dict[str, Any]) -> None:
        answer = await self.http.post(f"/reef/scenarios/{self.scenario}/{verb}", json=body)
        answer.raise_for_status()


async def main() -> int:
    given = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    given.add_argument("scenario")
    given.add_argument("release_id")
    given.add_argument("--share", type=float, default=0.1)
    given.add_argument("--confidence", type=float, default=0.95)
    given.add_argument("--url", default="http://127.0.0.1:8900")
    asked = given.parse_args()
    token = os.environ.get("REEF_TOKEN", "")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    # The gateway is near: no proxy of the shell.
    client = httpx.AsyncClient(base_url=asked.url, headers=headers, timeout=60, trust_env=False)
    async with client as http:
        canary = Canary(http, asked.scenario, asked.release_id, asked.share, asked.confidence)
        return 1 if await canary.run() == "worse" else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
