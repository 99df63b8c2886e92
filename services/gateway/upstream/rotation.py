"""Nodes that the publisher has set apart: they serve only if no other node can."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog

from reefcommon.errors import Unavailable
from services.gateway.domain.balance import Node

log = structlog.get_logger()


@dataclass(frozen=True)
class RotationFollower:
    """Keeps `Node.apart` as the publisher has it.

    `read` returns the nodes out of rotation, each with the reason; it may raise Unavailable. `urls`
    are the names of `nodes` in the settings, as the publisher knows them.
    """

    read: Callable[[], Awaitable[dict[str, str]]]
    urls: Sequence[str]
    nodes: Sequence[Node]

    async def poll(self) -> None:
        try:
            apart = await self.read()
        except Unavailable as error:  # the last reading holds
            log.debug("rotation_unknown", reason=str(error))
            return
        for url, node in zip(self.urls, self.nodes, strict=True):
            if node.apart != (url in apart):
                node.apart = url in apart
                change = "node_out_of_rotation" if node.apart else "node_in_rotation"
                log.info(change, engine=node.url, reason=apart.get(url, ""))
