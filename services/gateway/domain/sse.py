"""Server-sent events: a byte stream cut into frames (WHATWG HTML, section 9.2.6)."""

DONE = b"data: [DONE]\n\n"
LF = 10  # `bytes in bytes` first tries to read a number, and pays for an exception
MAX_FRAME_BYTES = 16 * 1024 * 1024


class Frames:
    """Cuts chunks of any size into frames, without their empty line. Lines are joined by LF."""

    __slots__ = ("_buffer", "_carry")

    def __init__(self) -> None:
        self._buffer = b""
        self._carry = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the complete frames.

        Raises:
            ValueError: more than MAX_FRAME_BYTES without an end.
        """
        if self._carry or b"\r" in chunk:
            chunk = self._unix(chunk)
        buffer = self._buffer + chunk if self._buffer else chunk
        complete, empty_line, self._buffer = buffer.rpartition(b"\n\n")
        if not empty_line and len(buffer) > MAX_FRAME_BYTES:
            raise ValueError(f"more than {MAX_FRAME_BYTES} bytes without an end")
        return [frame for piece in complete.split(b"\n\n") if (frame := piece.strip(b"\n"))]

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

    def _unix(self, chunk: bytes) -> bytes:
        chunk = self._carry + chunk
        # A CR at the very end may be half of a CR LF.
        if chunk.endswith(b"\r"):
            chunk, self._carry = chunk[:-1], b"\r"
        else:
            self._carry = b""
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def data_of(frame: bytes) -> bytes:
    """Return the data of a frame; empty for comments and for frames without data."""
    if frame.startswith(b"data: ") and LF not in frame:
        return frame[6:]
    return b"\n".join(
        line[5:].removeprefix(b" ") for line in frame.split(b"\n") if line.startswith(b"data:")
    ).strip()
