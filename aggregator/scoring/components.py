"""How fast each component of each host is: what a workload that depends on it, and only that, notices.

`relative_speed` says what a job whose step is bound by the slowest part notices. Here the same symptoms are told apart by
the part that they slow: a hot GPU computes slower and reads its memory as fast, a host with a port down does neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...fingerprints.sensitivity import (
    COMPONENTS,
    COMPUTE,
    HOST_CPU,
    NETWORK,
    NVLINK,
    PCIE,
    SPEED_MIN,
    STORAGE,
    Singles,
)
from ..counter_deltas import Flags, Floats
from ..model import HealthState, Reason
from .rule import Symptom
from .score import ObservedSymptom

_EVERY = slice(None)
_BY_REASON: Mapping[Reason, int | slice] = {
    Reason.THERMAL_THROTTLE: COMPUTE,
    Reason.POWER_CAP: COMPUTE,
    Reason.STRAGGLER: _EVERY,
    Reason.PCIE: PCIE,
    Reason.NVLINK_ERRORS: NVLINK,
    Reason.RAIL_DOWN: NETWORK,
    Reason.FABRIC: NETWORK,
    Reason.HOST_CPU: HOST_CPU,
    Reason.STORAGE: STORAGE,
}
_CLOCK_SIGNAL = "gpu.sm_clock_hertz"


def component_of(symptom: Symptom) -> int | slice:
    """Return which component a symptom slows; all of them where nothing says which."""
    if symptom.signal == _CLOCK_SIGNAL:
        return COMPUTE
    reason = symptom.rule.reason if symptom.reason is None else symptom.reason
    return _BY_REASON.get(reason, _EVERY)


def component_speeds(
    relative_speed: Floats, is_known: Flags, observed: Mapping[int, Sequence[ObservedSymptom]]
) -> Singles:
    """Return (hosts, components): 1 at full speed, NaN of a host of which nothing *is_known*, or on which no job runs on.

    *relative_speed*: of each host's slowest computing GPU against its peers, NaN where it is not known: an idle host is taken
    to be as fast as its symptoms say. *observed*: the symptoms that count, by host.
    """
    speeds = np.ones((relative_speed.size, len(COMPONENTS)), dtype=np.float32)
    measured = np.isfinite(relative_speed)
    speeds[measured, COMPUTE] = np.minimum(relative_speed[measured], 1.0)
    for host, symptoms in observed.items():
        for symptom in (one.symptom for one in symptoms):
            left = min(symptom.speed, symptom.capacity_ratio)
            if left >= 1.0 and symptom.host_state is HealthState.UNHEALTHY:
                speeds[host] = np.nan  # what is broken, nothing says
            elif left < 1.0:
                which = component_of(symptom)
                speeds[host, which] = np.minimum(speeds[host, which], max(left, SPEED_MIN))
    speeds[~is_known] = np.nan
    return speeds
