"""What is measured of a host, as the model of hazard weighs it: zero where all is normal, or nothing is known.

Values are as they are measured, and so are they stored and told of; the model weighs a rising function of each, of the
size of one where something is plainly wrong, so that one ridge holds all of them alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from .events import Floats
from .feature import Feature

#: Peers of one fleet spread by 2 to 3 %, and the slowest of eight GPUs is measured: below this it is slow.
SPEED_NORMAL, SPEED_STEP = 0.95, 0.1
#: Less than this to the limit of a GPU is little (assumed: between it and braking lies one warm afternoon).
HEADROOM_NORMAL_CELSIUS = 10.0
#: A host that said nothing for longer is STALE.
SILENT_NORMAL_SECONDS = 15.0
#: Nothing that is measured weighs more than this, whatever a broken sensor says: ln of a billion events.
WEIGHED_MAX = 21.0

#: In the order of the columns of `host_days`.
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
    Feature("headroom_celsius", "celsius", "10 and above", "how much of 10 celsius its hottest GPU has not left to its limit",
            "{shown:.0f} °C are left to the limit of its hottest GPU"),
    Feature("silent_seconds", "seconds", "15 and below", "ln(1 + minutes of silence beyond 15 seconds)",
            "it was not heard for {shown:,.0f} seconds"),
    Feature("gpus_unread", "GPUs", "0", "ln(1 + GPUs of which there is no reading)",
            "GPUs of which there is no reading: {shown:.0f}"),
    Feature("faults_of_others", "faults", "0", "ln(1 + faults of other hosts that began within ten minutes)",
            "faults of other hosts that began within ten minutes: {shown:.0f}"),
)  # fmt: skip


def _short_of(normal: float, step: float) -> Callable[[Floats], Floats]:
    return lambda value: (normal - value) / step


#: How a column is weighed that is no count.
_WEIGHED: Mapping[str, Callable[[Floats], Floats]] = {
    "speed": _short_of(SPEED_NORMAL, SPEED_STEP),
    "headroom_celsius": _short_of(HEADROOM_NORMAL_CELSIUS, HEADROOM_NORMAL_CELSIUS),
    "silent_seconds": lambda value: np.log1p(np.maximum(value - SILENT_NORMAL_SECONDS, 0.0) / 60.0),
}


def _count(value: Floats) -> Floats:
    return np.log1p(np.maximum(value, 0.0))


def weighed(values: Floats) -> Floats:
    """Return *values* (units x MEASURED, NaN: not known) as the model weighs them: zero to WEIGHED_MAX, never NaN."""
    columns = [
        _WEIGHED.get(feature.name, _count)(values[:, at]) for at, feature in enumerate(MEASURED)
    ]
    known = np.nan_to_num(np.stack(columns, axis=1), nan=0.0)
    return np.clip(known, 0.0, WEIGHED_MAX)
