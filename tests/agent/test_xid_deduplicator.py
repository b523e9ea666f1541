"""One XID from two sources: reported once, and never lost."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.xid_reports import (
    DUPLICATE_NS_MAX,
    ENTRIES_MAX,
    REPEAT_NS_MIN,
    SECOND_NS,
    PendingReports,
    XidDeduplicator,
)

GPU = "0000:3b:00.0"


def test_the_kernel_log_is_believed_within_two_seconds() -> None:
    """NVML's event came first, the log's line a moment later: one XID was reported as two."""
    witness = XidDeduplicator()
    witness.record(GPU, 94, 10 * SECOND_NS)
    assert witness.was_recorded(GPU, 94, 10 * SECOND_NS - 1)
    assert witness.was_recorded(GPU, 94, 10 * SECOND_NS + DUPLICATE_NS_MAX)
    assert not witness.was_recorded(GPU, 94, 10 * SECOND_NS + DUPLICATE_NS_MAX + 1)


def test_another_code_or_gpu_is_another_xid() -> None:
    """A 48 in the log does not duplicate the 95 that followed it."""
    witness = XidDeduplicator()
    witness.record(GPU, 48, SECOND_NS)
    assert not witness.was_recorded(GPU, 95, SECOND_NS)
    assert not witness.was_recorded("0000:3c:00.0", 48, SECOND_NS)


def test_an_old_record_read_late_hides_no_newer_one() -> None:
    """Records of the ring are read again after a restart, mixed with new records."""
    witness = XidDeduplicator()
    witness.record(GPU, 79, 100 * SECOND_NS)
    witness.record(GPU, 79, SECOND_NS)
    assert witness.was_recorded(GPU, 79, 100 * SECOND_NS)


def test_what_is_remembered_is_bounded() -> None:
    """Eight hundred thousand lines of distinct codes must not be eight hundred thousand entries."""
    witness = XidDeduplicator()
    for code in range(3 * ENTRIES_MAX):
        witness.record(GPU, code, SECOND_NS)
    assert not witness.was_recorded(GPU, 2 * ENTRIES_MAX - 1, SECOND_NS)
    assert witness.was_recorded(GPU, 2 * ENTRIES_MAX, SECOND_NS)


def test_nobody_reads_the_log_until_somebody_says_so() -> None:
    """An agent that may not read /dev/kmsg does not wait for it."""
    witness = XidDeduplicator()
    assert not witness.reads_the_kernel_log
    witness.reads_the_kernel_log = True
    assert witness.reads_the_kernel_log


def test_what_is_heard_is_told_after_the_hold() -> None:
    """Held back for the log, but no longer."""
    hearings = PendingReports()
    hearings.add("xid 79", 0)
    assert hearings.due(DUPLICATE_NS_MAX - 1, DUPLICATE_NS_MAX) == []
    ((about, hearing),) = hearings.due(DUPLICATE_NS_MAX, DUPLICATE_NS_MAX)
    assert (about, hearing.first_ns, hearing.count) == ("xid 79", 0, 1)
    assert hearings.due(100 * SECOND_NS, 0) == []


def test_a_storm_is_one_telling_in_ten_seconds() -> None:
    """A GPU with a bad row delivered a thousand ECC events a second to the fast lane."""
    hearings = PendingReports()
    reported: list[int] = []
    for millisecond in range(0, 30_000, 10):
        hearings.add("ECC", millisecond * 1_000_000)
        reported += [hearing.count for _, hearing in hearings.due(millisecond * 1_000_000, 0)]
    assert reported == [1, 1000, 1000]


def test_a_flood_of_different_things_is_bounded() -> None:
    """Garbage codes of a broken driver."""
    hearings = PendingReports()
    for code in range(ENTRIES_MAX + 7):
        hearings.add(code, 0)
    assert hearings.dropped == 7
    assert len(hearings.due(0, 0)) == ENTRIES_MAX


@dataclass(frozen=True)
class Step:
    """After a time: an event arrives (0-3), or only the clock advances (None)."""

    after_ns: int
    about: int | None


STEPS = st.lists(
    st.builds(Step, st.integers(0, 4 * SECOND_NS), st.none() | st.integers(0, 3)), max_size=60
)


@given(STEPS, st.sampled_from([0, DUPLICATE_NS_MAX]))
def test_nothing_heard_is_lost_or_told_twice(steps: list[Step], hold_ns: int) -> None:
    """For any times: counts add up, no report is too early or too frequent, none is kept forever."""
    hearings, now = PendingReports(), 0
    hearing: dict[object, int] = {}
    reported: dict[object, int] = {}
    last: dict[object, int] = {}

    def collect() -> None:
        for about, what in hearings.due(now, hold_ns):
            assert now >= what.first_ns + hold_ns and what.last_ns >= what.first_ns
            assert now - last.get(about, now - REPEAT_NS_MIN) >= REPEAT_NS_MIN
            reported[about] = reported.get(about, 0) + what.count
            last[about] = now

    for step in steps:
        now += step.after_ns
        if step.about is not None:
            hearings.add(step.about, now)
            hearing[step.about] = hearing.get(step.about, 0) + 1
        collect()
    now += REPEAT_NS_MIN + hold_ns
    collect()
    assert reported == hearing
