"""How long the HTTP/2 frames are that come, told before they are kept: `h2` keeps 16 MB before it says "too long"."""

from __future__ import annotations

#: What a side allows that says nothing else (RFC 9113, 6.5.2).
FRAME_BYTES_MAX = 1 << 14
_HEAD_BYTES = 9


class FrameTooLong(ValueError):
    """A frame's head says more than FRAME_BYTES_MAX; the words say how much."""


class FrameLengths:
    """Looks at each frame's head (RFC 9113, 4.1) as its bytes come, however they are cut."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0  # of the frame that its head announced

    @property
    def between_frames(self) -> bool:
        """All that came was whole frames."""
        return not self._left and not self._head

    def bytes_left(self, head: bytes) -> int:
        """Return how many bytes belong to the frame in hand, or to the one that *head* begins: as far as is known."""
        if self._left:
            return self._left
        whole = (self._head + head)[:_HEAD_BYTES]
        body = int.from_bytes(whole[:3], "big") if len(whole) == _HEAD_BYTES else 0
        return _HEAD_BYTES - len(self._head) + body

    def check(self, data: bytes) -> None:
        """Raises FrameTooLong, whatever the bytes are; nothing else."""
        at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
                at += step
                continue
            piece = data[at : at + _HEAD_BYTES - len(self._head)]
            self._head += piece
            at += len(piece)
            if len(self._head) == _HEAD_BYTES:
                self._left, self._head = int.from_bytes(self._head[:3], "big"), b""
                if self._left > FRAME_BYTES_MAX:
                    raise FrameTooLong(
                        f"a frame of {self._left} bytes: at most {FRAME_BYTES_MAX} were agreed on"
                    )
