"""Encodes frames of one stream as differences to earlier ones. After a ValueError an object is unusable."""

class Encoder:
    """The sending side: keeps at most *bytes_max* of tables."""

    kept_bytes: int
    bytes_max: int

    def __init__(self, bytes_max: int) -> None: ...
    def encode(self, frame: bytes) -> bytes:
        """Return what goes in place of a frame whose payload is not deflated. ValueError."""

class Decoder:
    """The receiving side, of a stream whose sender keeps no more than *bytes_max*."""

    kept_bytes: int
    bytes_max: int

    def __init__(self, bytes_max: int) -> None: ...
    def decode(self, data: bytes) -> bytes:
        """Return the frame, byte for byte; whether it is, its own checksum says. ValueError."""
