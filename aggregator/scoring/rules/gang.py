"""Hosts and GPUs that slow down their gang (`fleet/gangs.py`); gaps: `gang_gaps.py`.

A verdict on a host needs two minutes of windows. The host must be the slow one in seven of ten
windows (a threshold) and more often than chance, and few other hosts of its gang may be equally
slow. Otherwise the cause is the gang's. Longer time at more work is caused by the workload (a
pipeline stage, long sequences), and gaps on all hosts alike by a shared service; no host is blamed
for either.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ....fingerprints.group_statistics import medians, outliers_max, per_member
from ....fingerprints.stragglers import BIRTH_FACTOR, CHANCE_MAX, PAIR_SIZE_MIN, Change
from ...arrays import Codes, Flags, Floats, Indexes
from ...fleet.gang_changes import BUSY_CHANGE_MIN, CHANGE_WORK, POWER_CHANGE_MIN, POWER_SLOW_MIN
from ...fleet.gang_comparison import GangComparison
from ...fleet.gangs import WINDOW_NS, WINDOWS
from ...rule_catalogue import gang as rules
from ...rule_declaration import Rule
from ...sql import quoted
from ..detectors import detects
from ..symptom import Symptom
from ..view import FleetView
from .gang_neighbors import attribute_to_neighbor, lost_share

#: If more work is at least this share of the excess, the workload explains the excess.
WORK_SHARE_MAX = 0.5
#: A host keeps pace if its excess is below this share of the slow-host threshold.
ALIKE_SHARE_MAX = 0.5
#: In smaller gangs a waiting host may spin and look busier than the slow host.
HOSTS_MIN = 3
#: Larger gangs need as many windows as a gang of this size, because their chance is smaller.
_GANG_HOSTS_MAX = 64
_GANG_HOSTS = range(_GANG_HOSTS_MAX + 1)
#: A GPU is judged only in a job with at least this many GPUs.
GPUS_MIN = 6
#: If only power shows who computes, a host of a smaller gang may be a pipeline stage.
POWER_HOSTS_MIN = 8
#: A power limit at or below this ratio to its earlier value was lowered; a clock at or below this
#: ratio to the other members' median is held down by it.
CAPPED_RATIO_MAX, HELD_RATIO_MAX = 0.97, 0.97
#: A clock at or above this ratio to its baseline is normal.
CLOCK_USUAL_MIN = 0.985
#: Maximum hosts of a gang in an evidence query.
HOSTS_SHOWN_MAX = 32

#: This many windows in a row are beyond chance in any gang, even in a gang of two hosts.
_RUN_MIN = math.ceil(-math.log2(CHANCE_MAX))


def _beyond_chance(windows: int, hosts: int) -> int:
    """Return how often of *windows* the same of *hosts* must be slow to be beyond chance.

    *windows* + 1 if no number suffices.
    """
    chances = [
        math.comb(windows, k) * (hosts - 1) ** (windows - k) / hosts**windows
        for k in range(windows + 1)
    ]
    return next(k for k in range(windows + 2) if sum(chances[k:]) <= CHANCE_MAX)


#: [windows, hosts]
_BEYOND_CHANCE = np.array(
    [[_beyond_chance(n, max(hosts, 1)) for hosts in _GANG_HOSTS] for n in range(WINDOWS + 1)]
)


@detects(rules.SLOW, rules.UNKNOWN, rules.WORKLOAD, rules.NEIGHBOR)
def slow_hosts(view: FleetView) -> Iterator[Symptom]:
    """Name each host that computes longer while all others of its job wait for it."""
    comparison = view.fleet.gangs.comparison
    if comparison is None:
        return
    minimum = view.threshold("gang.slow_ratio")
    slow = settled(view, comparison) & (comparison.busy >= minimum)
    slow &= is_persistent(view, comparison, comparison.busy_often)
    few_slow_gpus = _hosts_of_few_slow_gpus(view, comparison)
    slow &= (sizes(comparison) >= HOSTS_MIN) & ~few_slow_gpus
    slow &= are_few(comparison, slow)
    change = comparison.busy_change
    for host in rows_of(changed_hosts(view, comparison, change) & ~few_slow_gpus & ~slow):
        if not change.from_birth[host] or _is_of_usual_part(view, comparison, host):
            symptom = _changed_symptom(view, comparison, host)
            lost = lost_share(view, comparison, host, float(change.excess[host]))
            yield attribute_to_neighbor(view, comparison, symptom, lost)
    for host in rows_of(slow):
        if not _is_of_usual_part(view, comparison, host):
            continue
        excess, work = float(comparison.busy[host]), float(comparison.work[host])
        statement = (
            f"computes {100 * excess:.0f} % longer than the others of its job, which wait for it"
        )
        if work > WORK_SHARE_MAX * excess:
            message = f"{statement}, and does {100 * work:.0f} % more work: caused by the workload, not by this host"
            rule = rules.WORKLOAD
        elif np.isfinite(work):
            message = f"{statement}, at a normal clock and the same work: the host is slow, and the cause is unknown"
            rule = rules.SLOW
        else:
            message = f"{statement}; whether it has more work is unknown: nothing measures it"
            rule = rules.UNKNOWN
        symptom = _slow_symptom(view, comparison, rule, host, message)
        lost = lost_share(view, comparison, host, excess)
        yield attribute_to_neighbor(view, comparison, symptom, lost)


def changed_hosts(view: FleetView, comparison: GangComparison, change: Change) -> Flags:
    """Return the hosts that *change* names, in large gangs with few other named hosts."""
    named = change.is_named & view.awake[: change.is_named.size]
    named &= sizes(comparison) >= HOSTS_MIN
    # Two hosts that changed together are no pipeline stage if their work is the same.
    by_power = comparison.by_power[np.maximum(comparison.gang, 0)]
    may_be_pair = (sizes(comparison) >= PAIR_SIZE_MIN) & ~change.from_birth & ~by_power
    few = np.maximum(outliers_max(sizes(comparison)), np.where(may_be_pair, 2, 1))
    return named & (sizes(comparison, named) <= few)


def _is_of_usual_part(view: FleetView, comparison: GangComparison, host: int) -> bool:
    """Return whether *host* has its gang's usual GPU model: others are slower by design."""
    gpus = view.fleet.devices["gpu"]
    in_gang = rows_of(comparison.of_gpus(gpus.host) == comparison.gang[host])
    groups = view.fleet.peer_groups
    groups.levels(view.fleet)  # add GPUs that are new
    model_by_host = {int(gpus.host[row]): groups.make(row).get("model", "") for row in in_gang}
    models = Counter(model_by_host.values())
    return models[model_by_host.get(host, "")] * 2 >= len(model_by_host)


def _interval(change: Change, at: int) -> str:
    half = 1.645 * float(change.error[at])
    excess = float(change.excess[at])
    return f"90 % interval {100 * max(excess - half, 0.0):.1f} to {100 * (excess + half):.1f} %"


def _changed_symptom(view: FleetView, comparison: GangComparison, host: int) -> Symptom:
    change = comparison.busy_change
    excess, work = float(change.excess[host]), float(change.companions[CHANGE_WORK, host])
    since = "than before, and the others of its job do not"
    if change.from_birth[host]:
        since = "than the others of its job"
    message = f"computes {100 * excess:.0f} % longer {since} ({_interval(change, host)}): they wait for it"
    rule = rules.SLOW
    if work > WORK_SHARE_MAX * excess:
        rule, more = rules.WORKLOAD, f"{100 * work:.0f} % more work"
        message = f"{message}, and does {more}: caused by the workload, not by this host"
    elif np.isfinite(work):
        message = f"{message}, at a normal clock and the same work: the host is slow, and the cause is unknown"
    elif change.from_birth[host] or sizes(comparison)[host] < POWER_HOSTS_MIN:
        rule = rules.UNKNOWN
        message = f"{message}; whether it has more work is unknown: nothing measures it"
    elif excess < POWER_SLOW_MIN:
        rule, message = rules.UNKNOWN, f"{message}; a hotter part may draw that much more power"
    elif not _clock_is_usual(view, comparison, host):
        rule, message = rules.UNKNOWN, f"{message}; its clock is lower than before"
    else:
        message = f"{message}, as its power shows, at a normal clock: the host is slow, and the cause is unknown"
    symptom = _slow_symptom(view, comparison, rule, host, message)
    return replace(
        symptom,
        value=round(1.0 + excess, 3),
        normal=f"below {1.0 + _change_min(comparison, host):.2f}, in {change.streak[host]} windows of {change.window_seconds[host]:.0f} s on end",
        speed=1.0 / (1.0 + excess) if rule is rules.SLOW else 1.0,
    )


def _change_min(comparison: GangComparison, host: int) -> float:
    by_power = comparison.by_power[comparison.gang[host]]
    return _change_limit(is_by_power=bool(by_power), is_from_birth=bool(comparison.busy_change.from_birth[host]))  # fmt: skip


def _change_limit(*, is_by_power: bool, is_from_birth: bool) -> float:
    if is_from_birth:
        return BIRTH_FACTOR * (POWER_SLOW_MIN if is_by_power else BUSY_CHANGE_MIN)
    return POWER_CHANGE_MIN if is_by_power else BUSY_CHANGE_MIN


def _clock_is_usual(view: FleetView, comparison: GangComparison, host: int) -> bool:
    """Return whether GPUs of *host* run at their baseline clock, so power shows their work."""
    gpus = view.fleet.devices["gpu"]
    ratios = view.clock_over_baseline[(gpus.host == host) & (comparison.of_gpus(gpus.host) >= 0)]
    known = ratios[np.isfinite(ratios)]
    return bool(known.size and np.median(known) >= CLOCK_USUAL_MIN)


def _named_gpus(view: FleetView, comparison: GangComparison) -> Flags:
    change, gpus = comparison.gpu_change, view.fleet.devices["gpu"]
    named = np.zeros(gpus.count, dtype=bool)
    named[: change.is_named.size] = change.is_named
    return named & view.awake[gpus.host]


def _hosts_of_few_slow_gpus(view: FleetView, comparison: GangComparison) -> Flags:
    """Return hosts with slow GPUs on under half of their gang's GPUs: the host is not slow."""
    gpus, hosts = view.fleet.devices["gpu"], comparison.gang.size
    known = gpus.host < hosts
    gang, host = comparison.of_gpus(gpus.host), gpus.host
    total = np.bincount(host[known & (gang >= 0)], minlength=hosts)
    slow = np.bincount(host[known & _named_gpus(view, comparison)], minlength=hosts)
    return (slow > 0) & (2 * slow < total)


@detects(rules.SLOW_GPU, rules.UNKNOWN, rules.WORKLOAD, rules.NEIGHBOR)
def slow_gpus(view: FleetView) -> Iterator[Symptom]:
    """Name each GPU that its job waits for, on a host whose other GPUs are not slower."""
    comparison = view.fleet.gangs.comparison
    if comparison is None:
        return
    few = _hosts_of_few_slow_gpus(view, comparison)
    gpus, change = view.fleet.devices["gpu"], comparison.gpu_change
    in_gang = comparison.of_gpus(gpus.host)
    members = np.bincount(in_gang[in_gang >= 0], minlength=int(in_gang.max(initial=0)) + 1)
    for row in rows_of(_named_gpus(view, comparison)):
        host, gang = int(gpus.host[row]), int(in_gang[row])
        if gang < 0 or host >= few.size or not few[host] or members[gang] < GPUS_MIN:
            continue
        if change.from_birth[row] and not _is_of_usual_part(view, comparison, host):
            continue
        symptom = _gpu_symptom(view, comparison, change, (row, host, gang))
        lost = lost_share(view, comparison, host, float(change.excess[row]))
        yield attribute_to_neighbor(view, comparison, symptom, lost)


def _gpu_symptom(
    view: FleetView, comparison: GangComparison, change: Change, where: tuple[int, int, int]
) -> Symptom:
    row, host, gang = where
    excess, work = float(change.excess[row]), float(change.companions[CHANGE_WORK, row])
    by_power = bool(comparison.by_power[gang])
    since = "than before, and the other GPUs of its job do not"
    if change.from_birth[row]:
        since = "than the other GPUs of its job"
    message = (
        f"computes {100 * excess:.0f} % longer {since} ({_interval(change, row)}): they wait for it"
    )
    rule = rules.SLOW_GPU
    if work > WORK_SHARE_MAX * excess:
        rule, more = rules.WORKLOAD, f"{100 * work:.0f} % more work"
        message = f"{message}, and does {more}: caused by the workload, not by this GPU"
    elif by_power and (
        change.from_birth[row] or not view.clock_over_baseline[row] >= CLOCK_USUAL_MIN
    ):
        rule = rules.UNKNOWN
        message = f"{message}; whether it has more work is unknown: nothing measures it"
    elif by_power and excess < POWER_SLOW_MIN:
        rule, message = rules.UNKNOWN, f"{message}; a hotter part may draw that much more power"
    else:
        message = f"{message}, at a normal clock: the GPU is slow, and the cause is unknown"
    minimum = _change_limit(is_by_power=by_power, is_from_birth=bool(change.from_birth[row]))
    table, column = ("gpu_1s", "power_watts") if by_power else ("gpu_fast_1s", "sm_active_ratio")
    devices = view.fleet.devices["gpu"]
    return Symptom(
        rule=rule,
        host=host,
        device=devices.names[row],
        signal=rule.name,
        value=round(1.0 + excess, 3),
        unit="times the median of the others of its gang",
        normal=f"below {1.0 + minimum:.2f}, in {change.streak[row]} windows of {change.window_seconds[row]:.0f} s on end",
        message=message,
        sql=(
            f"SELECT device, avg({column}) AS {column} FROM readings.{table} WHERE "
            f"host = {quoted(view.fleet.names[host])} AND {_window_sql(view)} GROUP BY device ORDER BY {column} DESC"
        ),
        speed=1.0 / (1.0 + excess) if rule is rules.SLOW_GPU else 1.0,
    )


@detects(rules.CAPPED)
def capped_members(view: FleetView) -> Iterator[Symptom]:
    """Name each host whose power limit was lowered during its job, slowing its clock.

    Peers are GPUs with the same limit, so a rack that is capped on purpose has no straggler. But
    this job began before the limit was lowered, and now runs at the pace of this host.
    """
    comparison = view.fleet.gangs.comparison
    if comparison is None:
        return
    gpus, gang = view.fleet.devices["gpu"], comparison.gpu_gang
    rows = slice(0, gang.size)
    limit = view.gauge("gpu_10s", "power_limit_watts")[rows]
    below = limit / comparison.gpu_limit_before[rows]
    clock, count = view.clock[rows], int(gang.max(initial=-1)) + 1
    ratio = clock / per_member(medians(clock, gang, count), gang)
    with np.errstate(invalid="ignore"):
        held = (below <= CAPPED_RATIO_MAX) & view.fleet.activity.at_limit[rows]
        held &= (ratio <= HELD_RATIO_MAX) & (gang >= 0) & view.awake[gpus.host[rows]]
    gpu_host = gpus.host[rows]
    for host in np.unique(gpu_host[held]).tolist():
        own = np.flatnonzero(held & (gpu_host == host))
        row = int(own[np.argmin(ratio[own])])
        if sizes(comparison)[host] < HOSTS_MIN:
            continue
        yield Symptom(
            rule=rules.CAPPED,
            host=host,
            device=gpus.names[row],
            signal="gpu.power_limit_watts",
            value=float(limit[row]),
            normal=f"{comparison.gpu_limit_before[row]:.0f} W, as when its job began",
            message=(
                f"its power limit was lowered from {comparison.gpu_limit_before[row]:.0f} to {limit[row]:.0f} W while its job ran: "
                f"its clock is {100 * (1 - ratio[row]):.0f} % below that of the job's other GPUs, which wait for it"
            ),
            sql=view.sql("gpu_10s", row, "power_limit_watts", 900),
            speed=float(ratio[row]),
        )


def hosts_with_usual_gpus(view: FleetView) -> frozenset[int]:
    """Return the hosts whose GPUs in a gang are all as fast as before, or as the other GPUs."""
    comparison = view.fleet.gangs.comparison
    if comparison is None:
        return frozenset()
    gpus, hosts = view.fleet.devices["gpu"], comparison.gang.size
    change, gang = comparison.gpu_change, comparison.gpu_gang
    gpu_host, member = gpus.host[: gang.size], gang >= 0
    total = np.bincount(gpu_host[member], minlength=hosts)
    usual = np.bincount(gpu_host[member & change.is_usual], minlength=hosts)
    return frozenset(rows_of((total > 0) & (usual == total)))


def hosts_keeping_pace(view: FleetView) -> frozenset[int]:
    """Return the hosts that compute no longer than the others of their job, over all windows."""
    comparison = view.fleet.gangs.comparison
    if comparison is None:
        return frozenset()
    with view.with_previous_thresholds():
        before = view.threshold("gang.slow_ratio")
    maximum = ALIKE_SHARE_MAX * min(before, view.threshold("gang.slow_ratio"))
    keeps_pace = settled(view, comparison) & (comparison.busy < maximum)
    keeps_pace &= sizes(comparison) >= HOSTS_MIN
    return frozenset(rows_of(keeps_pace))


def settled(view: FleetView, comparison: GangComparison) -> Flags:
    """Return which hosts have enough windows and report now."""
    known = np.zeros(len(view.fleet), dtype=bool)
    enough = comparison.windows >= view.threshold("gang.windows_count")
    known[: comparison.gang.size] = enough & (comparison.gang >= 0)
    return np.asarray((known & view.awake)[: comparison.gang.size], dtype=bool)


def sizes(comparison: GangComparison, among: Flags | None = None) -> Indexes:
    """Return the number of hosts in each host's gang; *among*: count only these."""
    member = comparison.gang >= 0
    counted = member if among is None else member & among
    gangs = int(comparison.gang.max(initial=-1)) + 1
    count = np.bincount(comparison.gang[counted], minlength=gangs + 1)
    return np.where(member, count[np.where(member, comparison.gang, gangs)], 0)


def is_persistent(
    view: FleetView, comparison: GangComparison, often: Floats, run: Codes | None = None
) -> Flags:
    """Return which hosts were slow in *often* (a share) of their windows, beyond noise and chance.

    *run*: windows in a row in which the host was slow, counted further back than *often*.
    """
    hosts = np.minimum(sizes(comparison), _GANG_HOSTS_MAX)
    is_sure = np.rint(often * comparison.windows) >= _BEYOND_CHANCE[comparison.windows, hosts]
    if run is not None:
        is_sure |= run >= _RUN_MIN
    return (often >= view.threshold("gang.identity_ratio")) & is_sure


def are_few(comparison: GangComparison, found: Flags) -> Flags:
    few = sizes(comparison, found) <= outliers_max(sizes(comparison))
    return (comparison.gang >= 0) & few


def rows_of(found: Flags) -> list[int]:
    return np.flatnonzero(found).tolist()


def _slow_symptom(
    view: FleetView, comparison: GangComparison, rule: Rule, host: int, message: str
) -> Symptom:
    excess = float(comparison.busy[host])
    return Symptom(
        rule=rule,
        host=host,
        device="host",
        signal=rule.name,
        value=round(1.0 + excess, 3),
        unit="times the median of the others of its gang",
        normal=f"below {1.0 + view.threshold('gang.slow_ratio'):.2f}, "
        f"by {comparison.windows[host]} windows of {WINDOW_NS // 10**9} s",
        message=message,
        sql=gang_means_sql(
            view, comparison, host, "gpu_fast_1s", "sm_active_ratio", "tensor_active_ratio"
        ),
        speed=1.0 / (1.0 + excess) if rule is rules.SLOW else 1.0,
    )


def gang_means_sql(
    view: FleetView, comparison: GangComparison, host: int, table: str, *columns: str
) -> str:
    hosts, gpus = members(view, comparison, host, int(comparison.gang[host]), HOSTS_SHOWN_MAX)
    means = ", ".join(f"avg({column}) AS {column}" for column in columns)
    return (
        f"SELECT host, {means} FROM readings.{table} WHERE {members_condition(hosts, gpus)} AND {_window_sql(view)} "
        f"GROUP BY host ORDER BY {columns[0]} DESC"
    )


def _window_sql(view: FleetView) -> str:
    seconds = WINDOWS * WINDOW_NS // 10**9 + 15
    return f"time BETWEEN {view.timestamp_sql(-seconds)} AND {view.timestamp_sql(5)}"


def members_condition(hosts: list[str], gpus: list[str]) -> str:
    named = {"host": hosts, "device": gpus}
    conditions = [
        f"{key} IN ({', '.join(map(quoted, names))})" for key, names in named.items() if names
    ]
    return f"({' OR '.join(conditions)})" if len(conditions) > 1 else "".join(conditions) or "false"


def members(
    view: FleetView, comparison: GangComparison, host: int, gang: int, most: int
) -> tuple[list[str], list[str]]:
    """Return up to *most* names: hosts of *gang*, *host* first, and its GPUs on shared hosts."""
    hosts: list[str] = []
    gpus: list[str] = []
    others: Indexes = np.flatnonzero(comparison.gang == gang)[: most + 1]
    for member in (host, *(member for member in others.tolist() if member != host)):
        if len(hosts) + len(gpus) >= most:
            break
        if comparison.shared[member]:
            gpus += gang_gpus(view, comparison, member, gang)
        else:
            hosts.append(view.fleet.names[member])
    return hosts, gpus


def gang_gpus(view: FleetView, comparison: GangComparison, host: int, gang: int) -> list[str]:
    devices = view.fleet.devices["gpu"]
    of_gang = (devices.host == host) & (comparison.of_gpus(devices.host) == gang)
    return [devices.names[row] for row in rows_of(of_gang)]


@detects(rules.SLOW_RUNS)
def hosts_of_slow_runs(view: FleetView) -> Iterator[Symptom]:
    """Name each host with which runs of several workloads were slower than without it.

    Compare runs with and without the host: a host that was slow from the first step has no faster
    past within one run.
    """
    fleet = view.fleet
    for name, drift in fleet.drifting_hosts.items():
        host = fleet.index.get(name)
        if host is None or not view.awake[host]:
            continue
        loss, lower, upper = (
            100 * (1 - ratio) for ratio in (drift.ratio, drift.upper, drift.lower)
        )
        yield Symptom(
            rule=rules.SLOW_RUNS,
            host=host,
            device="host",
            signal=rules.SLOW_RUNS.name,
            value=round(drift.ratio, 3),
            unit="of the pace without it",
            normal="1.00",
            message=(
                f"{drift.runs} runs of {drift.workloads} workloads were {loss:.0f} % slower with this host than without it "
                f"(90 % interval {lower:.0f} to {upper:.0f})"
            ),
            sql=(
                "SELECT begun, job, workload_id, hosts, pace_ratio, verdict FROM ops.runs "
                f"WHERE list_contains(host_names, {quoted(name)}) AND pace_ratio IS NOT NULL ORDER BY begun DESC LIMIT 32"
            ),
            speed=drift.ratio,
        )
