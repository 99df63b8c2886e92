"""A stream: the node's bytes in, the client's bytes and the record's answer out."""

from collections.abc import Sequence

import orjson

from services.gateway.domain.assembly import Assembly
from services.gateway.domain.dialects.legible import check_chunk
from services.gateway.domain.errors import UpstreamFailed, invalid_answer
from services.gateway.domain.exchange import Api, Asked
from services.gateway.domain.jsontext import dumps, loads
from services.gateway.domain.sse import Frames, data_of


class Stream:
    """Takes the body of a stream in any pieces. Bytes after the terminator are dropped."""

    __slots__ = ("_frames", "_translated", "assembly", "terminated")

    def __init__(self, api: Api, asked: Asked, *, translated: bool = False) -> None:
        self._frames, self._translated = Frames(), translated
        self.assembly = Assembly(api, asked)
        self.terminated = False

    def feed(self, chunk: bytes) -> bytes:
        """Return the client's part of the complete frames, without the terminator.

        Raises:
            UpstreamFailed: it is no valid stream.
        """
        try:
            lines = self._frames.lines(chunk)
            if lines is not None:
                found = self._events(lines, lines)
                return b"data: " + b"\n\ndata: ".join(found) + b"\n\n" if found else b""
            frames = self._frames.feed(chunk)
            found = self._events([data_of(frame) for frame in frames], frames, b"data: ")
            return b"\n\n".join(found) + b"\n\n" if found else b""
        except orjson.JSONDecodeError:
            raise invalid_answer("sent an event that is not JSON") from None
        except (ValueError, TypeError, RecursionError) as error:  # nested or numbered without end
            raise invalid_answer(f"sent an event that cannot be read: {error}") from None

    def end(self) -> bytes:
        """Return the client's part of a last event without its empty line.

        Half an event is dropped: the stream then has no terminator.
        """
        try:
            return self.feed(b"\n\n")
        except UpstreamFailed:
            return b""

    def _events(
        self, datas: Sequence[bytes], frames: Sequence[bytes], prefix: bytes = b""
    ) -> list[bytes]:
        # an event is sent as it is without Reef, every other frame as it came
        found = []
        take = self.assembly.take
        for data, frame in zip(datas, frames, strict=True):
            if data == b"[DONE]":
                self.terminated = True
                break
            event = loads(data) if data else None
            if self._translated and type(event) is dict:
                check_chunk(event)
            if type(event) is not dict:
                found.append(frame)
            elif take(event):
                found.append(prefix + dumps(event))
        return found
