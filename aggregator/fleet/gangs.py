"""Finds the hosts of a job for which the others wait: compares its hosts in windows of 10 s.

In a synchronous job all ranks step together, so each does its share of work in the same wall time.
They differ in how long they compute and how long they wait: the culprit is the host that does not
wait. Each window names it, by the share of time in which the SMs were busy, and two minutes of
windows show whether it is always the same. More time at more work (a later pipeline stage, a longer
sequence) is caused by the workload; more time at the same work by the host. A slowdown of all hosts
alike, or of a job on one host, cannot be compared with other hosts: it is compared with the job's
own past.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...fingerprints.gang_inference import GangInference
from ...fingerprints.group_statistics import (
    group_extremes,
    max_below_top,
    median_without,
    medians,
    outliers_max,
    per_member,
)
from ...fingerprints.stragglers import ChangeMonitor
from ..arrays import Codes, Flags, Floats, Indexes, Times
from ..counter_deltas import capacity_for, grown
from .activity import loaded_watts_min
from .devices import Devices
from .gang_changes import (
    READ_SHARE_MIN,
    WAITING_POWER_SHARE,
    BusyMonitor,
    GangPaceMonitor,
    GpuReadings,
    PaceFall,
    unexplained_excess,
)
from .gang_comparison import GangComparison
from .host_baseline import HostBaseline
from .jobs import (
    SCHEDULER,
    Job,
    are_divided,
    are_shared,
    gangs_of_gpus,
    jobs_of_hosts,
    with_inferred,
)
from .port_rates import CONGESTION_COUNTERS, congestion_rates, traffic_rates
from .reported_steps import INFERRED, ReportedSteps, gang_steps
from .tables import DeviceTable
from .window_sums import BUSY, CPU, GPU_TABLES, IO, SAMPLED, STEAL, USED, WORK, WindowSums

if TYPE_CHECKING:
    from .fleet import Fleet

#: Length of a window, and windows per verdict.
WINDOW_NS, WINDOWS = 10_000_000_000, 12
#: Minimum change, and noise, of the share of time in which nothing runs on a host's GPUs.
GAP_CHANGE_MIN, GAP_NOISE_MIN = 0.015, 0.002
#: Companions of a change of a host's gaps: pressure of its cores and disks.
CHANGE_CPU, CHANGE_IO, CHANGE_STEAL = range(3)
#: Minimum traffic of a host in an inferred gang, bytes per second (assumed).
TRAFFIC_MIN = 50e6

#: Values averaged over the windows, and values used in single windows.
_MEANS = (
    "busy", "work", "gap", "gap_median", "cpu", "io", "io_median", "steal",
    "slowed", "waits", "gap_more", "cpu_more", "io_more",
)  # fmt: skip
_WINDOW_VALUES = (*_MEANS, "lead")
#: Share of windows -> the value that decides in each window. When one host of three stalls, several
#: exceed the median of the others, but only one leads.
_OFTEN_SHOWN_BY = {"busy": "lead", "gap": "gap", "slowed": "slowed", "gap_more": "gap_more"}
#: A window counts if it shows this share of the mean.
OFTEN_SHARE = 0.5
#: Values that differ this much from the past are not added to the baseline: ratio of waits, share
#: of traffic, share of time in gaps.
UNUSUAL_WAITS, UNUSUAL_SLOWED, UNUSUAL_GAP = 1.25, 0.02, 0.015


class GangMonitor:
    """Compares the hosts of each job. Owned by the fleet's thread."""

    def __init__(self) -> None:
        #: The jobs, as of the last window.
        self.jobs: list[Job] = []
        self.comparison: GangComparison | None = None
        self._begin_ns = 0
        self._number = 0
        self._members: dict[tuple[str, str, int], tuple[frozenset[int], int]] = {}
        self._membership_last = 0
        self._changed_hosts: Flags = np.zeros(0, dtype=bool)
        self._inference = GangInference()
        self._pace = GangPaceMonitor()
        #: The steps that ranks report, as of the last window.
        self.steps = ReportedSteps()
        #: The gangs that became slower, by index in `jobs`.
        self.pace_falls: Mapping[int, PaceFall] = {}
        #: The inferred gangs, as of the previous window.
        self._inferred: list[Job] = []
        #: Per kind: rows on a host of a gang that do not belong to it, as of the last window.
        self._foreign: dict[str, Flags] = {}
        self._allocate(64)

    def _allocate(self, capacity: int) -> None:
        self._host_sums = WindowSums(len(SAMPLED["host_1s"]))
        self._gpu_sums = {name: WindowSums(len(SAMPLED[name])) for name in GPU_TABLES}
        self._limit_before: Floats = np.zeros(0)
        self._busy_monitor = BusyMonitor()
        self._gap_changes = ChangeMonitor(capacity, companions=3, noise_min=GAP_NOISE_MIN)
        #: Number of each host's gang and its members; 0: none.
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
        """Add the new readings of *rows* to the current window."""
        if table.name not in SAMPLED:
            return
        self._fit(hosts)
        if table.name in GPU_TABLES:
            self._gpu_sums[table.name].add(table, SAMPLED[table.name], rows, rows)
        else:
            host_of_row = table.devices.host[rows].astype(np.intp)
            self._host_sums.add(table, SAMPLED[table.name], rows, host_of_row)

    def _fit(self, hosts: int) -> None:
        if self._membership.size < hosts:
            capacity = capacity_for(hosts, self._membership.size)
            for name in ("_membership", "_rings", "_filled", "_gap_run"):
                setattr(self, name, grown(getattr(self, name), capacity))
            for monitor in (self._baseline, self._gap_changes):
                monitor.fit(capacity)

    def advance(self, fleet: Fleet, now_ns: int) -> None:
        """End the window if its time is over."""
        if 0 <= now_ns - self._begin_ns < WINDOW_NS:
            return
        self._begin_ns = now_ns
        jobs = fleet.jobs.gangs(fleet.index, fleet.gpus)
        self.jobs = with_inferred(jobs, self._inferred)
        self._fit(len(fleet))
        gang, gpus_held = self._gangs_of_hosts(len(fleet))
        gpu_gang, shared = self._assign_gpus(fleet, gang, gpus_held)
        self._infer(fleet, jobs, now_ns)
        self.steps.update(fleet, now_ns)
        if self.jobs:
            self._end_window(fleet, (gang, gpu_gang), shared, now_ns)
            self.comparison = self._compare(fleet.devices["gpu"], gang, gpu_gang, shared)
        else:
            self.comparison, self.pace_falls = None, {}
        for sums in (self._host_sums, *self._gpu_sums.values()):
            sums.clear()
        self._number += 1

    def unattributed_jobs(self, host: int) -> list[Job]:
        """Return the host's job of several hosts, if it is only scheduled or inferred."""
        gang = self.comparison.gang if self.comparison is not None else np.zeros(0, dtype=np.intp)
        job = self.jobs[gang[host]] if host < gang.size and gang[host] >= 0 else None
        return [job] if job is not None and job.key[0] in (SCHEDULER, INFERRED) else []

    def _gangs_of_hosts(self, hosts: int) -> tuple[Indexes, Indexes]:
        """Return the gang of each host (-1: none or several), and how many GPUs of the host it
        holds.

        Restart the baselines where the gang or its members changed. Jobs that share all of their
        hosts are compared by the first job's hosts, since the others run alike; the GPUs of the
        other jobs are compared, but not their hosts.
        """
        gang, gpus_held = np.full(hosts, -1, dtype=np.intp), np.full(hosts, -1, dtype=np.intp)
        twice = np.zeros(hosts, dtype=bool)
        code = np.zeros(hosts, dtype=np.int32)
        members: dict[tuple[str, str, int], tuple[frozenset[int], int]] = {}
        # On hosts of a job of several hosts, single-host processes such as a shell are ignored.
        self.jobs.sort(key=lambda job: len(job.gpus) == 1)
        in_several = np.zeros(hosts, dtype=bool)
        neighbors = jobs_of_hosts(self.jobs)
        for place, job in enumerate(self.jobs):
            # Hosts with fewer GPUs for the job than the others do a different share of the work.
            counts = list(job.gpus.values())
            gpus_usual = max(set(counts), key=counts.count)
            full_hosts = frozenset(host for host, gpus in job.gpus.items() if gpus == gpus_usual)
            before = self._members.get(job.key)
            if before is None or before[0] != full_hosts:
                self._membership_last += 1
                before = full_hosts, self._membership_last
            members[job.key] = before
            members_index = np.fromiter(full_hosts, np.intp, len(full_hosts))
            if len(job.gpus) == 1 and in_several[members_index].any():
                continue
            is_several = len(job.gpus) > 1
            is_same_hosts = is_several and len({neighbors[host] for host in full_hosts}) == 1
            if is_same_hosts and (gang[members_index] >= 0).all():
                continue
            in_several[members_index] = is_several
            twice[members_index] |= gang[members_index] >= 0
            gang[members_index], code[members_index] = place, before[1]
            gpus_held[members_index] = gpus_usual
        self._members = members
        gang[twice], code[twice], gpus_held[twice] = -1, 0, -1
        changed = code != self._membership[:hosts]
        self._filled[:, :hosts] &= ~changed
        self._gap_run[:hosts][changed] = 0
        for monitor in (self._baseline, self._gap_changes):
            monitor.reset(changed)
        self._changed_hosts = changed
        self._membership[:hosts] = code
        return gang, gpus_held

    def _assign_gpus(
        self, fleet: Fleet, gang: Indexes, gpus_held: Indexes
    ) -> tuple[Indexes, Flags]:
        """Store GPUs outside a host's gang; return each GPU's gang, and which hosts are shared."""
        result: dict[str, tuple[Indexes, Flags]] = {}
        for kind in ("gpu", "gpu_fast"):
            devices = fleet.devices[kind]
            shared = are_shared(devices, gpus_held)
            computes_for = gangs_of_gpus(devices, gang, shared, self.jobs, fleet.jobs)
            of_host = gang[devices.host]
            self._foreign[kind] = (of_host >= 0) & (computes_for != of_host)
            result[kind] = computes_for, shared
        return result["gpu"]

    def _infer(self, fleet: Fleet, jobs: Sequence[Job], now_ns: int) -> None:
        """Infer gangs among hosts that work without a known job of several hosts."""
        hosts, gpus = len(fleet), fleet.devices["gpu"]
        clock = fleet.activity.clock(fleet.boot, fleet.host_now_ns(now_ns))
        loaded = np.bincount(gpus.host, weights=np.isfinite(clock), minlength=hosts)
        named = [host for job in jobs if len(job.gpus) > 1 for host in job.gpus]
        candidates = (2 * loaded > fleet.gpus) & _is_reporting(fleet, now_ns)
        candidates[named] = False
        traffic = traffic_rates(fleet, now_ns)
        with np.errstate(invalid="ignore", divide="ignore"):
            candidates &= traffic >= TRAFFIC_MIN
            work = self._host_means_of_gpus(fleet)[WORK]
        # By traffic alone any two jobs of the same size would look like a gang.
        rates = np.array([work, traffic])
        self._inferred = [
            Job((INFERRED, "", min(members)), {host: int(fleet.gpus[host]) for host in members})
            for members in self._inference.update(rates, candidates)
        ]

    def _end_window(
        self, fleet: Fleet, gangs: tuple[Indexes, Indexes], shared: Flags, now_ns: int
    ) -> None:
        hosts, count = len(fleet), len(self.jobs)
        gang, gpu_gang = gangs
        steps_by_host = self.steps.by_host(self.jobs, gang, shared)
        watts = self._watts(fleet)
        clock = fleet.activity.clock(fleet.boot, fleet.host_now_ns(now_ns))
        with np.errstate(invalid="ignore", divide="ignore"):
            means = np.vstack([self._host_means_of_gpus(fleet), self._host_sums.means(hosts)])
            busy = means[BUSY]
            known = (np.isfinite(busy) | np.isfinite(means[USED])) & _is_reporting(fleet, now_ns)
            known &= ~self._changed_hosts  # their window includes another gang, or none
            above = self._mean(
                fleet, watts - loaded_watts_min(fleet.tables["gpu_10s"], fleet.tables["gpu_60s"])
            )
            works = medians(np.where(known, above, np.nan), gang, count) > 0.0
            shown = works & _enough_hosts_read(gang, known, count)
            group = np.where((per_member(shown.astype(np.float64), gang) > 0) & known, gang, -1)
            cycles_clock = self._mean(fleet, clock)
            values = self._busy_excess(busy, means[WORK], cycles_clock, group, count)
            values |= self._gaps(means, group, count)
            values |= self._against_baseline(fleet, means, group >= 0, now_ns)
            steps = gang_steps(steps_by_host, group, count)
            self._find_changes(fleet, values, (gang, group, gpu_gang), (watts, clock), steps)
            # Reported steps, else the median host's work, else power above waiting.
            work = np.where(np.isfinite(means[WORK]), means[WORK] * cycles_clock, above)
            paces = medians(np.where(group >= 0, work, np.nan), group, count)
            is_reported = np.isfinite(steps)
            self.pace_falls = self._pace.update(
                # Another way of measuring needs another past.
                [
                    2 * self._members[job.key][1] + int(is_reported[index])
                    for index, job in enumerate(self.jobs)
                ],
                np.where(is_reported, 1.0 / steps, paces),
                now_ns,
            )
        slot = self._number % WINDOWS
        for number, name in enumerate(_WINDOW_VALUES):
            self._rings[number, slot, :hosts] = values[name]
        self._filled[slot, :hosts] = group >= 0

    def _note_limits(self, fleet: Fleet, changed: Flags) -> None:
        """Store the power limit that each GPU has when it joins a gang."""
        limits = fleet.tables["gpu_10s"].gauge("power_limit_watts")
        known = self._limit_before.size
        self._limit_before = np.pad(
            self._limit_before, (0, limits.size - known), constant_values=np.nan
        )
        is_new = changed | ~np.isfinite(self._limit_before)
        self._limit_before[is_new] = limits[is_new]

    def _host_means_of_gpus(self, fleet: Fleet) -> Floats:
        """Return the means of BUSY, WORK and USED over each host's GPUs of its gang."""
        host_means: list[Floats] = []
        for name in GPU_TABLES:
            devices = fleet.tables[name].devices
            sums, counts = self._gpu_sums[name].totals(devices.count)
            host_of_gpu = devices.host
            of_gang = ~self._foreign[devices.kind]
            for total, reading_counts in zip(sums, counts, strict=True):
                summed, number = (
                    np.bincount(host_of_gpu, weights=values * of_gang, minlength=len(fleet))
                    for values in (total, reading_counts)
                )
                host_means.append(summed / number)
        return np.array(host_means)

    def _find_changes(
        self,
        fleet: Fleet,
        values: dict[str, Floats],
        gangs: tuple[Indexes, Indexes, Indexes],
        power: tuple[Floats, Floats],
        steps: Floats,
    ) -> None:
        """Add the window to the pasts of hosts and GPUs.

        *gangs*: of hosts, of hosts that count in this window, and of GPUs. *steps*: step time that
        each gang reports.
        """
        gang, group, gpu_gang = gangs
        count, gpus = len(self.jobs), fleet.devices["gpu"]
        watts, clock = power
        fast_rows = fleet.pcie_topology.rows(fleet, "gpu", "gpu_fast")
        fast = self._gpu_sums["gpu_fast_1s"].means(fleet.devices["gpu_fast"].count)
        busy, work = (
            np.where(fast_rows >= 0, np.append(values, np.nan)[fast_rows], np.nan)
            for values in fast
        )
        works = per_member((group >= 0).astype(np.float64), gpus.host.astype(np.intp)) > 0
        waiting = WAITING_POWER_SHARE * fleet.tables["gpu_10s"].gauge("power_limit_watts")
        companions = np.array([values[name] for name in ("cpu", "io", "steal")])
        stalls = self._gap_changes.update(
            values["gap"], companions, group, np.full(count, GAP_CHANGE_MIN)
        )
        # While a member stalls the others wait, and the member that stalled least looks slow;
        # stalls may alternate.
        stalled = np.bincount(group[stalls & (group >= 0)], minlength=count) > 0
        calm = np.where(per_member(stalled.astype(np.float64), group) > 0, -1, group)
        gpu_calm = np.where(
            works & ~(per_member(stalled.astype(np.float64), gpu_gang) > 0), gpu_gang, -1
        )
        self._note_limits(fleet, self._changed_hosts[gpus.host])
        self._busy = self._busy_monitor.observe(
            GpuReadings(busy, work, watts - waiting, clock),
            (gang, gpu_gang),
            (calm, gpu_calm),
            gpus.host,
            self._changed_hosts,
            steps,
        )
        self._group = group

    def _mean(self, fleet: Fleet, values: Floats) -> Floats:
        """Return the mean of *values* over each host's GPUs of its gang."""
        known = np.isfinite(values) & ~self._foreign["gpu"]
        host_of_gpu = fleet.devices["gpu"].host[known]
        total = np.bincount(host_of_gpu, weights=values[known], minlength=len(fleet))
        return np.asarray(total / np.bincount(host_of_gpu, minlength=len(fleet)))

    def _watts(self, fleet: Fleet) -> Floats:
        """Return each GPU's mean power over the window, from its energy, else its last power."""
        second = fleet.tables["gpu_1s"]
        joules, count = second.gauge("energy_joules"), fleet.devices["gpu"].count
        if self._joules.size < count:
            capacity = fleet.devices["gpu"].capacity
            self._joules = grown(self._joules, capacity)
            self._joules_ns = grown(self._joules_ns, capacity)
        read_ns = second.read_ns
        seconds = (read_ns - self._joules_ns[:count]) / 1e9
        drawn = joules - self._joules[:count]
        is_usable = (drawn >= 0.0) & (seconds > 0.5) & (seconds < 10 * WINDOW_NS / 1e9)
        self._joules[:count], self._joules_ns[:count] = joules, read_ns
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(is_usable, drawn / seconds, second.gauge("power_watts"))

    def _busy_excess(
        self, busy: Floats, work: Floats, clock: Floats, group: Indexes, count: int
    ) -> dict[str, Floats]:
        first = group_extremes(busy, group, count)
        more = work / per_member(median_without(work, first.greatest, group, count), group) - 1.0
        few = outliers_max(np.bincount(group[group >= 0], minlength=count))
        lead = busy / per_member(max_below_top(busy, few, group), group) - 1.0
        return {"busy": unexplained_excess(busy, clock, group, count), "lead": lead, "work": more}

    def _gaps(self, means: Floats, group: Indexes, count: int) -> dict[str, Floats]:
        unused = 1.0 - means[USED]
        first = group_extremes(unused, group, count)
        against_others = {
            name: means[index]
            - per_member(median_without(means[index], first.greatest, group, count), group)
            for name, index in (("cpu", CPU), ("io", IO), ("steal", STEAL))
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
        """Compare each host with its own past; usual hosts update their baseline."""
        values = np.array(
            [traffic_rates(fleet, now_ns), *congestion_rates(fleet, now_ns),
             1.0 - means[USED], means[CPU], means[IO]]
        )  # fmt: skip
        baseline = self._baseline.mean(len(fleet))
        rate_min = np.array([[counter.rate_min] for counter in CONGESTION_COUNTERS])
        ends = 1 + len(CONGESTION_COUNTERS)
        rose = values[1:ends] / np.maximum(baseline[1:ends], rate_min)
        more = zip(("gap_more", "cpu_more", "io_more"), (values - baseline)[ends:], strict=True)
        slowed, waits = 1.0 - values[0] / baseline[0], np.fmax.reduce(rose, axis=0)
        changes = {"slowed": slowed, "waits": waits, **dict(more)}
        unusual = (changes["waits"] >= UNUSUAL_WAITS) & (changes["slowed"] >= UNUSUAL_SLOWED)
        unusual |= changes["gap_more"] >= UNUSUAL_GAP
        self._baseline.update(values, counts, unusual, WINDOW_NS / 1e9)
        return changes

    def _compare(
        self, gpus: Devices, gang: Indexes, gpu_gang: Indexes, shared: Flags
    ) -> GangComparison:
        """Return the comparison over all windows."""
        hosts, slot = gang.size, self._number % WINDOWS
        filled = self._filled[:, :hosts]
        windows = filled.sum(axis=0, dtype=np.int32)
        windows_values = np.where(filled, self._rings[:, :, :hosts], np.nan)
        with warnings.catch_warnings():
            # The mean of an empty slice is NaN, as intended.
            warnings.simplefilter("ignore", RuntimeWarning)
            means = np.nanmean(windows_values[: len(_MEANS)], axis=1).astype(np.float64)
        mean_values: dict[str, Floats] = dict(zip(_MEANS, means, strict=True))
        # If the work is unknown in one window it counts as unknown: it decides who caused the time.
        mean_values["work"][
            (filled & ~np.isfinite(windows_values[_WINDOW_VALUES.index("work")])).any(axis=0)
        ] = np.nan
        shows = {
            name: windows_values[_WINDOW_VALUES.index(shown)] >= OFTEN_SHARE * mean_values[name]
            for name, shown in _OFTEN_SHOWN_BY.items()
        }
        often = {
            f"{name}_often": is_shown.sum(axis=0) / np.maximum(windows, 1)
            for name, is_shown in shows.items()
        }
        # Windows in which the gang did not work, such as a checkpoint, are skipped.
        shows_gap = shows["gap"][slot] & (
            windows_values[_WINDOW_VALUES.index("gap"), slot] >= UNUSUAL_GAP
        )
        run = np.where(shows_gap, self._gap_run[:hosts] + 1, 0)
        self._gap_run[:hosts][filled[slot]] = run[filled[slot]]
        return GangComparison(
            gang=gang, gpu_gang=gpu_gang, shared=shared,
            divided=are_divided(gpus, gpu_gang, hosts), windows=windows,
            gap_run=self._gap_run[:hosts].copy(), **mean_values, **often,
            busy_change=self._busy.hosts, gpu_change=self._busy.gpus, by_power=self._busy.by_power,
            gap_change=self._gap_changes.change(self._group, len(self.jobs)), gpu_limit_before=self._limit_before.copy(),
        )  # fmt: skip


def _is_reporting(fleet: Fleet, now_ns: int) -> Flags:
    return now_ns - fleet.last_received_ns < 2 * WINDOW_NS


def _enough_hosts_read(gang: Indexes, known: Flags, count: int) -> Flags:
    """Return which gangs have enough data in this window."""
    sizes = np.bincount(gang[gang >= 0], minlength=count)
    shown = np.bincount(gang[(gang >= 0) & known], minlength=count)
    is_enough = shown >= np.minimum(sizes, 2)
    return (shown > 0) & is_enough & (shown >= READ_SHARE_MIN * sizes)
