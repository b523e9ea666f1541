"""Encodes frames of a stream as differences to earlier frames. Unusable after a ValueError."""

class Encoder:
    """The sender; keeps at most *bytes_max* of tables."""

    kept_bytes: int
    bytes_max: int

    def __init__(self, bytes_max: int) -> None: ...
    def encode(self, frame: bytes) -> bytes:
        """Return the encoded frame; its payload must not be deflated. Raises ValueError."""

class Decoder:
    """The receiver of a stream whose sender keeps at most *bytes_max*."""

    kept_bytes: int
    bytes_max: int

    def __init__(self, bytes_max: int) -> None: ...
    def decode(self, data: bytes) -> bytes:
        """Return the frame; the caller checks its checksum. Raises ValueError."""
