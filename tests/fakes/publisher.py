"""Works and rotation of the publisher, in memory."""

from services.publisher.domain.work import Work


class MemoryWorks:
    """Works by id."""

    def __init__(self) -> None:
        self.works: dict[tuple[str, str], Work] = {}

    async def get(self, scenario: str, work_id: str) -> Work | None:
        return self.works.get((scenario, work_id))

    async def save(self, work: Work) -> None:
        self.works[work.scenario, work.work_id] = work

    async def live(self) -> list[Work]:
        return [work for work in self.works.values() if not work.ended]


class MemoryRotation:
    """The nodes out of rotation."""

    def __init__(self) -> None:
        self.nodes: dict[str, str] = {}

    async def set_apart(self, url: str, reason: str) -> None:
        self.nodes[url] = reason

    async def put_back(self, url: str) -> None:
        self.nodes.pop(url, None)

    async def apart(self) -> dict[str, str]:
        return dict(self.nodes)
