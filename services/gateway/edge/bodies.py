"""Request bodies: read within limits of size, time and memory, and decompressed."""

import asyncio
import time
import zlib
from dataclasses import dataclass

from starlette.types import Message, Receive

from services.gateway.domain.errors import ApiError, invalid
from services.gateway.domain.memory import COPIES, Charge
from services.gateway.exchange.client import ClientGone

BODY_SILENCES = 10  # a whole body may take as many of the longest silences
PIECE_BYTES = 256 * 1024  # decompressed at once: other requests run in between
_GZIP, _ZLIB, _RAW = 31, 15, -15  # zlib's window bits
_ENCODINGS = {b"gzip": _GZIP, b"x-gzip": _GZIP, b"deflate": _ZLIB}


@dataclass(frozen=True, slots=True)
class BodyReader:
    """Reads bodies of at most `max_bytes`. `silence_s` is the longest pause within a body."""

    max_bytes: int
    silence_s: float = 60.0

    async def read(self, headers: dict[bytes, bytes], receive: Receive, charge: Charge) -> bytes:
        """Return the whole body, charged twice as it comes: it will be copied.

        Raises:
            ApiError: 400, 408, 413, 415, 503.
            ClientGone: the client left.
        """
        length = headers.get(b"content-length", b"0")
        declared = int(length) if length.isdigit() else 0
        if declared > self.max_bytes:
            raise self._too_large()
        charge.memory.check(COPIES * declared)  # announced bytes take no memory yet
        encoding = headers.get(b"content-encoding", b"identity").strip().lower() or b"identity"
        if encoding != b"identity" and encoding not in _ENCODINGS:
            named = encoding.decode("latin-1")[:80]
            words = f"The content-encoding {named!r} is not supported; send gzip, deflate, or none."
            raise ApiError(415, words, code="unsupported_encoding", param="content-encoding")
        parts: list[bytes] = []
        size, ends = 0, time.monotonic() + BODY_SILENCES * self.silence_s
        while True:
            # uvicorn limits the wait for the first part: it comes with the headers
            message = await (self._piece(receive, ends) if parts else receive())
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            size += len(part)
            if size > self.max_bytes:
                raise self._too_large()
            charge.to(COPIES * size)
            parts.append(part)
            if not message.get("more_body", False):
                break
        raw = parts[0] if len(parts) == 1 else b"".join(parts)
        return raw if encoding == b"identity" else await self._decoded(raw, encoding, charge)

    async def _piece(self, receive: Receive, ends: float) -> Message:
        left = ends - time.monotonic()
        try:
            async with asyncio.timeout(min(self.silence_s, left)):
                return await receive()
        except TimeoutError:
            late = f"it was not there after {BODY_SILENCES * self.silence_s:g} s"
            why = f"no byte of it came for {self.silence_s:g} s" if left > self.silence_s else late
            words = f"The request's body took too long: {why}."
            raise ApiError(408, words, code="body_timeout") from None

    async def _decoded(self, raw: bytes, encoding: bytes, charge: Charge) -> bytes:
        bits = _ENCODINGS[encoding]
        if bits == _ZLIB and not (raw[:1] and raw[0] & 15 == 8):
            bits = _RAW  # many clients send "deflate" without zlib's header
        stream = zlib.decompressobj(bits)
        parts, size, rest = [], 0, raw
        try:
            while not stream.eof:
                part = stream.decompress(rest, PIECE_BYTES)
                rest = stream.unconsumed_tail
                if not part and not rest:
                    break
                size += len(part)
                if size > self.max_bytes:
                    raise self._too_large()
                charge.to(COPIES * (len(raw) + size))
                parts.append(part)
                await asyncio.sleep(0)
        except zlib.error as error:
            raise _no_encoding(encoding, str(error)) from None
        if not stream.eof or stream.unused_data:
            raise _no_encoding(encoding, "it is cut off, or more follows")
        charge.to(COPIES * size)
        return b"".join(parts)

    def _too_large(self) -> ApiError:
        words = f"The request body has more than {self.max_bytes} bytes."
        return ApiError(413, words, code="body_too_large")


def _no_encoding(encoding: bytes, words: str) -> ApiError:
    return invalid("content-encoding", f"The request body is no {encoding.decode()}: {words}.")
