"""A stream on its way: bytes of the node in, bytes for the client out, and beside it the record's answer."""

from collections.abc import Sequence

import orjson

from services.gateway.domain.assembly import Assembly, Malformed
from services.gateway.domain.exchange import Api, Asked
from services.gateway.domain.sse import Frames, FrameTooLarge, data_of


class Stream:
    """Takes the body of one stream, however it is cut. `terminated`: its terminator has come, and what follows that is nobody's."""

    __slots__ = ("_frames", "assembly", "terminated")

    def __init__(self, api: Api, asked: Asked) -> None:
        self._frames = Frames()
        self.assembly = Assembly(api, asked)
        self.terminated = False

    def feed(self, chunk: bytes) -> bytes:
        """What the client gets of the frames that are complete now, in one piece; not the terminator.

        Raises:
            Malformed: the node sent what is no stream; in words that follow "the serving node".
        """
        try:
            lines = self._frames.lines(chunk)
            if lines is not None:
                found = self._events(lines, lines)
                return b"data: " + b"\n\ndata: ".join(found) + b"\n\n" if found else b""
            frames = self._frames.feed(chunk)
            found = self._events([data_of(frame) for frame in frames], frames, b"data: ")
            return b"\n\n".join(found) + b"\n\n" if found else b""
        except FrameTooLarge:
            raise Malformed("sent an event without an end") from None
        except orjson.JSONDecodeError:
            raise Malformed("sent an event that is not JSON") from None
        except (
            orjson.JSONEncodeError,
            RecursionError,
            Malformed,
        ) as error:  # nested or numbered without end
            raise Malformed(f"sent an event that cannot be read: {error}") from None

    def _events(
        self, datas: Sequence[bytes], frames: Sequence[bytes], prefix: bytes = b""
    ) -> list[bytes]:
        """What the client gets of each frame: an event as it is without Reef, after `prefix`; all else as it came."""
        found = []
        piece, take = self.assembly.piece, self.assembly.take
        for data, frame in zip(datas, frames, strict=True):
            if data == b"[DONE]":
                self.terminated = True
                break
            event = orjson.loads(data) if data else None
            if type(event) is not dict:
                found.append(frame)
            elif piece(event) or take(event):
                found.append(prefix + orjson.dumps(event))
        return found
