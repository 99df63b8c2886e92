"""Reads of records, sessions, samples and steps: relayed from the experience service."""

import aiohttp

from reefcommon.errors import Unavailable


class ExperienceReads:
    """Reads over the experience service's internal HTTP API."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the session. Needs the running loop."""
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=10, sock_connect=2), trust_env=False
        )

    async def stop(self) -> None:
        """Close the session."""
        if self._session is not None:
            await self._session.close()

    async def get(
        self, path: str, query: dict[str, str] | None = None, *, timeout_s: float = 10.0
    ) -> tuple[int, bytes]:
        assert self._session is not None
        try:
            async with self._session.get(
                self._url + path,
                params=query or {},
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=2),
            ) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(
                f"the experience service at {self._url} does not answer: {error!r}"
            ) from error
