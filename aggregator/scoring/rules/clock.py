"""GPUs slower than their peers, and why: heat, power, settings, or unexplained.

Only GPUs that compute are compared (`activity`): an idle GPU clocks down by itself, and a GPU that
waits for a slow peer is its victim. All GPUs that share a cooling loop or a power supply slow down
together, and may be most of each other's peers. So if shared infrastructure is declared, a GPU
limited by heat or power brake is also compared with its own past, and the shared part is found as
one cause (`advisories/shared_causes.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ....fingerprints.group_statistics import medians
from ...arrays import Flags, Floats
from ...counter_deltas import Uint64s
from ...fleet.activity import (
    AT_LIMIT_SHARE,
    REASON_HARDWARE,
    REASON_POWER_BRAKE,
    REASON_POWER_CAP,
    REASON_SETTING,
    REASON_THERMAL,
)
from ...fleet.power_limits import ALL, AT_LIMIT, IN_GANG, SAME_WORK_RATIO_MAX
from ...fleet.relative_speeds import describe_peers
from ...model import HealthState
from ...rule_catalogue import gpu as rules
from ...rule_declaration import Rule
from .. import evidence_sql
from ..detectors import detects
from ..symptom import Symptom, short
from ..view import FleetView
from .gang import members

#: Clocks of healthy parts of one model spread by 2-3 % (IQR), outliers by 7 %: the default is past
#: all of them. A GPU without a cause from the driver must also be below
#: `gpu.unexplained_below_ratio`.
SLOW_BELOW = "gpu.slow_below_ratio"
#: Limits of GPUs that the driver reports as throttled. A level ends at its limit plus LEAVES_*.
THROTTLED_WATCH, THROTTLED_BELOW = "gpu.held_watch_ratio", "gpu.held_below_ratio"
LEAVES_WATCH, LEAVES_DEGRADED = 0.01, 0.02
#: Half a step of NVIDIA's clocks (15 MHz). WATCH begins this far above its limit, because readings
#: are rounded to steps.
CLOCK_ERROR_HERTZ = 7.5e6
#: A GPU that is only slightly limited is reported after this time.
MILD_SECONDS = 15.0
#: A cap active for less of the time comes from bursts that reach the limit (assumed).
CAPPED_SHARE_MIN = 0.8
#: Software slowdown begins a few degrees below the threshold that the driver reports.
NEAR_SLOWDOWN_CELSIUS = 8.0
#: Used if no threshold is known; NVIDIA's lowest brake temperature is in the eighties.
HOT_CELSIUS, HOT_MEMORY_CELSIUS = 80.0, 95.0
#: Newer parts report the distance to their limit.
MARGIN_CELSIUS = 3.0
#: Throttled above this share of the time by the violation counters (nanoseconds per second).
THROTTLED_SHARE = 0.05
#: Seconds of a GPU's own past in its evidence query.
BASELINE_SHOWN_SECONDS = 900.0

#: A cap below its own limit needs longer: only a flag shows it, which comes and goes with work at
#: the limit.
EXTERNAL_CAP = replace(rules.POWER, enter_seconds=20.0)


@detects(rules.THERMAL, rules.POWER, rules.SETTING, rules.STRAGGLER)
def slow_gpus(view: FleetView) -> Iterator[Symptom]:
    """Name each GPU that is slower than its peers, under the cause that its own readings show."""
    relative, before = view.speeds.relative, view.clock_over_baseline
    slow = relative < view.threshold(SLOW_BELOW)
    mild = relative < _throttled_limits(view)[0] + LEAVES_WATCH
    fell = (before < view.threshold(SLOW_BELOW)) & ~slow
    if not (slow | mild | fell).any():
        return
    flags = view.state("gpu_1s", "clock_event_reasons_flags")
    hot = is_hot(view) & _is_throttled(view, flags, REASON_THERMAL, "violation_thermal_nanoseconds")
    brake = _is_throttled(view, flags, REASON_POWER_BRAKE | REASON_HARDWARE, None)
    capped = _is_throttled(view, flags, REASON_POWER_CAP, "violation_power_nanoseconds")
    limit_lowered = capped & _has_lower_limit(view)
    capped_elsewhere = _stands_out(view, capped, mild & _is_capped_elsewhere(view, flags))
    power = brake | capped_elsewhere | (capped & _is_at_limit(view))
    named = capped_elsewhere | _stands_out(view, hot, mild)
    named |= _stands_out(view, brake | limit_lowered, mild)
    setting = (flags & np.uint64(REASON_SETTING)) != 0
    together = _has_declared_place(view, fell & hot, "cooling_domain")
    together |= _has_declared_place(view, fell & brake, "power_domain")
    for row in np.flatnonzero(slow | together | (mild & named)).tolist():
        is_named = bool(named[row])
        if hot[row]:
            message = f"limited by heat ({_heat_text(view, row)})"
            yield _symptom(view, rules.THERMAL, row, message, is_throttled=is_named)
        elif power[row]:
            message = _power_text(
                view, row, int(flags[row]), capped_elsewhere=bool(capped_elsewhere[row])
            )
            rule = EXTERNAL_CAP if capped_elsewhere[row] and not brake[row] else rules.POWER
            yield _symptom(view, rule, row, message, is_throttled=is_named)
        elif setting[row]:
            yield _symptom(view, rules.SETTING, row, "limited by its own clock setting")
        elif relative[row] < view.threshold("gpu.unexplained_below_ratio"):
            yield _symptom(view, rules.STRAGGLER, row, "and its driver reports no cause")


def _throttled_limits(view: FleetView) -> tuple[float, float]:
    """Return the WATCH and DEGRADED limits of a throttled GPU, as shares of its peers' clock."""
    degraded = view.threshold(THROTTLED_BELOW)
    return max(view.threshold(THROTTLED_WATCH), degraded), degraded


def _stands_out(view: FleetView, throttled: Flags, some: Flags) -> Flags:
    """Return the GPUs in *some* that are *throttled* while under half of their peers are.

    On a hot afternoon, or in a job at its power limit, only the spread of parts differs between
    peers.
    """
    candidates = throttled & some
    if not candidates.any():
        return np.asarray(candidates, dtype=bool)
    _, group = np.unique(view.speeds.median_hertz, return_inverse=True)
    computing = np.isfinite(view.clock)
    total = np.bincount(group[computing], minlength=group.max(initial=0) + 1)
    throttled_count = np.bincount(group[computing & throttled], minlength=total.size)
    return np.asarray(candidates & (2 * throttled_count < total)[group], dtype=bool)


def _has_lower_limit(view: FleetView) -> Flags:
    """Return GPUs at a power limit below their peers', unless only equal limits were compared."""
    power = view.gauge("gpu_1s", "power_watts")
    limit = view.gauge("gpu_10s", "power_limit_watts")
    return np.asarray((power >= AT_LIMIT_SHARE * limit) & (view.speeds.basis == ALL), dtype=bool)


def _is_capped_elsewhere(view: FleetView, flags: Uint64s) -> Flags:
    """Return GPUs that the driver caps below their own limit, by a module, board or rack.

    With bursts of work that reach the limit the flag comes and goes, and its counter counts part of
    the time. Dense work draws more power than the peers' work; only within a gang the work is known
    to be the same.
    """
    speeds, power = view.speeds, view.gauge("gpu_1s", "power_watts")
    below = power < AT_LIMIT_SHARE * view.gauge("gpu_10s", "power_limit_watts")
    capped = below & ((flags & np.uint64(REASON_POWER_CAP)) != 0) & (speeds.basis != AT_LIMIT)
    capped &= speeds.relative < 1.0
    if not capped.any():
        return np.asarray(capped, dtype=bool)
    counter_rate = view.rates("gpu_1s", "violation_power_nanoseconds")
    capped &= (counter_rate <= 0.0) | (counter_rate >= CAPPED_SHARE_MIN * 1e9)
    _, group = np.unique(speeds.median_hertz, return_inverse=True)
    computing = np.where(np.isfinite(view.clock), group, -1).astype(np.intp)
    peer_power = medians(power, computing, int(group.max(initial=0)) + 1)[group]
    return np.asarray(
        capped & ((speeds.basis == IN_GANG) | (power <= SAME_WORK_RATIO_MAX * peer_power)),
        dtype=bool,
    )


def _has_declared_place(view: FleetView, found: Flags, shared: str) -> Flags:
    """Return the GPUs of *found* whose host has a declared *shared* place, or at least a rack."""
    rows = np.flatnonzero(found)
    places = {
        host: view.fleet.declared.place(view.fleet.names[host])
        for host in set(view.fleet.devices["gpu"].host[rows].tolist())
    }
    placed = np.zeros(found.shape, dtype=bool)
    for row in rows.tolist():
        place = places[int(view.fleet.devices["gpu"].host[row])]
        placed[row] = bool(getattr(place, shared) or place.rack)
    return placed


def is_hot(view: FleetView) -> Flags:
    """Return GPUs near the temperature that slows them down, in the die or the memory."""
    die = view.gauge("gpu_1s", "temperature_celsius")
    memory = view.gauge("gpu_1s", "memory_temperature_celsius")
    slowdown = view.gauge("gpu_10s", "temperature_slowdown_celsius")
    margin = view.gauge("gpu_1s", "temperature_margin_celsius")
    near = np.where(np.isfinite(slowdown), slowdown - NEAR_SLOWDOWN_CELSIUS, HOT_CELSIUS)
    hot = (die >= near) | (memory >= HOT_MEMORY_CELSIUS) | (margin <= MARGIN_CELSIUS)
    return np.asarray(hot, dtype=bool)


def _is_throttled(view: FleetView, flags: Floats | object, bits: int, counter: str | None) -> Flags:
    """Return GPUs with a driver reason in *bits*: by flags now, or by time on *counter*."""
    throttled = (np.asarray(flags, dtype=np.uint64) & np.uint64(bits)) != 0
    if counter:
        throttled |= view.rates("gpu_1s", counter) > THROTTLED_SHARE * 1e9
    return np.asarray(throttled, dtype=bool)


def _is_at_limit(view: FleetView) -> Flags:
    """Return GPUs that draw all their limit allows, or whose limit is unknown."""
    power = view.gauge("gpu_1s", "power_watts")
    limit = view.gauge("gpu_10s", "power_limit_watts")
    return ~(power < AT_LIMIT_SHARE * limit) | view.fleet.activity.at_limit


def _heat_text(view: FleetView, row: int) -> str:
    die = view.gauge("gpu_1s", "temperature_celsius")[row]
    memory = view.gauge("gpu_1s", "memory_temperature_celsius")[row]
    slowdown = view.gauge("gpu_10s", "temperature_slowdown_celsius")[row]
    margin = view.gauge("gpu_1s", "temperature_margin_celsius")[row]
    parts = [f"{die:.0f} C"] if np.isfinite(die) else []
    if parts and np.isfinite(slowdown):  # the threshold is the die's
        parts.append(f"slowdown at {slowdown:.0f} C")
    if memory >= HOT_MEMORY_CELSIUS:
        parts.append(f"memory at {memory:.0f} C")
    if margin <= MARGIN_CELSIUS and not die >= slowdown - NEAR_SLOWDOWN_CELSIUS:
        parts.append(f"{abs(margin):.0f} C {'above' if margin < 0 else 'below'} its limit")
    return ", ".join(parts)


def _power_text(view: FleetView, row: int, flags: int, *, capped_elsewhere: bool) -> str:
    if flags & (REASON_POWER_BRAKE | REASON_HARDWARE):
        return "limited by the hardware power brake"
    power = view.gauge("gpu_1s", "power_watts")[row]
    limit = view.gauge("gpu_10s", "power_limit_watts")[row]
    if np.isfinite(power - limit) and power > limit:
        # The power is a mean of a second or more, and the limit was lowered meanwhile.
        return f"limited by its power limit of {limit:.0f} W"
    if capped_elsewhere:
        return f"limited by a power cap that is not its own limit ({power:.0f} W of {limit:.0f} W): check the caps of its module, board and rack"
    known = f" ({power:.0f} W of {limit:.0f} W)" if np.isfinite(power - limit) else ""
    return f"limited by its power limit{known}"


class _Measure(NamedTuple):
    """The reference for a GPU's clock: its peers', or its own past."""

    relative: float
    reference_hertz: float
    compared_to: str
    normal: str
    clearing: str
    is_of_peers: bool = True


class _Level(NamedTuple):
    """The state for a GPU's pace, and the pace that ends it."""

    rule: Rule
    state: HealthState | None
    retained_state: HealthState | None
    limit: float
    leaves: float


def _level(view: FleetView, rule: Rule, measure: _Measure, *, is_throttled: bool) -> _Level:
    """Return the level of a GPU by its *measure*. *is_throttled*: the driver reports the cause."""
    if not is_throttled:
        limit = view.threshold(SLOW_BELOW)
        return _Level(rule, None, None, limit, limit)
    watch, degraded = _throttled_limits(view)
    relative = measure.relative
    if relative <= degraded:
        return _Level(rule, None, rule.state, degraded, degraded + LEAVES_DEGRADED)
    mild = replace(rule, enter_seconds=max(MILD_SECONDS, rule.enter_seconds))
    error = CLOCK_ERROR_HERTZ / measure.reference_hertz
    state = HealthState.WATCH if relative <= watch + error else HealthState.HEALTHY
    retained_state = rule.state if relative < degraded + LEAVES_DEGRADED else HealthState.WATCH
    return _Level(mild, state, retained_state, watch, watch + LEAVES_WATCH)


def _symptom(
    view: FleetView, rule: Rule, row: int, cause: str, *, is_throttled: bool = False
) -> Symptom:
    host, device = view.name("gpu_1s", row)
    measure = _measure(view, row)
    relative, reference_hertz = measure.relative, measure.reference_hertz
    level = _level(view, rule, measure, is_throttled=is_throttled)
    limit, within = level.limit, 100 * (1 - level.leaves)
    return Symptom(
        rule=level.rule,
        host=host,
        device=device,
        signal="gpu.sm_clock_hertz",
        value=float(relative * reference_hertz),
        normal=f"above {limit * reference_hertz / 1e9:.2f} GHz ({100 * limit:.0f} % of {measure.normal})",
        message=f"{short(device)} SM clock at {100 * relative:.0f} % of {measure.compared_to}, {cause}",
        sql=_sql(view, row, measure),
        speed=min(relative, 1.0),
        state=level.state,
        clears="" if rule is rules.SETTING else rules.SLOW_CLEARS.format(within, measure.clearing),
        retained_state=level.retained_state,
    )


def _sql(view: FleetView, row: int, measure: _Measure) -> str:
    if not measure.is_of_peers:
        columns = "sm_clock_hertz, temperature_celsius, power_watts, clock_event_reasons_flags"
        return view.sql("gpu_1s", row, columns, BASELINE_SHOWN_SECONDS)
    host, gpu = view.name("gpu_1s", row)
    gang = _gang(view, row, host) if view.speeds.basis[row] == IN_GANG else []
    return evidence_sql.peers(view.fleet.names[host], view.now_ns, gpu, gang)


def _gang(view: FleetView, row: int, host: int) -> list[str]:
    """Return the hosts of a GPU's job, its own first, or the job's GPUs on shared hosts."""
    comparison = view.fleet.gangs.comparison
    if comparison is None:
        return []
    gang = int(comparison.of_gpus(view.fleet.devices["gpu"].host)[row])
    hosts, gpus = members(view, comparison, host, gang, evidence_sql.PEERS_SHOWN_MAX)
    return hosts + gpus


def _measure(view: FleetView, row: int) -> _Measure:
    speeds, before = view.speeds, float(view.clock_over_baseline[row])
    relative, limit = float(speeds.relative[row]), view.threshold(SLOW_BELOW)
    if not relative < limit and before < limit:
        baseline = float(view.fleet.activity.baseline_clock[row])
        normal = "its own mean in this job while not limited"
        return _Measure(before, baseline, "what it was", normal, "what it was", is_of_peers=False)
    peers, alike = f"{speeds.peers[row]} peers", describe_peers(view.fleet, speeds, row)
    median = float(speeds.median_hertz[row])
    normal = f"the median of {peers}: {alike}"
    return _Measure(relative, median, f"its {peers}", normal, "its peers'")
