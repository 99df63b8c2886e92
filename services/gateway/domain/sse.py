"""Server-sent events: a byte stream cut into frames (WHATWG HTML, section 9.2.6)."""

DONE = b"data: [DONE]\n\n"
LF = 10  # `bytes in bytes` first tries to read a number, and pays for an exception
MAX_FRAME_BYTES = 16 * 1024 * 1024


class FrameTooLarge(ValueError):
    """An upstream does not end a frame."""


class Frames:
    """Cuts chunks of any size into frames, without their empty line. Lines are joined by LF."""

    __slots__ = ("_buffer", "_carry")

    def __init__(self) -> None:
        self._buffer = b""
        self._carry = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the complete frames.

        Raises:
            FrameTooLarge: more than MAX_FRAME_BYTES without an end.
        """
        if self._carry or b"\r" in chunk:
            chunk = self._unix(chunk)
        buffer = self._buffer + chunk if self._buffer else chunk
        if not buffer.endswith(b"\n\n"):
            cut = buffer.rfind(b"\n\n")
            if cut < 0:
                if len(buffer) > MAX_FRAME_BYTES:
                    raise FrameTooLarge
                self._buffer = buffer
                return []
            self._buffer = buffer[cut + 2 :]
            buffer = buffer[:cut]
        else:
            self._buffer = b""
        return [frame for piece in buffer.split(b"\n\n") if (frame := piece.strip(b"\n"))]

    def lines(self, chunk: bytes) -> list[bytes] | None:
        """Return the data of whole frames with a line each; None if `feed` must read them."""
        if (
            self._buffer
            or self._carry
            or not chunk.startswith(b"data: ")
            or not chunk.endswith(b"\n\n")
            or b"\r" in chunk
        ):
            return None
        found = chunk[6:-2].split(b"\n\ndata: ")
        return found if chunk.count(b"\n") == 2 * len(found) else None

    def rest(self) -> bytes:
        """Return the bytes of an unfinished frame."""
        return (self._buffer + self._carry).strip(b"\r\n")

    def _unix(self, chunk: bytes) -> bytes:
        chunk = self._carry + chunk
        # A CR at the very end may be half of a CR LF.
        self._carry = b"\r" if chunk.endswith(b"\r") else b""
        if self._carry:
            chunk = chunk[:-1]
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def data_of(frame: bytes) -> bytes:
    """Return the data of a frame; empty for comments and for frames without data."""
    if frame.startswith(b"data: ") and LF not in frame:
        return frame[6:]
    return b"\n".join(
        line[5:].removeprefix(b" ") for line in frame.split(b"\n") if line.startswith(b"data:")
    ).strip()
