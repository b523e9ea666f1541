"""Frames of one stream, as they come: read where they lie, with the names that tables have now."""

from __future__ import annotations

from typing import Any

from ...ext.intake import Catalogue, Reader, Received
from ...fingerprints.catalogue import FORMER_TABLES, TABLES
from ...fingerprints.frames import FrameError, decode
from ...fingerprints.streaming import CONTEXT_BYTES_MAX, Receiver, StreamError
from ...fingerprints.wire import telemetry_pb2 as wire
from ..fleet.fleet import Fleet
from ..fleet.kept import KEPT
from ..refusals import DifferencesLost
from ..store.rows import plan


def _plan(name: str, signal_ids: tuple[int, ...]) -> tuple[Any, ...]:
    name = FORMER_TABLES.get(name, name)
    places = _PLACES.get(name, {})
    kept = [places.get(each, -1) for each in signal_ids]
    return plan(name, signal_ids, _NUMBERS.get(name, -1), kept)


#: Table -> where it stands among the fleet's, if anything of it is kept there.
_NUMBERS = {
    name: number for number, (name, table) in enumerate(Fleet().tables.items()) if table.is_kept
}
#: Table -> signal id -> its column among those that the fleet keeps.
_PLACES = {
    name: {s.signal_id: at for at, s in enumerate(s for s in signals if s.name in KEPT)}
    for name, signals in TABLES.items()
}
#: Where the columns of agents' tables belong, of all streams.
CATALOGUE = Catalogue(_plan)


class Incoming:
    """What one stream remembers of the frames before."""

    def __init__(self) -> None:
        self._differences = Receiver(CONTEXT_BYTES_MAX)
        self._reader = Reader(CATALOGUE, decode)

    def frame(self, message: wire.TelemetryBatch) -> Received:
        """Return the frame, whichever way it came. Raises FrameError with words; DifferencesLost."""
        if not message.differences:
            return self._reader.read(message.frame)
        try:
            return self._reader.read(self._differences.decode(message.differences))
        except (
            StreamError,
            FrameError,
        ) as error:  # a wrong checksum: they remember different things
            raise DifferencesLost(
                f"the differences of frame {message.sequence} make no frame: {error}; "
                "begin a new stream"
            ) from error


def received(data: bytes) -> Received:
    """Return a frame that belongs to no stream. Raises FrameError."""
    return Reader(CATALOGUE, decode).read(data)
