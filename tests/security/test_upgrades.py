"""Offers to upgrade the connection are declined: the request is read whole, and answered over HTTP/1.1."""

import json

import pytest

from .conftest import edge_of
from .test_heads import answer_to, strangers

BODY = b'{"messages":[{"role":"user","content":"' + b"Hi " * 40_000 + b'"}]}'
H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
OFFERS = {
    "java": H2C,
    "websocket": b"connection: keep-alive, upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\n",
    "unknown": b"upgrade: IRC/6.9, RTA/x11\r\nconnection: UPGRADE\r\n",
    "tls": b"connection: upgrade\r\nupgrade: TLS/1.0\r\nconnection: upgrade\r\n",
}


def post(offer: bytes, framing: bytes) -> bytes:
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + offer + framing + b"\r\n"


@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS)
async def test_the_body_after_an_offer_is_read(offer: bytes) -> None:
    async with edge_of() as edge, strangers(edge) as connect:
        request = post(offer, b"content-length: %d\r\n" % len(BODY)) + BODY
        reader, writer = await connect(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"upgrade" not in head.lower()
        (record,) = edge.log.records
        assert record.request == json.loads(BODY)
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert b"HTTP/1.1 200" in await reader.read()


@pytest.mark.parametrize("size", [1, 7, 1000, 70_000])
async def test_an_offer_is_declined_however_it_is_cut(size: int) -> None:
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    sent = post(H2C, b"transfer-encoding: chunked\r\n") + chunked
    async with edge_of() as edge, strangers(edge) as connect:
        cut = min(len(sent), 600 if size == 1 else len(sent))
        reader, writer = await connect(b"")
        for start in range(0, cut, size):
            writer.write(sent[start : start + size])
            await writer.drain()
        writer.write(sent[cut:])
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        assert edge.log.records[0].request == json.loads(BODY)


async def test_two_requests_with_offers_in_one_piece_are_both_answered() -> None:
    get = b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + OFFERS["websocket"] + b"\r\n"
    last = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    async with edge_of() as edge, strangers(edge) as connect:
        assert (await answer_to(connect, get + get + last)).count(b"HTTP/1.1 200") == 3


async def test_an_offer_hides_no_second_request() -> None:
    """Two framings are refused as they are without an offer."""
    both = b"content-length: 5\r\ntransfer-encoding: chunked\r\n"
    async with edge_of() as edge, strangers(edge) as connect:
        got = await answer_to(connect, post(H2C, both) + b"0\r\n\r\nGET /reef/status")
        assert got.startswith(b"HTTP/1.1 400")
        assert got.count(b"HTTP/1.1") == 1
