"""Reads of records, sessions, samples and steps: relayed from the experience service."""

from urllib.parse import urlencode

from reefcommon.errors import Unavailable, said
from services.gateway.upstream.pool import Pool


class ExperienceReads:
    """Reads over the experience service's internal HTTP API."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool = Pool(url, [], connect_timeout_s=2.0, read_timeout_s=10.0)

    def stop(self) -> None:
        """Close the connections."""
        self._pool.close()

    async def get(
        self, path: str, query: dict[str, str] | None = None, *, timeout_s: float = 10.0
    ) -> tuple[int, bytes]:
        try:
            target = f"{path}?{urlencode(query)}" if query else path
            return await self._pool.get(target, timeout_s=timeout_s)
        except OSError as error:
            words = f"the experience service at {self._url} does not answer: {said(error)}"
            raise Unavailable(words) from error
