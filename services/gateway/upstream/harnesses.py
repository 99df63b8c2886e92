"""The text of the harness that serves, for chats of plain clients."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from reefcommon.config_sections import HarnessSection
from reefcommon.errors import Poison, Unavailable
from reefcommon.events import AppliedHarness, Release
from reefcommon.harness.delivery import added, render_chat
from reefcommon.harness.files import read_tree
from reefcommon.releases import loads_of
from services.gateway.domain.errors import ApiError
from services.gateway.upstream.contents import Contents

SESSIONS = 50_000
TEXTS = 64


@dataclass(slots=True)
class Harnesses:
    """Adds a harness to messages. A session keeps the harness that it began with."""

    section: HarnessSection
    contents: Contents | None
    # by scenario and session: the release whose harness its first request had
    _begun: OrderedDict[tuple[str, str], Release] = field(default_factory=OrderedDict)
    _texts: OrderedDict[str, str] = field(default_factory=OrderedDict)

    async def add(
        self, body: dict[str, Any], release: Release | None, session: str | None
    ) -> AppliedHarness | None:
        """Change the messages of a decoded chat; return the change, if any.

        `session`: its tag. Without a tag each request has the harness of its own release, as the
        client may have begun anew. Raises ApiError (503): the harness cannot be read now.
        """
        if release is None or (at := self.section.at(release.scenario)) is None:
            return None
        if session is not None:
            release = self._first(release, session)
        content = release.contents.get("harness")
        if content is None:
            return None
        text = self._texts.get(content)
        if text is None:
            text = await self._read(release, content)
        if not text:
            return None
        body["messages"] = added(text, body["messages"], at).to(body["messages"])
        release_id = release.release_id
        return AppliedHarness(release_id=release_id, content_id=content, at=at, text=text)

    def loads(self, release: Release | None, session: str | None) -> dict[str, str]:
        """Return the loads of a request whose session has another harness than its release."""
        if release is None or self.section.at(release.scenario) is None or not release.loads:
            return {}
        began = self._begun.get((release.scenario, session or ""))
        if began is None:
            return {}
        return {**release.loads, "harness": loads_of(began)["harness"]}

    def _first(self, release: Release, session: str) -> Release:
        key = release.scenario, session
        found = self._begun.setdefault(key, release)
        self._begun.move_to_end(key)
        if len(self._begun) > SESSIONS:
            self._begun.popitem(last=False)
        return found

    async def _read(self, release: Release, content: str) -> str:
        if self.contents is None:
            raise _unreadable("no artifact store is configured")
        try:
            found = await self.contents.find(release.scenario, release.release_id, "harness")
            text = render_chat(await asyncio.to_thread(read_tree, found[0]))
        except (ApiError, Unavailable, Poison) as error:
            raise _unreadable(str(error)) from error
        self._texts[content] = text
        if len(self._texts) > TEXTS:
            self._texts.popitem(last=False)
        return text


def _unreadable(reason: str) -> ApiError:
    words = f"The harness of this scenario cannot be read now: {reason}. Try again."
    return ApiError(503, words, code="harness_unavailable", retry_after_s=2)
