"""Retention of the history: chooses Parquet files to delete, by age, by size, and when the disk is almost full. Deletes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .segment_files import HOUR, MINUTE, RAW, ParquetSegment
from .views import span_us

#: What goes for lack of room, in this order: what was kept is then still there by the minute, or the hour. Each only
#: with less free than this share of what is to stay free: a neighbour's log must not cost a year of hours, which are small.
REMOVAL_ORDER = ((RAW, 1.0), (MINUTE, 0.5), (HOUR, 0.25))
#: Room that is made goes so far beyond what was wanting, so that it is not made again with each segment.
ROOM_RATIO = 1.25


@dataclass(frozen=True, slots=True)
class RetentionLimit:
    """How long files of a grain are kept, and how many bytes of them."""

    seconds: int
    bytes: int


def expired(
    found: Sequence[ParquetSegment], before_us: int, bytes_max: int
) -> list[ParquetSegment]:
    """Return the files that end before *before_us*, then the oldest beyond *bytes_max*. *found*: oldest first."""
    old = [one for one in found if span_us(one.bucket)[1] < before_us]
    retained = [one for one in found if span_us(one.bucket)[1] >= before_us]
    over = sum(one.bytes for one in retained) - bytes_max
    return old + _oldest(retained, over)


def _oldest(found: Sequence[ParquetSegment], bytes_wanted: int) -> list[ParquetSegment]:
    """Return as many of the oldest as hold *bytes_wanted*."""
    chosen: list[ParquetSegment] = []
    for one in found:
        if bytes_wanted <= 0:
            break
        chosen.append(one)
        bytes_wanted -= one.bytes
    return chosen


def choose_for_room(
    found: Sequence[ParquetSegment], bytes_wanted: int, free_share: float
) -> list[ParquetSegment]:
    """Return what goes so that *bytes_wanted* come free: the oldest raw, then minutes, then hours.

    *free_share*: what is free now, of what is to stay free.
    """
    chosen: list[ParquetSegment] = []
    for grain, below in REMOVAL_ORDER:
        if grain == RAW or free_share < below:
            of_grain = sorted(
                (o for o in found if o.grain == grain), key=lambda o: (o.bucket, o.path)
            )
            chosen += _oldest(of_grain, bytes_wanted - sum(one.bytes for one in chosen))
    return chosen


def free_bytes_target(total_bytes: int, free_bytes_min: int, free_share_min: float) -> int:
    """Return how many bytes of the disk stay free: the lesser of both limits, so that a small disk has room."""
    return min(free_bytes_min, int(total_bytes * free_share_min))


class DiskFullness:
    """Whether the disk is almost full: from less than `target_bytes` free on, until a quarter more is free."""

    def __init__(self) -> None:
        self.is_low = False

    def bytes_to_free(self, free_bytes: int, wanted_bytes: int) -> int:
        """Take a look; return how many bytes should come free now, 0 when none need to."""
        if free_bytes < wanted_bytes:
            self.is_low = True
        elif free_bytes >= wanted_bytes * ROOM_RATIO:
            self.is_low = False
        return max(0, int(wanted_bytes * ROOM_RATIO) - free_bytes) if self.is_low else 0
