"""Known events: each revision is reported once, and the memory for a fleet is small."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.ingest.ingest import EventDeduplicator, KnownRevisions

IDS = st.sampled_from(["a", "b"])


@given(st.lists(st.tuples(st.booleans(), IDS, IDS, st.integers(0, 3))))
def test_a_revision_is_told_once_and_never_after_a_later_one(
    steps: list[tuple[bool, str, str, int]],
) -> None:
    """An agent without our response sends again: the GPU must not fail twice, nor recover."""
    events, reported, durable = (
        EventDeduplicator(),
        dict[tuple[str, str], int](),
        dict[tuple[str, str], int](),
    )
    for is_report, host, event_id, revision in steps:
        key = host, event_id
        if is_report:
            assert events.mark_reported(*key, revision) == (revision > reported.get(key, -1))
            reported[key] = max(reported.get(key, -1), revision)
        else:
            events.mark_durable(*key, revision)
            durable[key] = max(durable.get(key, -1), revision)
        assert events.of(*key) == KnownRevisions(reported.get(key, -1), durable.get(key, -1))


def test_a_fleet_of_processes_takes_little() -> None:
    """Each GPU process is an event: those of 10,000 hosts took 44 MB, mostly for long ids."""
    events = EventDeduplicator(events_max=1000)
    for number in range(2500):
        assert events.mark_reported("host", f"event-{number}", 0)
        events.mark_durable("host", f"event-{number}", 0)
        assert len(events) <= 1000
    assert not any(
        events.mark_reported("host", f"event-{number}", 0) for number in range(2000, 2500)
    )
    assert events.of("host", "event-0") == KnownRevisions()
    known = [*events._newer.values(), *events._older.values()]
    assert len({id(revisions) for revisions in known}) == 1, "one object for all that are alike"
    assert all(sys.getsizeof(key) <= 36 for key in events._newer)
