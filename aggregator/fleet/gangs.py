"""Who waits for whom: the hosts of one job against each other, in windows of ten seconds.

In a synchronous job all ranks step together, so each does its share of work in the same wall time. What differs is how
long it computes for it and how long it waits: the culprit is the host that does not wait. A window tells who that was,
by the share of time in which the SMs were busy, and two minutes of windows whether it is always the same. More time at
more work (a later pipeline stage, a longer sequence) is the workload's; more time at the same work is the host's.
What befalls all alike, or a job of one host, no other host tells: that is held against the job's own past.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..counter_deltas import Codes, Flags, Floats, Indexes, Times, capacity_for, grown, smoothing
from .activity import loaded_watts_min
from .devices import Devices
from .jobs import Job, are_divided, are_shared, gangs_of_gpus
from .tables import FAST_SECONDS, DeviceTable

if TYPE_CHECKING:
    from .fleet import Fleet


# ----------------------------------------------------------------------
# What the ports of each host move, and how they say that the network makes them wait.


class CongestionCounter(NamedTuple):
    """A counter that rises while a port has to wait. `least`: a second, of a whole host; less is nothing (assumed)."""

    table: str
    column: str
    rate_min: float
    description: str


#: InfiniBand: data to send and no credit. RoCE: notifications by DCQCN; most fabrics that pause ports mark packets first.
CONGESTION_COUNTERS = (
    CongestionCounter("rdma_1s", "transmit_wait_count", 1000.0, "wait for credits"),
    CongestionCounter("rdma_1s_changes", "congestion_notifications_handled_packets", 10.0, "are told to slow down"),
)  # fmt: skip
TRAFFIC_COLUMNS = (("rdma_1s", "received_bytes"), ("rdma_1s", "transmitted_bytes"))


def traffic_rates(fleet: Fleet, now_ns: int) -> Floats:
    """Return the bytes a second that all ports of each host moved in about the last ten; NaN where none is read."""
    return np.asarray(sum(_rates_by_host(fleet, *one, now_ns) for one in TRAFFIC_COLUMNS))


def congestion_rates(fleet: Fleet, now_ns: int) -> Floats:
    """Return the same of each sign: (signs, hosts)."""
    return np.array(
        [_rates_by_host(fleet, one.table, one.column, now_ns) for one in CONGESTION_COUNTERS]
    )


def port_rates(fleet: Fleet, table_name: str, column: str, now_ns: int) -> Floats:
    """Return how much a second a counter rose, of each port, in about the last ten seconds; NaN: not read."""
    table = fleet.tables[table_name]
    age_seconds = table.age_seconds(fleet.boot, fleet.host_now_ns(now_ns))
    # What comes every second is of now; what comes on change alone did not change since.
    quiet_seconds = np.where(age_seconds < 2.5 * table.period_seconds, 0.0, age_seconds)
    known = table.known(column)
    if column in table.sticky:
        known = known & ~table.saturated(column)
    return np.where(known, table.recent(column, quiet_seconds) / FAST_SECONDS, np.nan)


def _rates_by_host(fleet: Fleet, table_name: str, column: str, now_ns: int) -> Floats:
    each = port_rates(fleet, table_name, column, now_ns)
    known = np.isfinite(each)
    of = fleet.tables[table_name].devices.host[known]
    total = np.bincount(of, weights=each[known], minlength=len(fleet))
    return np.where(np.bincount(of, minlength=len(fleet)) > 0, total, np.nan)


# ----------------------------------------------------------------------
# What is usual of each host in the job that it runs: a mean that stands still while something is
# unusual.

#: Windows that make a past, of which the first are forgotten: a job begins slowly. And seconds after which a mean has
#: forgotten the rest.
WINDOWS_MIN, WARMUP_WINDOWS, BASELINE_SECONDS = 8, 2, 600.0
#: What is unusual for so many windows (an hour) is usual from then on.
UNUSUAL_MAX = 360


class HostBaseline:
    """Means of some values of every host, NaN where too little is known. Belongs to the fleet's thread."""

    def __init__(self, width: int, capacity: int) -> None:
        self._means: Floats = np.zeros((width, capacity))
        self._windows: Codes = np.zeros((width, capacity), dtype=np.int32)
        self._unusual: Codes = np.zeros(capacity, dtype=np.int32)

    def fit(self, capacity: int) -> None:
        """Make room for so many hosts."""
        if self._unusual.size < capacity:
            for name in ("_means", "_windows", "_unusual"):
                setattr(self, name, grown(getattr(self, name), capacity))

    def reset(self, hosts: Flags) -> None:
        """Forget these: another job has another usual."""
        self._windows[:, : hosts.size] *= ~hosts
        self._unusual[: hosts.size] *= ~hosts

    def mean(self, hosts: int) -> Floats:
        """Return the means of the first *hosts*: a row for each value."""
        known = self._windows[:, :hosts] >= WINDOWS_MIN
        return np.where(known, self._means[:, :hosts], np.nan)

    def update(self, values: Floats, counts: Flags, unusual: Flags, window_seconds: float) -> None:
        """Take in a window: *values* (a row each) of the hosts that it *counts* for, but of those that are *unusual* now."""
        hosts = counts.size
        unusual_windows = self._unusual[:hosts]
        unusual_windows[counts & unusual] += 1
        unusual_windows[counts & ~unusual] = 0
        restarts = unusual_windows > UNUSUAL_MAX
        self._windows[:, :hosts][:, restarts] = 0
        unusual_windows[restarts] = 0
        windows, means = self._windows[:, :hosts], self._means[:, :hosts]
        updated = (counts & (~unusual | restarts)) & np.isfinite(values)
        windows += updated
        weight_min = smoothing(np.array(window_seconds), BASELINE_SECONDS)
        weight = np.maximum(1.0 / np.maximum(windows - WARMUP_WINDOWS, 1), weight_min)
        means[updated] = (means * (1.0 - weight) + values * weight)[updated]


# ----------------------------------------------------------------------
# Medians and extremes of many small groups at once: gangs by the thousand, a handful of hosts each.


class GroupExtremes(NamedTuple):
    """Of each group: the place of its greatest value, and the median of all others. -1 and NaN where it has fewer than two."""

    greatest: Indexes
    median: Floats


class _SortedGroups(NamedTuple):
    """The places of all known values, group after group, ascending in each; and how many each group has, which ends where."""

    rows: Indexes
    sizes: Indexes
    ends: Indexes


def _sort_groups(values: Floats, group: Indexes, count: int) -> _SortedGroups:
    rows = np.flatnonzero(np.isfinite(values) & (group >= 0))
    sizes = np.bincount(group[rows], minlength=count)
    return _SortedGroups(rows[np.lexsort((values[rows], group[rows]))], sizes, np.cumsum(sizes))


def medians(values: Floats, group: Indexes, count: int) -> Floats:
    """Return the median of each of *count* groups, NaN for one without a value. *group*: -1 is none."""
    rows, sizes, ends = _sort_groups(values, group, count)
    begins = ends - sizes
    found = np.full(count, np.nan)
    some = sizes > 0
    low, high = begins + (sizes - 1) // 2, begins + sizes // 2
    found[some] = (values[rows[low[some]]] + values[rows[high[some]]]) / 2.0
    return found


def group_extremes(values: Floats, group: Indexes, count: int) -> GroupExtremes:
    """Return who has the most in each group, and the median of those beside it."""
    rows, sizes, ends = _sort_groups(values, group, count)
    most = np.full(count, -1, dtype=np.intp)
    several = sizes > 1
    most[several] = rows[ends[several] - 1]
    return GroupExtremes(most, median_without(values, most, group, count))


def max_below_top(values: Floats, few: Indexes, group: Indexes) -> Floats:
    """Return the greatest value of each group but for its *few* greatest; NaN for a group that has no more."""
    rows, sizes, ends = _sort_groups(values, group, few.size)
    found = np.full(few.size, np.nan)
    some = sizes > few
    found[some] = values[rows[(ends - 1 - few)[some]]]
    return found


def median_without(values: Floats, excluded: Indexes, group: Indexes, count: int) -> Floats:
    """Return the median of each group but for its member *excluded* (-1: the group has no answer)."""
    others = values.copy()
    others[excluded[excluded >= 0]] = np.nan
    found = medians(others, group, count)
    found[excluded < 0] = np.nan
    return found


def per_member(values: Floats, group: Indexes) -> Floats:
    """Return the value of each member's group; NaN for a member of none."""
    if not values.size:
        return np.full(group.shape, np.nan)
    return np.where(group >= 0, values[np.maximum(group, 0)], np.nan)


#: A window, and how many of them a verdict looks at.
WINDOW_NS, WINDOWS = 10_000_000_000, 12
#: What is averaged over a window: table -> columns.
SAMPLED = {
    "gpu_fast_1s": ("sm_active_ratio", "tensor_active_ratio"),
    "gpu_1s": ("utilization_ratio",),
    "host_1s": (
        "pressure_cpu_some_ratio", "pressure_io_some_ratio", "cpu_steal_ratio",
    ),
}  # fmt: skip
BUSY, WORK, USED, CPU, IO, STEAL = range(6)
_FIRST = {"gpu_fast_1s": BUSY, "gpu_1s": USED, "host_1s": CPU}
#: More hosts of a gang than this share (one always may) are the gang's affair, and no host's.
FEW_SHARE_MAX = 0.1
#: Of a gang so many of its hosts must be read for its window to count.
READ_SHARE_MIN = 0.8


class GangComparison(NamedTuple):
    """Each host within its gang, over the last windows in which the gang worked. Ratios are over the median of the others.

    NaN where nothing is known. `gang`: its place in `GangMonitor.jobs`, -1 for none.
    """

    gang: Indexes
    gpu_gang: Indexes  # of each row of GPUs: for whom it computes
    shared: Flags  # it has GPUs that are not its gang's
    divided: Flags  # its GPUs compute for several jobs
    windows: Codes
    busy: Floats  # how much longer its SMs were busy than the others', at its clock
    busy_often: Floats  # share of the windows in which it was half as much longer or more than all but the few longest
    work: Floats  # how much more its tensor cores did
    gap_often: Floats
    gap_run: Codes  # windows on end up to now in which it was so: of two hosts, twelve cannot tell which it is
    gap: Floats  # share of the time in which nothing ran on its GPUs, and on the others' something did
    gap_median: Floats  # the same share of time, of its gang, by its median
    cpu: Floats  # pressure, more than the others'
    io: Floats
    io_median: Floats  # pressure of its gang, by its median
    steal: Floats
    # Against its own past in this job.
    slowed: Floats  # how much less its ports moved, as a share
    slowed_often: Floats
    waits: Floats  # how many times as much they waited for the network, by the sign that rose most
    gap_more: Floats  # of the time
    gap_more_often: Floats
    cpu_more: Floats
    io_more: Floats

    def of_gpus(self, hosts: Codes) -> Indexes:
        """Return the gang of each row of GPUs, -1 for none. *hosts*: of each; there may be more now than there were."""
        gang = np.full(hosts.shape, -1, dtype=np.intp)
        known = hosts < self.gang.size
        gang[known] = self.gang[hosts[known]]
        gang[: self.gpu_gang.size] = self.gpu_gang
        return gang


#: What the mean of the windows tells, and what only each of them does.
_MEANS = (
    "busy", "work", "gap", "gap_median", "cpu", "io", "io_median", "steal",
    "slowed", "waits", "gap_more", "cpu_more", "io_more",
)  # fmt: skip
_WINDOW_VALUES = (*_MEANS, "lead")
#: What is counted by windows -> where it shows in one. Who is longer than the median of the others' is one of many when
#: one of three stalls: it is not who leads.
_OFTEN_SHOWN_BY = {"busy": "lead", "gap": "gap", "slowed": "slowed", "gap_more": "gap_more"}
#: A window counts for what is so in all when it shows this share of it.
OFTEN_SHARE = 0.5
#: What is so much unlike the past is not taken for usual: waits this many times as often, and gaps of so much more time.
UNUSUAL_WAITS, UNUSUAL_SLOWED, UNUSUAL_GAP = 1.25, 0.02, 0.015


class GangMonitor:
    """Belongs to the fleet's thread."""

    def __init__(self) -> None:
        #: The jobs, as of the last window.
        self.jobs: list[Job] = []
        self.comparison: GangComparison | None = None
        self._begin_ns = 0
        self._number = 0
        self._members: dict[tuple[str, str, int], tuple[frozenset[int], int]] = {}
        self._membership_last = 0
        #: By kind of device: which rows are on a host of a gang, and not the gang's. As of the last window.
        self._foreign: dict[str, Flags] = {}
        self._allocate(64)

    def _allocate(self, capacity: int) -> None:
        self._sums: Floats = np.zeros((6, capacity))
        self._counts: Floats = np.zeros((6, capacity))
        #: Which make-up of which gang each host was in; 0: none.
        self._membership: Codes = np.zeros(capacity, dtype=np.int32)
        self._baseline = HostBaseline(1 + len(CONGESTION_COUNTERS) + 3, capacity)
        self._rings: NDArray[np.float32] = np.zeros(
            (len(_WINDOW_VALUES), WINDOWS, capacity), np.float32
        )
        self._filled: NDArray[np.bool_] = np.zeros((WINDOWS, capacity), dtype=bool)
        self._gap_run: Codes = np.zeros(capacity, dtype=np.int32)
        self._joules: Floats = np.zeros(64)
        self._joules_ns: Times = np.zeros(64, dtype=np.int64)

    def sample(self, table: DeviceTable, rows: Indexes, hosts: int) -> None:
        """Add the new readings of *rows* to the window of their hosts; nothing while there is no job."""
        if table.name not in SAMPLED or not self.jobs:
            return
        self._fit(hosts)
        of, of_gang = table.devices.host[rows], self._are_of_gang(table.devices, rows)
        for at, column in enumerate(SAMPLED[table.name], _FIRST[table.name]):
            values = table.gauge_at(column, rows)
            known = np.isfinite(values) & of_gang
            many = of[known]
            self._sums[at, :hosts] += np.bincount(many, weights=values[known], minlength=hosts)
            self._counts[at, :hosts] += np.bincount(many, minlength=hosts)

    def _are_of_gang(self, devices: Devices, rows: Indexes) -> Flags:
        """Say which *rows* are not somebody else's on a host of a gang. Of those that came since the last window all are."""
        of_gang, others = np.ones(rows.size, dtype=bool), self._foreign.get(devices.kind)
        if others is not None:
            before = rows < others.size
            of_gang[before] = ~others[rows[before]]
        return of_gang

    def _fit(self, hosts: int) -> None:
        if self._membership.size < hosts:
            capacity = capacity_for(hosts, self._membership.size)
            for name in ("_sums", "_counts", "_membership", "_rings", "_filled", "_gap_run"):
                setattr(self, name, grown(getattr(self, name), capacity))
            self._baseline.fit(capacity)

    def advance(self, fleet: Fleet, now_ns: int) -> None:
        """End the window if its time is over."""
        if 0 <= now_ns - self._begin_ns < WINDOW_NS:
            return
        self._begin_ns = now_ns
        self.jobs = fleet.jobs.all()
        self._fit(len(fleet))
        gang, gpus_held = self._gangs_of_hosts(len(fleet))
        gpu_gang, shared = self._assign_gpus(fleet, gang, gpus_held)
        if self.jobs:
            self._end_window(fleet, gang, now_ns)
            self.comparison = self._compare(fleet.devices["gpu"], gang, gpu_gang, shared)
        else:
            self.comparison = None
        self._sums[:] = self._counts[:] = 0.0
        self._number += 1

    def _gangs_of_hosts(self, hosts: int) -> tuple[Indexes, Indexes]:
        """Return the gang of each host, -1 for none or two, and begin anew where a gang is another than before.

        And how many of the host's GPUs its gang's job holds, -1 likewise.
        """
        gang, gpus_held = np.full(hosts, -1, dtype=np.intp), np.full(hosts, -1, dtype=np.intp)
        twice = np.zeros(hosts, dtype=bool)
        code = np.zeros(hosts, dtype=np.int32)
        members: dict[tuple[str, str, int], tuple[frozenset[int], int]] = {}
        # Beside a job of several hosts a process of nobody's, or a shell, makes no host another job's.
        self.jobs.sort(key=lambda job: len(job.gpus) == 1)
        in_several = np.zeros(hosts, dtype=bool)
        for place, job in enumerate(self.jobs):
            # Hosts that hold fewer GPUs for it than the others do another share of the work.
            counts = list(job.gpus.values())
            gpus_usual = max(set(counts), key=counts.count)
            full_hosts = frozenset(host for host, gpus in job.gpus.items() if gpus == gpus_usual)
            before = self._members.get(job.key)
            if before is None or before[0] != full_hosts:
                self._membership_last += 1
                before = full_hosts, self._membership_last
            members[job.key] = before
            at = np.fromiter(full_hosts, np.intp, len(full_hosts))
            if len(job.gpus) == 1 and in_several[at].any():
                continue
            in_several[at] = len(job.gpus) > 1
            twice[at] |= gang[at] >= 0
            gang[at], code[at], gpus_held[at] = place, before[1], gpus_usual
        self._members = members
        gang[twice], code[twice], gpus_held[twice] = -1, 0, -1
        changed = code != self._membership[:hosts]
        self._filled[:, :hosts] &= ~changed
        self._gap_run[:hosts][changed] = 0
        self._baseline.reset(changed)
        self._membership[:hosts] = code
        return gang, gpus_held

    def _assign_gpus(
        self, fleet: Fleet, gang: Indexes, gpus_held: Indexes
    ) -> tuple[Indexes, Flags]:
        """Note which GPUs are not those of their host's gang. Return for whom each computes, and which hosts have such."""
        found: dict[str, tuple[Indexes, Flags]] = {}
        for kind in ("gpu", "gpu_fast"):
            devices = fleet.devices[kind]
            shared = are_shared(devices, gpus_held)
            computes_for = gangs_of_gpus(devices, gang, shared, self.jobs, fleet.jobs)
            of_host = gang[devices.host]
            self._foreign[kind] = (of_host >= 0) & (computes_for != of_host)
            found[kind] = computes_for, shared
        return found["gpu"]

    def _end_window(self, fleet: Fleet, gang: Indexes, now_ns: int) -> None:
        hosts, count = len(fleet), len(self.jobs)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = self._sums[:, :hosts] / self._counts[:, :hosts]
            busy = means[BUSY]
            known = (np.isfinite(busy) | np.isfinite(means[USED])) & _is_reporting(fleet, now_ns)
            works = (
                medians(np.where(known, self._power_above_waiting(fleet), np.nan), gang, count)
                > 0.0
            )
            shown = works & _enough_hosts_read(gang, known, count)
            group = np.where((per_member(shown.astype(np.float64), gang) > 0) & known, gang, -1)
            values = self._busy_excess(busy, means[WORK], self._clocks(fleet, now_ns), group, count)
            values |= self._gaps(means, group, count)
            values |= self._against_baseline(fleet, means, group >= 0, now_ns)
        at = self._number % WINDOWS
        for number, name in enumerate(_WINDOW_VALUES):
            self._rings[number, at, :hosts] = values[name]
        self._filled[at, :hosts] = group >= 0

    def _power_above_waiting(self, fleet: Fleet) -> Floats:
        """Return how many watts more than waiting does each host's GPUs drew, in the mean: none at a checkpoint."""
        tables = fleet.tables
        more = self._watts(fleet) - loaded_watts_min(tables["gpu_10s"], tables["gpu_60s"])
        return self._mean(fleet, more)

    def _clocks(self, fleet: Fleet, now_ns: int) -> Floats:
        """Return the mean clock of each host's computing GPUs."""
        return self._mean(fleet, fleet.activity.clock(fleet.boot, fleet.host_now_ns(now_ns)))

    def _mean(self, fleet: Fleet, values: Floats) -> Floats:
        """Return the mean of *values* of GPUs over those of each host's gang."""
        known = np.isfinite(values) & ~self._foreign["gpu"]
        of = fleet.devices["gpu"].host[known]
        total = np.bincount(of, weights=values[known], minlength=len(fleet))
        return np.asarray(total / np.bincount(of, minlength=len(fleet)))

    def _watts(self, fleet: Fleet) -> Floats:
        """Return the mean power of each GPU over the window, by its energy, else as it was read last."""
        second = fleet.tables["gpu_1s"]
        joules, count = second.gauge("energy_joules"), fleet.devices["gpu"].count
        if self._joules.size < count:
            capacity = fleet.devices["gpu"].capacity
            self._joules = grown(self._joules, capacity)
            self._joules_ns = grown(self._joules_ns, capacity)
        at_ns = second.read_ns
        seconds = (at_ns - self._joules_ns[:count]) / 1e9
        drawn = joules - self._joules[:count]
        is_one = (drawn >= 0.0) & (seconds > 0.5) & (seconds < 10 * WINDOW_NS / 1e9)
        self._joules[:count], self._joules_ns[:count] = joules, at_ns
        return np.where(is_one, drawn / seconds, second.gauge("power_watts"))

    def _busy_excess(
        self, busy: Floats, work: Floats, clock: Floats, group: Indexes, count: int
    ) -> dict[str, Floats]:
        first = group_extremes(busy, group, count)
        excess = busy / per_member(first.median, group) - 1.0
        # A clock that is low has a rule of its own: what counts here is what no clock explains.
        cycles = busy * clock
        unexplained = cycles / per_member(group_extremes(cycles, group, count).median, group) - 1.0
        more = work / per_member(median_without(work, first.greatest, group, count), group) - 1.0
        few = outliers_max(np.bincount(group[group >= 0], minlength=count))
        lead = busy / per_member(max_below_top(busy, few, group), group) - 1.0
        return {"busy": np.minimum(excess, unexplained), "lead": lead, "work": more}

    def _gaps(self, means: Floats, group: Indexes, count: int) -> dict[str, Floats]:
        unused = 1.0 - means[USED]
        first = group_extremes(unused, group, count)
        against_others = {
            name: means[at]
            - per_member(median_without(means[at], first.greatest, group, count), group)
            for name, at in (("cpu", CPU), ("io", IO), ("steal", STEAL))
        }
        return {
            **against_others,
            "gap": unused - per_member(first.median, group),
            "gap_median": per_member(first.median, group),
            "io_median": per_member(median_without(means[IO], first.greatest, group, count), group),
        }

    def _against_baseline(
        self, fleet: Fleet, means: Floats, counts: Flags, now_ns: int
    ) -> dict[str, Floats]:
        """Return each host against its own past, and let the window be a part of that where nothing is unusual."""
        values = np.array(
            [traffic_rates(fleet, now_ns), *congestion_rates(fleet, now_ns),
             1.0 - means[USED], means[CPU], means[IO]]
        )  # fmt: skip
        baseline = self._baseline.mean(len(fleet))
        rate_min = np.array([[counter.rate_min] for counter in CONGESTION_COUNTERS])
        ends = 1 + len(CONGESTION_COUNTERS)
        rose = values[1:ends] / np.maximum(baseline[1:ends], rate_min)
        found = {
            "slowed": 1.0 - values[0] / baseline[0],
            "waits": np.fmax.reduce(rose, axis=0),
            **dict(
                zip(("gap_more", "cpu_more", "io_more"), (values - baseline)[ends:], strict=True)
            ),
        }
        unusual = (found["waits"] >= UNUSUAL_WAITS) & (found["slowed"] >= UNUSUAL_SLOWED)
        unusual |= found["gap_more"] >= UNUSUAL_GAP
        self._baseline.update(values, counts, unusual, WINDOW_NS / 1e9)
        return found

    def _compare(
        self, gpus: Devices, gang: Indexes, gpu_gang: Indexes, shared: Flags
    ) -> GangComparison:
        """Return what the windows tell."""
        hosts, at = gang.size, self._number % WINDOWS
        filled = self._filled[:, :hosts]
        windows = filled.sum(axis=0, dtype=np.int32)
        windows_values = np.where(filled, self._rings[:, :, :hosts], np.nan)
        with warnings.catch_warnings():
            # A mean of nothing is NaN, as it should be.
            warnings.simplefilter("ignore", RuntimeWarning)
            means = np.nanmean(windows_values[: len(_MEANS)], axis=1).astype(np.float64)
        found: dict[str, Floats] = dict(zip(_MEANS, means, strict=True))
        # Of one window it is not known: of none then, as whose the time is hangs on it.
        found["work"][
            (filled & ~np.isfinite(windows_values[_WINDOW_VALUES.index("work")])).any(axis=0)
        ] = np.nan
        shows = {
            name: windows_values[_WINDOW_VALUES.index(shown)] >= OFTEN_SHARE * found[name]
            for name, shown in _OFTEN_SHOWN_BY.items()
        }
        often = {
            f"{name}_often": each.sum(axis=0) / np.maximum(windows, 1)
            for name, each in shows.items()
        }
        # A window in which the gang did not work, a checkpoint, is passed over.
        shows_gap = shows["gap"][at] & (
            windows_values[_WINDOW_VALUES.index("gap"), at] >= UNUSUAL_GAP
        )
        run = np.where(shows_gap, self._gap_run[:hosts] + 1, 0)
        self._gap_run[:hosts][filled[at]] = run[filled[at]]
        return GangComparison(
            gang=gang, gpu_gang=gpu_gang, shared=shared,
            divided=are_divided(gpus, gpu_gang, hosts), windows=windows,
            gap_run=self._gap_run[:hosts].copy(), **found, **often,
        )  # fmt: skip


def outliers_max(sizes: Indexes) -> Indexes:
    """Return how many hosts of gangs of *sizes* may be longer than the others without it being the gang's affair."""
    return np.maximum(1, (FEW_SHARE_MAX * sizes).astype(np.intp))


def _is_reporting(fleet: Fleet, now_ns: int) -> Flags:
    return np.asarray(now_ns - fleet.last_received_ns < 2 * WINDOW_NS, dtype=bool)


def _enough_hosts_read(gang: Indexes, known: Flags, count: int) -> Flags:
    """Say of which gangs enough is known in this window."""
    every = np.bincount(gang[gang >= 0], minlength=count)
    shown = np.bincount(gang[(gang >= 0) & known], minlength=count)
    several = shown >= np.minimum(every, 2)
    return np.asarray((shown > 0) & several & (shown >= READ_SHARE_MIN * every), dtype=bool)
