"""The change log of SeaweedFS' filer."""

# 1.5 kB for each write, which no follower reads here. Source: SeaweedFS wiki, "Filer Server API";
# SeaweedFS' own shell removes it in this way too (`fs.log.purge`).

from datetime import datetime, timedelta
from typing import Any

import aiohttp

_LOG = "/topics/.system/log"
KEPT = timedelta(hours=1)  # the filer's own parts read it some minutes later


async def purge(filer_url: str, *, before: datetime) -> int:
    """Remove the log before a time. Return how many files. Raises aiohttp.ClientError."""
    removed = 0
    async with aiohttp.ClientSession(
        filer_url, raise_for_status=True, timeout=aiohttp.ClientTimeout(total=60)
    ) as http:
        for day in await _entries(http, _LOG):
            files = await _entries(http, day["FullPath"])
            old = [
                one["FullPath"] for one in files if datetime.fromisoformat(one["Mtime"]) < before
            ]
            for path in old:
                await _delete(http, path)
            if len(old) == len(files) and datetime.fromisoformat(day["Mtime"]) < before:
                await _delete(http, day["FullPath"])
            removed += len(old)
    return removed


async def _entries(http: aiohttp.ClientSession, folder: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        after = {"lastFileName": found[-1]["FullPath"].rpartition("/")[2]} if found else {}
        query = {"limit": "1000", **after}
        async with http.get(
            f"{folder}/",
            params=query,
            headers={"accept": "application/json"},
            raise_for_status=False,
        ) as response:
            if response.status == 404:  # in a filer's first minute there is no log yet
                return found
            response.raise_for_status()
            page = await response.json()
        found += page["Entries"] or []
        if not page["ShouldDisplayLoadMore"]:
            return found


async def _delete(http: aiohttp.ClientSession, path: str) -> None:
    async with http.delete(path, params={"recursive": "true"}):
        pass
