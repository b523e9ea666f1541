"""The segments of a spool alone: placement, retention, and the choice of frames to read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gangline.agent.spool.segment import FileSegment
from gangline.agent.spool.segments import (
    FIND_BYTES_MAX,
    MEMORY_BYTES_MAX,
    MEMORY_SEGMENT_BYTES,
    Segments,
)

FRAME = b"x" * 84  # a record of 100 bytes


@pytest.fixture
def segments(tmp_path: Path) -> Segments:
    """Return segments with space for ten records, four a segment; the first segment is begun."""
    created = Segments(tmp_path, bytes_max=1000, segment_bytes=400)
    created.begin(1)
    return created


def found(segments: Segments, after: int = 0) -> list[int]:
    chosen = segments.find(after, 1000)
    return chosen[1] if chosen else []


def test_a_find_is_bounded_in_bytes_and_gives_one_frame_at_least(tmp_path: Path) -> None:
    """A backlog of large frames was read at once, and the agent grew by 250 MB."""
    segments = Segments(tmp_path, bytes_max=1 << 30, segment_bytes=1 << 24)
    for sequence in (1, 2, 3):
        segments.append(sequence, bytes(FIND_BYTES_MAX * 2 // 5))
    segments.append(4, bytes(FIND_BYTES_MAX))
    assert [found(segments, after) for after in (0, 2, 3)] == [[1, 2], [3], [4]]
    segments.close()


def test_the_newest_file_stays_also_when_it_alone_is_too_much(segments: Segments) -> None:
    """Without it the numbering would restart, and numbers would be used twice."""
    segments.append(1, FRAME)
    segments.bytes_max = 150
    segments.append(2, FRAME)
    assert (found(segments), segments.dropped_frames) == ([1, 2], 0)
    segments.close()


def test_a_gap_in_the_numbers_begins_a_segment(segments: Segments) -> None:
    """Record n has number first + n: after a gap the old segment gives a wrong frame."""
    segments.append(1, b"one")
    segments.append(5, b"five")
    assert (found(segments), found(segments, 1)) == ([1], [5])
    chosen = segments.find(1, 1)
    assert chosen is not None and chosen[0].read(chosen[1]) == [(5, b"five")]
    segments.close()


def test_a_gap_in_memory_begins_a_segment_too(segments: Segments) -> None:
    """The disk failed, worked for one frame, and failed again."""
    segments.append_in_memory(1, b"one")
    segments.append_in_memory(3, b"three")
    chosen = segments.find(1, 1)
    assert chosen is not None and chosen[0].read(chosen[1]) == [(3, b"three")]
    segments.close()


def test_an_empty_segment_takes_a_frame_larger_than_segments_are(segments: Segments) -> None:
    """Each such frame left an empty file behind."""
    segments.append(1, bytes(500))
    assert len(segments) == 1
    segments.append(2, FRAME)
    assert len(segments) == 2
    segments.close()


def test_only_the_newest_segment_is_open(segments: Segments) -> None:
    """An aggregator was unreachable for a day, and the agent ran out of descriptors."""
    before = len(os.listdir("/proc/self/fd"))
    for sequence in range(1, 10):
        segments.append(sequence, FRAME)
    assert (len(segments), len(os.listdir("/proc/self/fd"))) == (3, before)
    segments.close()


def test_a_segment_that_repeats_numbers_is_removed_and_said(tmp_path: Path) -> None:
    """A backup was unpacked over a spool in use: one number, two frames."""
    for first, count in ((1, 3), (2, 1)):
        segment = FileSegment.create(tmp_path, first)
        for _ in range(count):
            segment.append(FRAME)
        segment.close()
    segments = Segments(tmp_path, bytes_max=1000, segment_bytes=400)
    assert not segments.scan()
    assert (found(segments), segments.next, segments.dropped_frames) == ([1, 2, 3], 4, 1)
    assert "repeats numbers" in segments.notice[0]
    assert len(list(tmp_path.glob("*.seg"))) == 1
    segments.close()


def test_the_files_are_never_more_than_allowed(segments: Segments, tmp_path: Path) -> None:
    """The spool shared a small partition with the system's log, and filled it by one frame."""
    for sequence in range(1, 40):
        segments.append(sequence, FRAME)
        on_disk = sum(file.stat().st_size for file in tmp_path.glob("*.seg"))
        assert on_disk == segments.disk_bytes <= segments.bytes_max
    kept = segments.waiting_frames
    assert kept >= 6 and segments.dropped_frames == 39 - kept
    segments.close()


def test_frames_in_memory_are_let_go_of_piece_by_piece(segments: Segments) -> None:
    """The disk was missing for a week: exactly the newest megabyte remains."""
    for sequence in range(1, 60):
        segments.append_in_memory(sequence, bytes(40_000))
        assert segments.waiting_bytes <= MEMORY_BYTES_MAX
    assert segments.waiting_bytes > MEMORY_BYTES_MAX - 3 * MEMORY_SEGMENT_BYTES
    assert segments.waiting_frames + segments.dropped_frames == 59
    segments.close()
