"""GPUs that compute slower than their peers, and why: heat, power, settings, or no reason given.

Only GPUs that compute are compared (`activity`): an idle one clocks down by itself, and one that waits
for a slow peer is its victim. All that share a cooling loop or a power supply are slow together, and may be most of
each other's peers: where somebody has declared what a host shares, one that heat or a brake holds is compared with its
own past too, and what they share is found as one cause (`advisories/shared_causes.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...counter_deltas import Flags, Floats, Words
from ...fleet.activity import (
    AT_LIMIT_SHARE,
    REASON_HARDWARE,
    REASON_POWER_BRAKE,
    REASON_POWER_CAP,
    REASON_SETTING,
    REASON_THERMAL,
)
from ...fleet.gangs import medians
from ...fleet.peers import ALIKE, ALL, AT_LIMIT, IN_GANG, alike_in
from ...model import Reason, State
from .. import evidence_sql
from ..rule import Rule, Symptom, short
from ..view import Present
from .gang import members

#: Healthy parts of one model spread by 2-3 % (IQR), outliers by 7 %: its default is past all of them. Without a cause
#: that the driver names, more is asked.
SLOW_BELOW = "gpu.slow_below_ratio"
#: Where the driver says that heat, a brake or a cap holds it down. A level ends so much above where it begins.
HELD_WATCH, HELD_BELOW = "gpu.held_watch_ratio", "gpu.held_below_ratio"
LEAVES_WATCH, LEAVES_DEGRADED = 0.01, 0.02
#: Of one that is held little it is told after so long.
LITTLE_SECONDS = 15.0
#: A cap that holds for so much of the time is no burst of work that reaches the limit (assumed).
CAPPED_SHARE_MIN = 0.8
#: Software slowdown begins a few degrees before the threshold the driver tells.
NEAR_SLOWDOWN_CELSIUS = 8.0
#: Where no threshold is known; the lowest that NVIDIA's data-center parts brake at is in the eighties.
HOT_CELSIUS, HOT_MEMORY_CELSIUS = 80.0, 95.0
#: Newer parts tell the distance to their limit themselves.
MARGIN_CELSIUS = 3.0
#: Held down for this share of the time by the violation counters (nanoseconds per second).
HELD_SHARE = 0.05
#: Of a GPU's own past so much is shown.
PAST_SECONDS = 900.0

_CLEARS = "its SM clock stays within {:.0f} % of {} for 60 s"
THERMAL = Rule(
    "gpu.thermal",
    State.DEGRADED,
    Reason.THERMAL_THROTTLE,
    _CLEARS.format(10, "its peers'"),
    enter_seconds=4.0,
    hazard_factor=3.0,
    shared="cooling",
)
POWER = Rule(
    "gpu.power",
    State.DEGRADED,
    Reason.POWER_CAP,
    _CLEARS.format(10, "its peers'"),
    enter_seconds=6.0,
    hazard_factor=1.5,
    shared="power",
)
#: A cap below its own limit: the flag alone says it, which comes and goes with work that reaches the limit.
ELSEWHERE = replace(POWER, enter_seconds=20.0)
SETTING = Rule(
    "gpu.clock_setting",
    State.WATCH,
    Reason.POLICY,
    "its clock setting is that of its peers for 60 s",
    enter_seconds=20.0,
)
STRAGGLER = Rule(
    "gpu.straggler",
    State.DEGRADED,
    Reason.STRAGGLER,
    _CLEARS.format(10, "its peers'"),
    enter_seconds=20.0,
    hazard_factor=1.5,
)


def slow_gpus(present: Present) -> Iterator[Symptom]:
    """Name each GPU that is slower than its peers, under the cause that its own readings show."""
    relative, before = present.speeds.relative, present.speeds_before
    slow = relative < present.threshold(SLOW_BELOW)
    little = relative < _begins(present)[0] + LEAVES_WATCH
    fell = (before < present.threshold(SLOW_BELOW)) & ~slow
    if not (slow | little | fell).any():
        return
    flags = present.state("gpu_1s", "clock_event_reasons_flags")
    hot = is_hot(present) & _held(present, flags, REASON_THERMAL, "violation_thermal_nanoseconds")
    brake = _held(present, flags, REASON_POWER_BRAKE | REASON_HARDWARE, None)
    capped = _held(present, flags, REASON_POWER_CAP, "violation_power_nanoseconds")
    lowered = capped & _is_lowered(present)
    elsewhere = _sets_apart(present, capped, little & _is_capped_elsewhere(present, flags))
    power = brake | elsewhere | (capped & _at(present))
    named = elsewhere | _sets_apart(present, hot, little)
    named |= _sets_apart(present, brake | lowered, little)
    setting = (flags & np.uint64(REASON_SETTING)) != 0
    together = _are_placed(present, fell & hot, "cooling_domain")
    together |= _are_placed(present, fell & brake, "power_domain")
    for row in np.flatnonzero(slow | together | (little & named)).tolist():
        is_named = bool(named[row])
        if hot[row]:
            words = f"held down by heat ({_heat(present, row)})"
            yield _symptom(present, THERMAL, row, words, is_held=is_named)
        elif power[row]:
            words = _power_words(present, row, int(flags[row]), elsewhere=bool(elsewhere[row]))
            rule = ELSEWHERE if elsewhere[row] and not brake[row] else POWER
            yield _symptom(present, rule, row, words, is_held=is_named)
        elif setting[row]:
            yield _symptom(present, SETTING, row, "held down by a clock setting of its own")
        elif relative[row] < present.threshold("gpu.unexplained_below_ratio"):
            yield _symptom(present, STRAGGLER, row, "and its driver names no cause")


def _begins(present: Present) -> tuple[float, float]:
    """Return below which share of its peers' clock a GPU that is held down is WATCH, and below which it is DEGRADED."""
    degraded = present.threshold(HELD_BELOW)
    return max(present.threshold(HELD_WATCH), degraded), degraded


def _sets_apart(present: Present, held: Flags, some: Flags) -> Flags:
    """Return *some* that are *held*, of whose peers less than half are held.

    On a hot afternoon, or in a job that is at its limit, the spread of parts is what is left between them.
    """
    found = held & some
    if not found.any():
        return np.asarray(found, dtype=bool)
    _, group = np.unique(present.speeds.median_hertz, return_inverse=True)
    computing = np.isfinite(present.clock)
    every = np.bincount(group[computing], minlength=group.max(initial=0) + 1)
    of_them = np.bincount(group[computing & held], minlength=every.size)
    return np.asarray(found & (2 * of_them < every)[group], dtype=bool)


def _is_lowered(present: Present) -> Flags:
    """Say which GPUs draw what a limit allows that is lower than their peers': else those at theirs would be the measure."""
    power = present.gauge("gpu_1s", "power_watts")
    limit = present.gauge("gpu_10s", "power_limit_watts")
    return np.asarray((power >= AT_LIMIT_SHARE * limit) & (present.speeds.whom == ALL), dtype=bool)


def _is_capped_elsewhere(present: Present, flags: Words) -> Flags:
    """Say which GPUs the driver caps though they draw less than their limit: a module, a board or a rack has one, too.

    The flag comes and goes with work that reaches the limit in bursts, and its counter then counts a part of the time.
    Dense work draws more than its peers do; only in a gang it is known to be the same.
    """
    speeds, power = present.speeds, present.gauge("gpu_1s", "power_watts")
    below = power < AT_LIMIT_SHARE * present.gauge("gpu_10s", "power_limit_watts")
    found = below & ((flags & np.uint64(REASON_POWER_CAP)) != 0) & (speeds.whom != AT_LIMIT)
    found &= speeds.relative < 1.0
    if not found.any():
        return np.asarray(found, dtype=bool)
    counted = present.rates("gpu_1s", "violation_power_nanoseconds")
    found &= (counted <= 0.0) | (counted >= CAPPED_SHARE_MIN * 1e9)
    _, group = np.unique(speeds.median_hertz, return_inverse=True)
    computing = np.where(np.isfinite(present.clock), group, -1).astype(np.intp)
    usual = medians(power, computing, int(group.max(initial=0)) + 1)[group]
    return np.asarray(found & ((speeds.whom == IN_GANG) | (power <= ALIKE * usual)), dtype=bool)


def _are_placed(present: Present, found: Flags, shared: str) -> Flags:
    """Return those *found* of whose host it is declared what it shares: that, or else its rack."""
    rows = np.flatnonzero(found)
    places = {
        host: present.fleet.declared.place(present.fleet.names[host])
        for host in set(present.fleet.devices["gpu"].host[rows].tolist())
    }
    placed = np.zeros(found.shape, dtype=bool)
    for row in rows.tolist():
        place = places[int(present.fleet.devices["gpu"].host[row])]
        placed[row] = bool(getattr(place, shared) or place.rack)
    return placed


def is_hot(present: Present) -> Flags:
    """Say which GPUs are near the temperature that slows them down, in the die or the memory."""
    die = present.gauge("gpu_1s", "temperature_celsius")
    memory = present.gauge("gpu_1s", "memory_temperature_celsius")
    slowdown = present.gauge("gpu_10s", "temperature_slowdown_celsius")
    margin = present.gauge("gpu_1s", "temperature_margin_celsius")
    near = np.where(np.isfinite(slowdown), slowdown - NEAR_SLOWDOWN_CELSIUS, HOT_CELSIUS)
    hot = (die >= near) | (memory >= HOT_MEMORY_CELSIUS) | (margin <= MARGIN_CELSIUS)
    return np.asarray(hot, dtype=bool)


def _held(present: Present, flags: Floats | object, bits: int, counter: str | None) -> Flags:
    """Say where the driver gives a reason: now by its flags, or by time on its counter."""
    held = (np.asarray(flags, dtype=np.uint64) & np.uint64(bits)) != 0
    if counter:
        held |= present.rates("gpu_1s", counter) > HELD_SHARE * 1e9
    return np.asarray(held, dtype=bool)


def _at(present: Present) -> Flags:
    """Say which GPUs draw what their limit allows, or whose limit is not known."""
    power = present.gauge("gpu_1s", "power_watts")
    limit = present.gauge("gpu_10s", "power_limit_watts")
    return ~(power < AT_LIMIT_SHARE * limit) | present.fleet.activity.at_limit


def _heat(present: Present, row: int) -> str:
    die = present.gauge("gpu_1s", "temperature_celsius")[row]
    memory = present.gauge("gpu_1s", "memory_temperature_celsius")[row]
    slowdown = present.gauge("gpu_10s", "temperature_slowdown_celsius")[row]
    margin = present.gauge("gpu_1s", "temperature_margin_celsius")[row]
    words = [f"{die:.0f} C"] if np.isfinite(die) else []
    if words and np.isfinite(slowdown):  # which is the die's
        words.append(f"slowdown at {slowdown:.0f} C")
    if memory >= HOT_MEMORY_CELSIUS:
        words.append(f"memory at {memory:.0f} C")
    if margin <= MARGIN_CELSIUS and not die >= slowdown - NEAR_SLOWDOWN_CELSIUS:
        words.append(f"{abs(margin):.0f} C {'above' if margin < 0 else 'below'} its limit")
    return ", ".join(words)


def _power_words(present: Present, row: int, flags: int, *, elsewhere: bool) -> str:
    if flags & (REASON_POWER_BRAKE | REASON_HARDWARE):
        return "held down by the hardware's power brake"
    power = present.gauge("gpu_1s", "power_watts")[row]
    limit = present.gauge("gpu_10s", "power_limit_watts")[row]
    if elsewhere:
        return (
            f"held down by a power cap that is not its own limit ({power:.0f} W of {limit:.0f} W): "
            "look at those of its module, board and rack"
        )
    known = f" ({power:.0f} W of {limit:.0f} W)" if np.isfinite(power - limit) else ""
    return f"held down by its power limit{known}"


class _Measure(NamedTuple):
    """What a GPU's clock is held against: its peers', or its own past."""

    relative: float
    usual_hertz: float
    whose: str
    normal: str
    clearing: str
    is_of_peers: bool = True


class _Level(NamedTuple):
    """Which state a GPU's pace puts it in, beside what; and what ends that."""

    rule: Rule
    state: State | None
    keeps: State | None
    limit: float
    leaves: float


def _level(present: Present, rule: Rule, relative: float, *, is_held: bool) -> _Level:
    """Return the level of a GPU at *relative* of its peers. *is_held*: the driver says by what."""
    if not is_held:
        limit = present.threshold(SLOW_BELOW)
        return _Level(rule, None, None, limit, limit)
    watch, degraded = _begins(present)
    if relative <= degraded:
        return _Level(rule, None, rule.state, degraded, degraded + LEAVES_DEGRADED)
    mild = replace(rule, enter_seconds=max(LITTLE_SECONDS, rule.enter_seconds))
    state = State.WATCH if relative <= watch else State.HEALTHY
    keeps = rule.state if relative < degraded + LEAVES_DEGRADED else State.WATCH
    return _Level(mild, state, keeps, watch, watch + LEAVES_WATCH)


def _symptom(
    present: Present, rule: Rule, row: int, cause: str, *, is_held: bool = False
) -> Symptom:
    host, device = present.name("gpu_1s", row)
    measure = _measure(present, row)
    relative, usual = measure.relative, measure.usual_hertz
    level = _level(present, rule, relative, is_held=is_held)
    limit, within = level.limit, 100 * (1 - level.leaves)
    return Symptom(
        rule=level.rule,
        host=host,
        device=device,
        signal="gpu.sm_clock_hertz",
        value=float(relative * usual),
        normal=f"above {limit * usual / 1e9:.2f} GHz ({100 * limit:.0f} % of {measure.normal})",
        words=f"{short(device)} SM clock at {100 * relative:.0f} % of {measure.whose}, {cause}",
        sql=_sql(present, row, measure),
        speed=min(relative, 1.0),
        state=level.state,
        clears="" if rule is SETTING else _CLEARS.format(within, measure.clearing),
        keeps=level.keeps,
    )


def _sql(present: Present, row: int, measure: _Measure) -> str:
    """Return the query for a GPU's clock beside its peers', or for what it was before."""
    if not measure.is_of_peers:
        columns = "sm_clock_hertz, temperature_celsius, power_watts, clock_event_reasons_flags"
        return present.sql("gpu_1s", row, columns, PAST_SECONDS)
    host, gpu = present.name("gpu_1s", row)
    gang = _gang(present, row, host) if present.speeds.whom[row] == IN_GANG else []
    return evidence_sql.peers(present.fleet.names[host], present.now_ns, gpu, gang)


def _gang(present: Present, row: int, host: int) -> list[str]:
    """Return the hosts of a GPU's job, its own first, and where hosts are shared that job's GPUs: as many as are shown."""
    standing = present.fleet.gangs.standing
    if standing is None:
        return []
    gang = int(standing.of_gpus(present.fleet.devices["gpu"].host)[row])
    hosts, gpus = members(present, standing, host, gang, evidence_sql.PEERS_SHOWN_MAX)
    return hosts + gpus


def _measure(present: Present, row: int) -> _Measure:
    speeds, before = present.speeds, float(present.speeds_before[row])
    relative, limit = float(speeds.relative[row]), present.threshold(SLOW_BELOW)
    if not relative < limit and before < limit:
        past = float(present.fleet.activity.past[row])
        normal = "its own mean in this job while nothing held it"
        return _Measure(before, past, "what it was", normal, "what it was", is_of_peers=False)
    peers, alike = f"{speeds.peers[row]} peers", alike_in(present.fleet, speeds, row)
    median = float(speeds.median_hertz[row])
    normal = f"the median of {peers}: {alike}"
    return _Measure(relative, median, f"its {peers}", normal, "its peers'")
