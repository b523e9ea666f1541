"""Retention of the history: chooses Parquet files to delete by age, size, and free disk space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .segment_files import HOUR, MINUTE, RAW, ParquetSegment
from .views import span_us

#: Order of removal on a full disk: older readings then remain by minute or hour. A grain is removed
#: only while free space is below this share of its target: a neighbor's log must not cost a year of
#: hours, which are small.
REMOVAL_ORDER = ((RAW, 1.0), (MINUTE, 0.5), (HOUR, 0.25))
#: Removal continues to this multiple of the target, so that not each segment triggers another one.
ROOM_RATIO = 1.25


@dataclass(frozen=True, slots=True)
class RetentionLimit:
    """Retention of a grain in seconds and bytes."""

    seconds: int
    bytes: int


def expired(
    found: Sequence[ParquetSegment], before_us: int, bytes_max: int
) -> list[ParquetSegment]:
    """Return files that ended before *before_us*, and the oldest beyond *bytes_max*."""
    old = [segment for segment in found if span_us(segment.bucket)[1] < before_us]
    retained = [segment for segment in found if span_us(segment.bucket)[1] >= before_us]
    over = sum(segment.bytes for segment in retained) - bytes_max
    return old + _oldest(retained, over)


def _oldest(found: Sequence[ParquetSegment], bytes_wanted: int) -> list[ParquetSegment]:
    """Return the oldest files with *bytes_wanted* together."""
    chosen: list[ParquetSegment] = []
    for segment in found:
        if bytes_wanted <= 0:
            break
        chosen.append(segment)
        bytes_wanted -= segment.bytes
    return chosen


def choose_for_room(
    found: Sequence[ParquetSegment], bytes_wanted: int, free_share: float
) -> list[ParquetSegment]:
    """Return files to remove to free *bytes_wanted*: the oldest raw ones, then minutes, then hours.

    *free_share*: free space as a share of its target.
    """
    chosen: list[ParquetSegment] = []
    for grain, below in REMOVAL_ORDER:
        if grain == RAW or free_share < below:
            candidates = sorted(
                (segment for segment in found if segment.grain == grain),
                key=lambda segment: (segment.bucket, segment.path),
            )
            chosen += _oldest(candidates, bytes_wanted - sum(segment.bytes for segment in chosen))
    return chosen


def free_bytes_target(total_bytes: int, free_bytes_min: int, free_share_min: float) -> int:
    """Return the target of free bytes: the smaller limit, because a small disk needs space."""
    return min(free_bytes_min, int(total_bytes * free_share_min))


class DiskFullness:
    """Detects an almost full disk: below the target, until a quarter more than it is free."""

    def __init__(self) -> None:
        self.is_low = False

    def bytes_to_free(self, free_bytes: int, wanted_bytes: int) -> int:
        """Update the state; return the bytes to free now, 0 if none."""
        if free_bytes < wanted_bytes:
            self.is_low = True
        elif free_bytes >= wanted_bytes * ROOM_RATIO:
            self.is_low = False
        return max(0, int(wanted_bytes * ROOM_RATIO) - free_bytes) if self.is_low else 0
