"""The body store and the claim checks of the bus, without a broker."""

import hashlib
from pathlib import Path

import pytest

from reefcommon.errors import Poison
from reefcommon.events import BodyRef
from reefkit.bodies import (
    CLAIM_HEADER,
    CLAIM_OVER_BYTES,
    BodyMissing,
    FilesystemBodies,
    claim_check,
    claim_in,
    whole_value,
)


async def test_bodies_are_named_and_checked_by_their_digest(tmp_path: Path) -> None:
    content = b'{"request": {"messages": []}, "response": null}'
    sha = hashlib.sha256(content).hexdigest()
    (tmp_path / sha).write_bytes(content)
    (tmp_path / ("b" * 64)).write_bytes(content)
    bodies = FilesystemBodies(tmp_path)
    assert await bodies.read(BodyRef(uri="file:///elsewhere", sha256=sha, size_bytes=1)) == content
    for wrong, error, why in (
        ("a" * 64, BodyMissing, "is not in"),
        ("b" * 64, Poison, "is not what its digest says"),
        ("../../etc/passwd", Poison, "not a SHA-256"),
    ):
        with pytest.raises(error, match=why):
            await bodies.read(BodyRef(uri="", sha256=wrong, size_bytes=1))


async def test_a_body_that_cannot_be_written_leaves_no_part(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        await FilesystemBodies(tmp_path / "file").keep(b"x")
    bodies = FilesystemBodies(tmp_path / "bodies")
    ref = await bodies.keep(b"x")
    assert ref == await bodies.keep(b"x")
    assert [path.name for path in bodies.root.iterdir()] == [ref.sha256]


@pytest.mark.parametrize("value", [b'{"n": "%s"}', b"[%s]", b"not JSON %s"])
async def test_any_large_value_travels_as_a_claim(tmp_path: Path, value: bytes) -> None:
    """Whatever it is: a dead letter that is sent again may be no event at all."""
    bodies = FilesystemBodies(tmp_path)
    large = value % (b"7" * CLAIM_OVER_BYTES)
    small, headers = await claim_check(large, bodies)
    assert small == b"{}"
    sent = [(name, text.encode()) for name, text in headers.items()]
    assert await whole_value(small, sent, bodies) == large
    assert await claim_check(b"small", bodies) == (b"small", {})


async def test_a_claim_leaves_readable_who_it_is(tmp_path: Path) -> None:
    large = b'{"type": "t.v1", "event_id": "e", "scenario": "s", "n": "%s"}' % (b"x" * 1_000_000)
    small, headers = await claim_check(large, FilesystemBodies(tmp_path))
    assert small == b'{"type":"t.v1","event_id":"e","scenario":"s"}'
    assert list(headers) == [CLAIM_HEADER]


@pytest.mark.parametrize("text", [b"", None, b"{}", b"\xff", b'{"sha256": 3}'])
def test_a_claim_that_cannot_be_read_is_poison(text: bytes | None) -> None:
    with pytest.raises(Poison, match=CLAIM_HEADER):
        claim_in([("other", b"x"), (CLAIM_HEADER, text)])
