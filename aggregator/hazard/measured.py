"""Measured features of a host for the hazard model, zero if normal or unknown.

Values are stored and reported as measured. The model uses an increasing function of each, about one
where something is clearly wrong, so that a single ridge penalty suits all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Floats, Indexes
from .events import FaultTable

#: Normal relative speed: peers differ by 2 to 3 %, and the slowest of eight GPUs counts.
SPEED_NORMAL, SPEED_STEP = 0.95, 0.1
#: Normal distance to a GPU's temperature limit (assumed: a warm afternoon may use it up).
HEADROOM_NORMAL_CELSIUS = 10.0
#: Longer silence makes a host STALE.
SILENT_NORMAL_SECONDS = 15.0
#: Upper bound of each model input, whatever a broken sensor reports: ln of a billion events.
MODEL_INPUT_MAX = 21.0
#: Rows per batch: other threads can run between batches.
BATCH_ROWS = 50_000
#: Host names contain no space; DuckDB would take half a minute to convert a list of 100,000 names.
_NODES = (
    "SELECT unnest(string_split($hosts, ' ')) AS host, "
    "generate_subscripts(string_split($hosts, ' '), 1) - 1 AS node"
)


class Feature(NamedTuple):
    """A column of features."""

    name: str
    unit: str
    normal: str  # description of normal values
    description: str
    host_text: str  # text about a host; {shown} is `to_shown` of the value
    to_shown: Callable[[float], float] = float

    def describe(self, value: float) -> str:
        """Return the text about a host with *value*."""
        return self.host_text.format(shown=self.to_shown(value))


#: In the order of the columns of `read_host_days`.
MEASURED: tuple[Feature, ...] = (
    Feature("corrected_errors", "errors", "0", "ln(1 + corrected memory errors of its worst GPU within ten minutes)",
            "corrected memory errors of its worst GPU within ten minutes: {shown:,.1f}"),
    Feature("remaps_waiting", "GPUs", "0", "ln(1 + GPUs that wait for a row remap, or have no rows left for one)",
            "GPUs that wait for a row remap, or have no rows left for one: {shown:.0f}"),
    Feature("link_errors", "errors", "0", "ln(1 + errors of its worst port or NVLink within ten minutes)",
            "errors of its worst port or NVLink within ten minutes: {shown:,.1f}"),
    Feature("link_downs", "events", "0", "ln(1 + how often its worst port went down within ten minutes)",
            "its worst port went down within ten minutes: {shown:,.1f} times"),
    Feature("speed", "ratio", "0.95 and above", "tenths by which its slowest GPU is below 0.95 of its peers' pace",
            "its slowest GPU runs at {shown:.0%} of its peers' pace"),
    Feature("headroom_celsius", "celsius", "10 and above", "share of 10 celsius that its hottest GPU lacks to its limit",
            "{shown:.0f} °C remain to the limit of its hottest GPU"),
    Feature("silent_seconds", "seconds", "15 and below", "ln(1 + minutes of silence beyond 15 seconds)",
            "it was silent for {shown:,.0f} seconds"),
    Feature("gpus_unread", "GPUs", "0", "ln(1 + GPUs without readings)",
            "GPUs without readings: {shown:.0f}"),
    Feature("faults_of_others", "faults", "0", "ln(1 + faults of other hosts that began within ten minutes)",
            "faults of other hosts that began within ten minutes: {shown:.0f}"),
)  # fmt: skip


def _shortfall(normal: float, step: float) -> Callable[[Floats], Floats]:
    return lambda value: (normal - value) / step


#: Model input of columns that are not counts.
_TRANSFORMS: Mapping[str, Callable[[Floats], Floats]] = {
    "speed": _shortfall(SPEED_NORMAL, SPEED_STEP),
    "headroom_celsius": _shortfall(HEADROOM_NORMAL_CELSIUS, HEADROOM_NORMAL_CELSIUS),
    "silent_seconds": lambda value: np.log1p(np.maximum(value - SILENT_NORMAL_SECONDS, 0.0) / 60.0),
}


def _count(value: Floats) -> Floats:
    return np.log1p(np.maximum(value, 0.0))


def model_inputs(values: Floats) -> Floats:
    """Convert *values* (units x MEASURED, NaN: unknown) to inputs, 0 to MODEL_INPUT_MAX."""
    columns = [
        _TRANSFORMS.get(feature.name, _count)(values[:, column])
        for column, feature in enumerate(MEASURED)
    ]
    known = np.nan_to_num(np.stack(columns, axis=1), nan=0.0)
    return np.clip(known, 0.0, MODEL_INPUT_MAX)


_ROWS = (
    f"SELECT node::BIGINT AS node, (epoch_us(time) - $first) / 86400e6 AS at_days, {', '.join(feature.name for feature in MEASURED)} "
    f"FROM host_days JOIN ({_NODES}) USING (host) "
    "WHERE time >= make_timestamp($first) AND time < make_timestamp($last)"
)


class HostDays(NamedTuple):
    """Measurements by node and day since the recording began, at 00:00."""

    row: Indexes  # nodes x days: index into `values`, -1: none
    values: Floats  # rows x MEASURED; NaN: unknown

    @staticmethod
    def of(node: Indexes, at_days: Floats, values: Floats, faults: FaultTable) -> HostDays:
        """Return measurements of *node* at *at_days*, without those after a fault on the same day.

        The effects of a fault must not count as its warning.
        """
        row = np.full((len(faults.nodes), int(faults.end_days) + 1), -1, dtype=np.intp)
        row[node, at_days.astype(np.intp)] = np.arange(len(node))
        began = np.isfinite(faults.start) & (faults.start >= 0.0)
        failed, start = faults.node[began], faults.start[began]
        day = start.astype(np.intp)
        first = row[failed, day]
        late = first >= 0
        late[late] = at_days[first[late]] >= start[late]
        row[failed[late], day[late]] = -1
        return HostDays(row, values)

    def at(self, node: Indexes, day: Indexes) -> Floats:
        """Return the measurements of units: units x MEASURED, NaN if missing."""
        row = self.row[node, day]
        result = np.full((len(row), len(MEASURED)), np.nan)
        result[row >= 0] = self.values[row[row >= 0]]
        return result


def read_host_days(
    connection: Any, faults: FaultTable, first_us: int, last_us: int
) -> HostDays | None:
    """Return the stored measurements of the nodes of *faults*; None if there are none.

    *faults*: a recording from *first_us* to *last_us*. Its nodes determine the rows: more hosts may
    register.
    """
    parameters = {"first": first_us, "last": last_us, "hosts": " ".join(faults.nodes)}
    nodes, at_days, values = [], [], []
    for batch in connection.sql(_ROWS, params=parameters).to_arrow_reader(BATCH_ROWS):
        node, day, *columns = (column.to_numpy(zero_copy_only=False) for column in batch.columns)
        nodes.append(node)
        at_days.append(day)
        values.append(np.stack(columns, axis=1))
    if not nodes:
        return None
    return HostDays.of(
        np.concatenate(nodes).astype(np.intp),
        np.concatenate(at_days),
        np.concatenate(values),
        faults,
    )
