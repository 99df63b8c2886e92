"""Nodes that the publisher has set apart: they serve only if no other node can."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

import structlog

from reefcommon.errors import Unavailable
from services.gateway.domain.balance import Node

log = structlog.get_logger()

EVERY_S = 1.0


class Apart(Protocol):
    """The publisher's list."""

    async def apart(self) -> dict[str, str]:
        """Return the nodes out of rotation, each with the reason. Raises Unavailable."""


class RotationFollower:
    """Keeps `Node.apart` as the publisher has it."""

    def __init__(self, source: Apart, urls: Sequence[str], nodes: Sequence[Node]) -> None:
        self._source = source
        # under the names of the settings, as the publisher knows them
        self._nodes = dict(zip(urls, nodes, strict=True))

    async def look(self) -> None:
        try:
            self._mark(await self._source.apart())
        except Unavailable as error:  # the last reading holds
            log.debug("rotation_unknown", reason=str(error))

    async def follow(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await self.look()

    def _mark(self, apart: Mapping[str, str]) -> None:
        for url, node in self._nodes.items():
            if node.apart != (url in apart):
                node.apart = url in apart
                log.info(
                    "node_out_of_rotation" if node.apart else "node_in_rotation",
                    engine=node.url,
                    reason=apart.get(url, ""),
                )
