"""Reads a file of fault starts and ends of a fleet, validates it, and pairs them.

The format is that of stepfun-ai/InfiniteHBD-Trace: a JSON list of objects with node_id, event_time
(days since the recording began), event_type (fault_start or fault_end) and fault_type (Level,
Class, Desc).
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Flags, Floats, Indexes
from .fault_classes import OTHER, class_flags

#: Limits; larger files and longer lists are rejected with a message.
FILE_BYTES_MAX = 1 << 28
EVENTS_MAX = 1_000_000
NODES_MAX = 100_000
DAYS_MAX = 10_000.0
NAME_CHARACTERS_MAX = 256
#: The level of the second table; other levels count only in the table of all classes.
HARDWARE = "Hardware Failure"
LEVELS = (HARDWARE, "Other Failure")
START, END = "fault_start", "fault_end"
_DECODER, _SPACE = json.JSONDecoder(), re.compile(r"[ \t\r\n]*")


class EventsError(ValueError):
    """A file is not a valid list of events; the message says where, and the expected form."""


class FaultEvent(NamedTuple):
    """The start or end of a fault."""

    node: str
    days: float  # since the recording began
    is_start: bool
    kind: tuple[str, str, str]  # level, class, description


@dataclass(frozen=True, slots=True)
class FaultTable:
    """Faults of a fleet, a row per fault. Times are days since the recording began.

    A fault that was active when the recording began starts at -inf; an unfinished one ends at +inf.
    """

    nodes: tuple[str, ...]
    node: Indexes
    start: Floats
    end: Floats
    hardware: Flags
    end_days: float  # last event of the recording
    notes: tuple[str, ...] = ()  # descriptions of irregularities
    classes: Flags | None = None  # faults x `fault_classes.CLASSES`; None: unknown for all faults

    def before(self, days: float) -> FaultTable:
        """Return the faults with the knowledge at *days*, without later starts and ends."""
        known = self.start < days
        end = np.where(self.end[known] < days, self.end[known], np.inf)
        return FaultTable(
            nodes=self.nodes,
            node=self.node[known],
            start=self.start[known],
            end=end,
            hardware=self.hardware[known],
            end_days=min(self.end_days, days),
            notes=self.notes,
            classes=None if self.classes is None else self.classes[known],
        )

    def since(self, days: float) -> FaultTable:
        """Return the same recording, begun at *days*, which becomes day 0.

        A fault active at that time starts at -inf; faults that had ended are dropped.
        Raises EventsError if no event is later.
        """
        if not days < self.end_days:
            raise EventsError(
                f"the recording ends at day {self.end_days:g}: expected a beginning before that, found day {days:g}"
            )
        later = self.end > days
        start = np.where(self.start[later] < days, -np.inf, self.start[later] - days)
        return FaultTable(
            nodes=self.nodes,
            node=self.node[later],
            start=start,
            end=self.end[later] - days,
            hardware=self.hardware[later],
            end_days=self.end_days - days,
            notes=self.notes,
            classes=None if self.classes is None else self.classes[later],
        )

    @property
    def first_days(self) -> float:
        """Days until the first start or end; +inf without any."""
        times = np.concatenate([self.start, self.end])
        return float(np.min(times[np.isfinite(times)], initial=np.inf))

    def with_nodes(self, nodes_count: int) -> FaultTable:
        """Return the same faults in a fleet of *nodes_count* nodes, of which the rest never failed.

        Raises EventsError if the file names more nodes, or the fleet exceeds NODES_MAX.
        """
        if not len(self.nodes) <= nodes_count <= NODES_MAX:
            raise EventsError(
                f"a fleet of {nodes_count} nodes: the file names {len(self.nodes)} nodes; expected that many "
                f"to {NODES_MAX}"
            )
        silent = tuple(f"(never named {number})" for number in range(nodes_count - len(self.nodes)))
        return replace(self, nodes=self.nodes + silent)


def read_events(path: Path) -> FaultTable:
    """Return the faults in a file of events. Raises EventsError, OSError."""
    with path.open("rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise EventsError(f"larger than {FILE_BYTES_MAX} bytes: not a file of events")
    return parse_events(data)


def nodes_in_file_name(path: Path) -> int | None:
    """Return the number of nodes in a file's name ("..._400_nodes_..."), else None.

    The events themselves name only nodes that failed at some time.
    """
    match = re.search(r"(?:^|[^0-9])([0-9]{1,6})_nodes(?:[^a-z]|$)", path.name)
    return int(match[1]) if match else None


def parse_events(data: bytes) -> FaultTable:
    """Return the faults in a file's content. Raises EventsError."""
    return pair_events(sorted(_events(data), key=lambda event: event.days))


def _events(data: bytes) -> list[FaultEvent]:
    try:
        events = [_event(row, index) for index, row in enumerate(_rows(data.decode("utf-8-sig")))]
    except EventsError:
        raise
    except (ValueError, RecursionError) as error:
        raise EventsError(f"not JSON: {str(error)[:120]}") from error
    if not events:
        raise EventsError(f"0 events; expected 1 to {EVENTS_MAX}")
    return events


def _rows(text: str) -> Iterator[Any]:
    """Yield the elements of a JSON list one by one: all together take many times the file's memory.

    Raises ValueError, RecursionError; EventsError if it is not a list, or too long.
    """
    begin = _after_space(text, 0)
    if text.startswith(("{", '"'), begin):
        kind = "an object" if text[begin] == "{" else "a string"
        raise EventsError(f"expected a list of events, found {kind}")
    if not text.startswith("[", begin):
        raise ValueError("expected a list, which begins with [")
    position, count = _after_space(text, begin + 1), 0
    while not (count == 0 and text.startswith("]", position)):
        row, position = _DECODER.raw_decode(text, position)
        count += 1
        if count > EVENTS_MAX:
            raise EventsError(f"more than {EVENTS_MAX} events")
        yield row
        position = _after_space(text, position)
        if text.startswith("]", position):
            break
        if not text.startswith(",", position):
            raise ValueError(f"expected , or ] at character {position}")
        position = _after_space(text, position + 1)
    if _after_space(text, position + 1) != len(text):
        raise ValueError(f"unexpected text after the list, at character {position + 1}")


def _after_space(text: str, offset: int) -> int:
    match = _SPACE.match(text, offset)
    return match.end() if match else offset


def _event(row: Any, index: int) -> FaultEvent:
    if not isinstance(row, dict):
        raise EventsError(f"event {index}: expected an object, found {_kind_of(row)}")
    kind = row.get("fault_type")
    if not isinstance(kind, dict):
        raise EventsError(f"event {index}: fault_type: expected an object, found {_kind_of(kind)}")
    what = row.get("event_type")
    if what not in (START, END):
        raise EventsError(
            f"event {index}: event_type {str(what)[:40]!r}: expected {START} or {END}"
        )
    return FaultEvent(
        _name(row, "node_id", index),
        _days(row.get("event_time"), index),
        what == START,
        (_name(kind, "Level", index), _name(kind, "Class", index), _name(kind, "Desc", index, "")),
    )


def _name(row: dict[str, Any], key: str, index: int, default: str | None = None) -> str:
    value = row.get(key, default)
    if not isinstance(value, str) or not (value or default == ""):
        raise EventsError(f"event {index}: {key}: expected words, found {_kind_of(value)}")
    if len(value) > NAME_CHARACTERS_MAX:
        raise EventsError(
            f"event {index}: {key}: {len(value)} characters; at most {NAME_CHARACTERS_MAX}"
        )
    return value


def _days(value: Any, index: int) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EventsError(
            f"event {index}: event_time: expected days as a number, found {_kind_of(value)}"
        )
    # A large integer may not fit into a float.
    if not 0 <= value <= DAYS_MAX or not math.isfinite(value):
        raise EventsError(
            f"event {index}: event_time {str(value)[:40]}: expected days from 0 to {DAYS_MAX:g}"
        )
    return float(value)


def _kind_of(value: Any) -> str:
    if value is None:
        return "nothing"
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    return repr(value)[:40] if isinstance(value, str) else names.get(type(value), "a number")


def pair_events(events: list[FaultEvent]) -> FaultTable:
    """Return the faults in *events*, which are in order of time, with notes on unpaired ones.

    Faults of a node may overlap; an end belongs to the oldest open fault of its kind.
    """
    nodes = {
        name: index for index, name in enumerate(dict.fromkeys(event.node for event in events))
    }
    if len(nodes) > NODES_MAX:
        raise EventsError(f"{len(nodes)} nodes; at most {NODES_MAX}")
    rows: list[list[Any]] = []
    open_rows: dict[tuple[str, tuple[str, str, str]], list[int]] = defaultdict(list)
    seen: set[str] = set()
    notes: Counter[str] = Counter()
    for event in events:
        open_faults = open_rows[event.node, event.kind]
        if event.is_start:
            open_faults.append(len(rows))
            rows.append([nodes[event.node], event.days, math.inf, event.kind[0] == HARDWARE])
            notes["faults of a level that is neither of " + " and ".join(LEVELS)] += (
                event.kind[0] not in LEVELS
            )
        elif open_faults:
            rows[open_faults.pop(0)][2] = event.days
        elif event.node in seen:
            notes["ends of faults that did not start, left out"] += 1
        else:
            rows.append([nodes[event.node], -math.inf, event.days, event.kind[0] == HARDWARE])
            notes["faults that were there when the recording began"] += 1
        seen.add(event.node)
    notes["faults that did not end within the recording"] = sum(map(len, open_rows.values()))
    return _fault_table(tuple(nodes), rows, events[-1].days, notes)


def _fault_table(
    nodes: tuple[str, ...], rows: list[list[Any]], end: float, notes: Counter[str]
) -> FaultTable:
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    return FaultTable(
        nodes=nodes,
        node=np.array(columns[0], dtype=np.intp),
        start=np.array(columns[1], dtype=np.float64),
        end=np.array(columns[2], dtype=np.float64),
        hardware=np.array(columns[3], dtype=bool),
        end_days=end,
        notes=tuple(f"{count} {what}" for what, count in notes.items() if count),
        classes=class_flags([("hardware" if hardware else OTHER,) for hardware in columns[3]]),
    )
