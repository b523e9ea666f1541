"""An external file of fault events: it gives faults, or an error with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.hazard import events, fault_classes
from gangline.aggregator.hazard.events import (
    EventsError,
    nodes_in_file_name,
    parse_events,
    read_events,
)
from tests.aggregator.hazard.fleets import data_of, event, fault

GOOD = data_of(fault("a", 1.0, 2.0))


def test_starts_and_ends_are_paired_in_the_order_of_time() -> None:
    """A file joined from two is unordered; overlapping faults of a node have their own ends."""
    rows = [*fault("a", 5.0, 9.0), event("a", 6.0, True, kind="NIC"), event("a", 7.0, False, kind="NIC")]  # fmt: skip
    faults = parse_events(data_of(rows[::-1]))
    assert faults.nodes == ("a",)
    assert (faults.start.tolist(), faults.end.tolist()) == ([5.0, 6.0], [9.0, 7.0])
    assert faults.notes == ()


def test_what_does_not_pair_is_noted_and_counts_for_nothing() -> None:
    """A recording begins and ends within faults, and may repeat an end."""
    rows = [
        event("a", 1.0, False), *fault("b", 2.0, 3.0), event("b", 3.5, False), event("c", 4.0, True),
        *fault("d", 5.0, 6.0, "Cosmic Rays"),
    ]  # fmt: skip
    faults = parse_events(data_of(rows))
    assert faults.start.tolist() == [-np.inf, 2.0, 4.0, 5.0]
    assert faults.end.tolist() == [1.0, 3.0, np.inf, 6.0]
    assert faults.hardware.tolist() == [True, True, True, False]
    assert faults.classes is not None
    class_names = [[name for name, has in zip(fault_classes.CLASS_NAMES, row, strict=True) if has] for row in faults.classes]  # fmt: skip
    assert class_names == [["hardware"], ["hardware"], ["hardware"], ["other"]]
    assert [note.split()[0] for note in faults.notes] == ["1", "1", "1", "1"]
    assert "ends of faults that did not start" in " ".join(faults.notes)


def test_a_recording_that_begins_later_forgets_what_had_ended() -> None:
    """A node down at the begin is down from the first day, and not for unrecorded days."""
    rows = [
        *fault("a", 1.0, 2.0),
        *fault("b", 3.0, 12.0),
        *fault("c", 11.5, 13.0),
        *fault("d", 12.0, None),
    ]
    faults = parse_events(data_of(rows)).since(10.0)
    assert faults.node.tolist() == [1, 2, 3] and len(faults.nodes) == 4
    assert faults.start.tolist() == [-np.inf, 1.5, 2.0]
    assert faults.end.tolist() == [2.0, 3.0, np.inf]
    assert (faults.first_days, faults.end_days) == (1.5, 3.0)
    with pytest.raises(EventsError, match="the recording ends at day 3: expected a beginning"):
        faults.since(3.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"event_time": "7"}, "event_time: expected days as a number, found '7'"),
        ({"event_time": -1}, "expected days from 0 to 10000"),
        ({"event_time": 10**400}, "expected days from 0 to 10000"),
        ({"event_time": True}, "event_time: expected days as a number"),
        ({"event_type": "fault"}, "event_type 'fault': expected fault_start or fault_end"),
        ({"event_type": ["x"]}, "expected fault_start or fault_end"),
        ({"node_id": ""}, "node_id: expected words"),
        ({"node_id": "n" * 257}, "node_id: 257 characters; at most 256"),
        ({"node_id": 7}, "node_id: expected words, found a number"),
        ({"fault_type": None}, "fault_type: expected an object, found nothing"),
        ({"fault_type": {"Level": "x"}}, "Class: expected words, found nothing"),
    ],
)
def test_a_wrong_event_is_named(change: dict[str, Any], message: str) -> None:
    """An export with a column of another type: the error has event, field and expected value."""
    rows = [event("a", 1.0, True), {**event("b", 2.0, True), **change}]
    with pytest.raises(EventsError, match=r"^event 1: ") as refused:
        parse_events(data_of(rows))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"{}", "expected a list of events, found an object"),
        (b"[]", "0 events"),
        (b"[1]", "event 0: expected an object"),
        (b'[{"event_time": NaN}]', "fault_type"),
        (b'"events"', "expected a list of events, found a string"),
        (b"7", "not JSON: expected a list"),
        (b"[1 2]", "event 0: expected an object"),
        # A truncated copy, two joined files, an export by hand.
        (GOOD + b"x", "not JSON: unexpected text after the list, at character"),
        (GOOD[:-1], "not JSON: expected , or ] at character"),
        (GOOD[:-1] + b",]", "not JSON: Expecting value"),
        (GOOD.replace(b"}, {", b"} {"), "not JSON: expected , or ] at character"),
        (b"[ ] []", "not JSON: unexpected text after the list"),
        (GOOD.replace(b"1.0", b"NaN"), "event 0: event_time nan: expected days from 0"),
        (GOOD.replace(b"1.0", b"-1e999"), "event 0: event_time -inf: expected days from 0"),
    ],
)
def test_what_is_no_recording_is_refused(data: bytes, message: str) -> None:
    """The wrong file was named."""
    with pytest.raises(EventsError) as refused:
        parse_events(data)
    assert message in str(refused.value)


@given(st.lists(st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=4)), st.sampled_from((None, 1)))  # fmt: skip
def test_elements_are_read_as_json_reads_them(rows: list[object], indent: int | None) -> None:
    """Elements are parsed one by one, so a file takes no more memory than its size."""
    text = json.dumps(rows, indent=indent)
    assert list(events._rows(f" \n{text}\r\n")) == rows


def test_a_file_that_is_none_of_events_ends_at_its_first_element() -> None:
    """A monitoring export of 200 MB took 7 GB before the error."""
    seen: list[object] = []
    real = events._event

    def counted_event(row: object, at: int) -> events.FaultEvent:
        seen.append(row)
        return real(row, at)

    with pytest.raises(EventsError, match=r"^event 0: "), pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "_event", counted_event)
        parse_events(b"[" + b"{}," * 10_000)
    assert len(seen) == 1


def test_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file of any size is read up to its limit, and refused with the limit."""
    path = tmp_path / "events.json"
    path.write_bytes(data_of([event(f"n{number}", 1.0, True) for number in range(5)]))
    assert len(read_events(path).node) == 5
    for name, limit, reason in (
        ("FILE_BYTES_MAX", 100, "larger than 100 bytes"),
        ("EVENTS_MAX", 4, "more than 4 events"),
        ("NODES_MAX", 4, "5 nodes; at most 4"),
    ):
        with monkeypatch.context() as patch, pytest.raises(EventsError) as refused:
            patch.setattr(events, name, limit)
            read_events(path)
        assert reason in str(refused.value)


def test_the_fleet_is_larger_than_those_that_failed() -> None:
    """A file of faults lacks healthy nodes: without them the hazard is too high."""
    faults = parse_events(data_of(fault("a", 1.0, 2.0)))
    assert len(faults.with_nodes(10).nodes) == 10
    with pytest.raises(EventsError, match="a fleet of 0 nodes: the file names 1"):
        faults.with_nodes(0)
    assert nodes_in_file_name(Path("stepfun_400_nodes_days_0_208.json")) == 400
    assert nodes_in_file_name(Path("x/400_nodes/faults.json")) is None
    assert nodes_in_file_name(Path("nodes.json")) is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 50), st.booleans()), min_size=1))
def test_any_order_of_starts_and_ends(told: list[tuple[str, float, bool]]) -> None:
    """In any order, each start is one fault, and no fault ends before it starts."""
    faults = parse_events(data_of([event(*arguments) for arguments in told]))
    assert np.isfinite(faults.start).sum() == sum(starts for _, _, starts in told)
    assert (faults.end >= faults.start).all()
    assert faults.end_days == max(days for _, days, _ in told)
