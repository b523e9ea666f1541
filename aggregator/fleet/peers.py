"""Peer groups: GPUs that match in everything that affects the clock, or in less of it where too few match.

Simulated GPUs are never peers of real ones. A rack that is capped on purpose has its own peers and does not count as slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from statistics import NormalDist
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...fingerprints.stragglers import medians, per_member
from ..counter_deltas import Codes, Flags, Floats, Indexes
from .activity import AT_LIMIT_SHARE
from .devices import TopologySource
from .gangs import GangComparison
from .tables import DeviceTable

# ----------------------------------------------------------------------
# GPUs at their power limit: their clock tells how dense their work is, and of them only others at
# it are peers.
#
# The driver's cap flag is normal at full load. Beside lighter work, which never comes to the limit,
# one that computes at its limit is slower by design; so is, in another job, one that does less in
# each watt.

#: Limits so near to each other are one.
LIMIT_WATTS = 5.0
#: From this many hosts of a gang on, hosts at their limit are a stage of its work and not faulty.
STAGE_HOSTS_MIN = 3
#: This many GPUs of a host that are not at their limit tell what its work draws; within so much more it is the same work.
FREE_MIN, SAME_WORK_RATIO_MAX = 3, 1.02
#: Who a GPU is measured by.
ALL, AT_LIMIT, IN_GANG = 0, 1, 2


class PowerLimited(NamedTuple):
    """Per GPU row: whether it computes at its power limit, that limit, and the gang that it computes for (-1: none).

    `divided`: its host has GPUs that compute for others, too.
    """

    rows: Flags
    watts: Floats
    gang: Indexes
    divided: Flags


class PeerMeasure(NamedTuple):
    """Per GPU: the median clock of those at the same work (NaN: too few), how many they are, their spread about it.

    `basis`: ALL alike, those AT_LIMIT, or those IN_GANG.
    """

    median_hertz: Floats
    peers: Codes
    spread: Floats
    basis: Codes

    def select(self, some: Flags) -> PeerMeasure:
        """Return the message about *some*."""
        return PeerMeasure(
            self.median_hertz[some], self.peers[some], self.spread[some], self.basis[some]
        )


def power_limited(
    rows: Flags, watts: Floats, hosts: Codes, comparison: GangComparison | None
) -> PowerLimited:
    """Return who computes at its limit. *hosts*: of each GPU."""
    divided = np.zeros(rows.shape, dtype=bool)
    if comparison is None:
        return PowerLimited(rows, watts, np.full(rows.shape, -1, dtype=np.intp), divided)
    known = hosts < comparison.divided.size
    divided[known] = comparison.divided[hosts[known]]
    return PowerLimited(rows, watts, comparison.of_gpus(hosts), divided)


def at_shared_limit(limits: PowerLimited, rows: Indexes) -> Flags:
    """Say which of *rows* are at a limit that is not lower than is usual among them: a lower one must be found."""
    some = limits.rows[rows]
    if not some.any():
        return some
    return np.asarray(some & (limits.watts[rows] >= np.nanmedian(limits.watts[rows]) - LIMIT_WATTS))


def capped_below_limit(limits: PowerLimited, power: Floats, clock: Floats, hosts: Codes) -> Flags:
    """Say which GPUs another cap than their own limit holds down, of those taken for being at it (*power*: of now, watts).

    They draw less than their limit, and no more than those of their host that are not at theirs, at a lower clock: denser
    work would draw more. Not of one whose gang is known: that does the same work, and is the better measure.
    """
    with np.errstate(invalid="ignore"):
        found = limits.rows & (limits.gang < 0) & (power < AT_LIMIT_SHARE * limits.watts)
    if not found.any():
        return found
    group = np.where(np.isfinite(clock) & ~limits.rows, hosts, -1).astype(np.intp)
    count = int(hosts.max(initial=0)) + 1
    watts, hertz = (medians(values, group, count)[hosts] for values in (power, clock))
    found &= _group_sizes(group, count)[hosts] >= FREE_MIN
    with np.errstate(invalid="ignore"):
        return np.asarray(
            found & (power <= SAME_WORK_RATIO_MAX * watts) & (clock < hertz), dtype=bool
        )


def measure_at_limit(
    limits: PowerLimited, clock: Floats, hosts: Codes, rows: Indexes, least: tuple[int, int]
) -> PeerMeasure:
    """Measure *rows*, GPUs alike, each by its gang, or else by those of them at a shared limit.

    Of a gang of which enough are at their limit (a stage of a pipeline, if not all) these are the measure, else all of
    it: it does the same work. Where too few are of a gang that shares a host, nothing is known of them: those at a limit
    are the other job's. *least*: GPUs and hosts that a median is of.
    """
    numbers, gang = np.unique(limits.gang[rows], return_inverse=True)
    gang = np.where(limits.gang[rows] >= 0, gang, -1).astype(np.intp)
    shared, count = at_shared_limit(limits, rows), numbers.size
    at_limit = np.where(shared, gang, -1)
    enough = (_group_sizes(at_limit, count) >= least[0]) & (
        _group_host_counts(at_limit, hosts[rows], count) >= STAGE_HOSTS_MIN
    )
    measure = np.where(per_member(enough.astype(np.float64), gang) == 1, at_limit, gang)
    alone = per_member((_group_sizes(measure, count) < least[0]).astype(np.float64), gang) == 1
    # Without a gang worth the name: all at a shared limit.
    loose = (gang < 0) | alone
    together = np.where(shared, 0, -1)
    if shared.sum() < least[0] or _group_host_counts(together, hosts[rows], 1)[0] < least[1]:
        together[:] = -1
    by_limit = _measure_groups(clock[rows], together, np.zeros(rows.size, np.intp), 1, AT_LIMIT)
    by_gang = _measure_groups(clock[rows], measure, gang, count, IN_GANG)
    median_hertz = np.where(loose, by_limit.median_hertz, by_gang.median_hertz)
    return PeerMeasure(
        np.where(alone & limits.divided[rows], np.nan, median_hertz),
        np.where(loose, by_limit.peers, by_gang.peers),
        np.where(loose, by_limit.spread, by_gang.spread),
        np.where(loose, by_limit.basis, by_gang.basis),
    )


def _measure_groups(
    clock: Floats, measure: Indexes, of: Indexes, count: int, basis: int
) -> PeerMeasure:
    """Return of each GPU what the group *of* it tells, of which *measure* are the measure."""
    median = medians(clock, measure, count)
    off = np.abs(clock / per_member(median, measure) - 1.0)
    sizes = _group_sizes(measure, count)
    return PeerMeasure(
        per_member(median, of), np.nan_to_num(per_member(sizes.astype(np.float64), of)).astype(np.int32),
        per_member(medians(off, measure, count), of), np.full(of.shape, basis, np.int32),
    )  # fmt: skip


def _group_sizes(group: Indexes, count: int) -> Indexes:
    return np.bincount(group[group >= 0], minlength=count)


def _group_host_counts(group: Indexes, hosts: Codes, count: int) -> Indexes:
    """Return of how many hosts each group is."""
    some = group >= 0
    hosts_max = int(hosts.max(initial=0)) + 1
    pairs = np.unique(group[some].astype(np.int64) * hosts_max + hosts[some])
    return np.bincount(pairs // hosts_max, minlength=count)


#: Fewer computing GPUs than this have no median worth the name.
PEERS_MIN = 4
#: Of fewer hosts a narrow group has none either: a host that was set wrong would be its own measure.
HOSTS_MIN = 3
#: Groups of one width that are looked at, the largest first: more would be an attack.
GROUPS_MAX = 256

#: What an inventory says -> as text.
MAKE_ATTRIBUTES = {
    "name": "model", "board_part_number": "part", "vbios": "VBIOS", "driver": "driver", "ecc_mode": "ECC mode",
}  # fmt: skip
LIMIT, SETTING, MIG = "power limit", "clock setting", "MIG mode"
FIELDS = (*MAKE_ATTRIBUTES.values(), LIMIT, SETTING, MIG)
#: From all of it to the model alone. A driver or a VBIOS moves clocks less than a limit does.
WIDTHS: tuple[frozenset[str], ...] = tuple(
    frozenset(FIELDS) - set(left_out)
    for left_out in (
        (), ("part", "VBIOS"), ("part", "VBIOS", "driver"), tuple(f for f in FIELDS if f != "model"),
    )
)  # fmt: skip
#: Limits within a bucket are one, and so are clock settings: in hertz (a step of NVIDIA's is 15 MHz).
SETTING_HERTZ = 15e6
#: Cells of a key: model's highest clock where there is no name, limit, setting, MIG, simulated.
_CEILING, _LIMIT, _SETTING, _MIG, _MAKE = 1, 14, 26, 38, 40
_TWELVE_BITS, _THIRTEEN_BITS, _MAKES_MAX = 0xFFF, 0x1FFF, 1 << 20
Keys = NDArray[np.int64]


class PeerLevel(NamedTuple):
    """GPUs alike in what `width` of WIDTHS says, group by group."""

    width: int
    hosts_min: int
    groups: list[Indexes]
    settled: Flags  # GPUs whose measure is a narrower group, though too few of that may compute


class PeerSource(TopologySource, Protocol):
    """What is needed of a fleet."""

    tables: dict[str, DeviceTable]
    peer_groups: PeerGroups

    @property
    def simulated(self) -> Flags: ...


class PeerGroups:
    """The groups of peers of a fleet. Kept between calls: they change when a host, a limit or a setting does."""

    def __init__(self) -> None:
        self._version = -1
        #: What each make is, by the names of MADE; and the make of every GPU row.
        self._make_ids: dict[tuple[str, ...], int] = {}
        self._makes: Keys = np.zeros(0, dtype=np.int64)
        self._setting_keys: Keys = np.zeros(0, dtype=np.int64)
        self._levels: list[PeerLevel] = []
        self._cells: list[NDArray[Any]] = []  # what `_setting_keys` was made from

    def levels(self, fleet: PeerSource) -> list[PeerLevel]:
        """Return the groups, narrowest first."""
        is_new = (
            self._version != fleet.shape_version or self._makes.size != fleet.devices["gpu"].count
        )
        cells = _cells(fleet)
        if not is_new and all(map(np.array_equal, cells, self._cells)):
            return self._levels
        if is_new:
            self._makes = self._row_makes(fleet)
            self._version = fleet.shape_version
        self._cells = [each.copy() for each in cells]
        settings = _settings(fleet, self._has_name())
        if is_new or not np.array_equal(settings, self._setting_keys):
            self._setting_keys = settings
            self._levels = list(self._build_levels(fleet.devices["gpu"].host))
        return self._levels

    def make(self, row: int) -> dict[str, str]:
        """Return what is known of how a GPU was made, by the names of FIELDS."""
        values = list(self._make_ids)[int(self._makes[row])]
        return {
            noun: text for noun, text in zip(MAKE_ATTRIBUTES.values(), values, strict=True) if text
        }

    def _row_makes(self, fleet: PeerSource) -> Keys:
        gpus, make_by_attributes = fleet.devices["gpu"], dict[int, int]()
        nothing: dict[str, str] = {}
        makes = np.zeros(gpus.count, dtype=np.int64)
        for row, (host, name) in enumerate(zip(gpus.host.tolist(), gpus.names, strict=True)):
            attributes = fleet.attributes[host].get(("gpu", name), nothing)
            make = make_by_attributes.get(id(attributes))  # hosts of one make share them
            if make is None:
                values = tuple(attributes.get(one, "") for one in MAKE_ATTRIBUTES)
                if len(self._make_ids) >= _MAKES_MAX:
                    values = (
                        ("",) * len(MAKE_ATTRIBUTES) if values not in self._make_ids else values
                    )
                make = make_by_attributes[id(attributes)] = self._make_ids.setdefault(
                    values, len(self._make_ids)
                )
            makes[row] = make
        return makes

    def _has_name(self) -> Flags:
        named = np.array([bool(values[0]) for values in self._make_ids], dtype=bool)
        return named[self._makes] if named.size else np.zeros(0, dtype=bool)

    def _build_levels(self, hosts: Codes) -> Iterable[PeerLevel]:
        """Yield the levels; of two that part the GPUs alike the narrower one, with the wider one's right.

        Who shares a power limit with hosts enough is measured under that limit or not at all: a rack that is capped
        on purpose is no slower where most of it is idle.
        """
        found: list[tuple[int, NDArray[np.intp]]] = []
        for width, fields in enumerate(WIDTHS):
            numbers = np.unique(self._keys(fields), return_inverse=True)[1]
            if found and np.array_equal(numbers, found[-1][1]):
                continue
            found.append((width, numbers))
        last, numbers = found[-1]
        settled = np.zeros(hosts.size, dtype=bool)
        if LIMIT not in WIDTHS[last]:
            settled = _may_have_median(found[-2][1], hosts) & (
                _sizes_of_groups(found[-2][1]) < _sizes_of_groups(numbers)
            )
        for width, narrow in found[:-1]:
            yield PeerLevel(width, HOSTS_MIN, _groups(narrow), np.zeros_like(settled))
        yield PeerLevel(last, 1, _groups(numbers), settled)

    def _keys(self, fields: frozenset[str]) -> Keys:
        chosen = [at for at, noun in enumerate(MAKE_ATTRIBUTES.values()) if noun in fields]
        codes: dict[tuple[str, ...], int] = {}
        alike = np.array(
            [
                codes.setdefault(tuple(values[at] for at in chosen), len(codes))
                for values in self._make_ids
            ],
            dtype=np.int64,
        )
        keys = self._setting_keys & ((1 << _LIMIT) - 1)
        for noun, at, bits in ((LIMIT, _LIMIT, 12), (SETTING, _SETTING, 12), (MIG, _MIG, 2)):
            if noun in fields:
                keys = keys | (self._setting_keys & (((1 << bits) - 1) << at))
        return np.asarray(keys | (alike[self._makes] << _MAKE) if alike.size else keys)


def _cells(fleet: PeerSource) -> list[NDArray[Any]]:
    """Return the cells that settings are read from, as they are."""
    tables = fleet.tables
    found: list[NDArray[Any]] = [fleet.simulated]
    for name, column in (
        ("gpu_10s", "sm_clock_max_hertz"),
        ("gpu_10s", "power_limit_watts"),
        ("gpu_60s", "sm_application_clock_hertz"),
    ):
        found += [tables[name].raw(column).view(np.uint64), tables[name].known(column)]
    mode = tables["gpu_10s_changes"]
    return [*found, mode.state("mig_mode_state"), mode.known("mig_mode_state")]


def _settings(fleet: PeerSource, has_name: Flags) -> Keys:
    """Return the part of a key that readings show. Without a model, GPUs with an equal highest SM clock are grouped."""
    ten, minute = fleet.tables["gpu_10s"], fleet.tables["gpu_60s"]
    mode = fleet.tables["gpu_10s_changes"]
    megahertz = _quantized(ten.gauge("sm_clock_max_hertz"), 1e6, _THIRTEEN_BITS)
    keys = np.where(has_name, 0, megahertz) << _CEILING
    keys |= _quantized(ten.gauge("power_limit_watts"), LIMIT_WATTS, _TWELVE_BITS) << _LIMIT
    setting = minute.gauge("sm_application_clock_hertz")
    keys |= _quantized(setting, SETTING_HERTZ, _TWELVE_BITS) << _SETTING
    mig = mode.known("mig_mode_state") * (1 + (mode.state("mig_mode_state") == 1))
    keys |= mig.astype(np.int64) << _MIG
    return np.asarray(keys | fleet.simulated[fleet.devices["gpu"].host])


def _quantized(values: Floats, unit: float, most: int) -> Keys:
    """Return *values* in whole *unit*s; 0 where there is none."""
    return np.clip(np.rint(np.nan_to_num(values / unit, nan=0.0)), 0, most).astype(np.int64)


def _groups(numbers: NDArray[np.intp]) -> list[Indexes]:
    """Return the rows of each group that may have a median, the largest groups only."""
    if not numbers.size:
        return []
    counts = np.bincount(numbers)
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(counts)
    large = np.argsort(-counts, kind="stable")[:GROUPS_MAX].tolist()
    return [order[ends[at] - counts[at] : ends[at]] for at in large if counts[at] >= PEERS_MIN]


def _may_have_median(numbers: NDArray[np.intp], hosts: Codes) -> Flags:
    """Say which GPUs are in a group that has a median when all of it computes."""
    if not numbers.size:
        return np.zeros(0, dtype=bool)
    hosts_max = int(hosts.max()) + 1
    of_hosts = np.bincount(np.unique(numbers * hosts_max + hosts) // hosts_max)
    return np.asarray(
        (of_hosts[numbers] >= HOSTS_MIN) & (_sizes_of_groups(numbers) >= PEERS_MIN), dtype=bool
    )


def _sizes_of_groups(numbers: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return of each GPU how many its group has."""
    return np.bincount(numbers)[numbers]


# ----------------------------------------------------------------------
# How fast GPUs are, by their clocks beside those of the peers that `peers.py` finds.

#: How well a clock tells the pace of work, as a share (assumed: memory-bound work hardly follows it).
CLOCK_ERROR = 0.01

#: A host whose slowest GPU is below this share of its peers has a slow GPU: it is reported as measured.
MEASURED_SHARE_MAX = 0.92
#: By no more than this the slowest GPU of a typical host is below the median of healthy parts (outliers are by 7 %).
SPREAD_MAX = 0.05


class Speeds(NamedTuple):
    """Per GPU row: its clock over the median of its peers (NaN: unknown), and how many they are."""

    relative: Floats
    peers: Codes
    median_hertz: Floats
    error: Floats  # standard error of `relative` as a measure of the GPU's pace
    width: Codes  # which of WIDTHS its peers are alike in; -1: it has none
    basis: Codes  # of those alike: ALL, those AT_LIMIT, or those IN_GANG (`peers.py`)


def relative_speeds(fleet: PeerSource, clock: Floats, limits: PowerLimited) -> Speeds:
    """Compare *clock* (Hz while computing, NaN when it did not) with the median of the narrowest group that has one.

    Of a GPU at a power limit that its peers have too it is that of those who are at it, or of its gang (`peers.py`).
    """
    speeds = _nothing_known(clock.shape)
    computing, hosts = np.isfinite(clock), fleet.devices["gpu"].host
    waiting = computing.copy()
    for level in fleet.peer_groups.levels(fleet):
        for group in level.groups:
            rows = group[computing[group]]
            if rows.size < PEERS_MIN or not waiting[rows].any():
                continue
            is_measurable = waiting[rows] & ~level.settled[rows]
            at_limit = at_shared_limit(limits, rows)
            if (is_measurable & at_limit).any():
                least = PEERS_MIN, level.hosts_min
                found = measure_at_limit(limits, clock, hosts, rows, least)
                measured = is_measurable & at_limit & np.isfinite(found.median_hertz)
                _record_speeds(speeds, clock, rows[measured], found.select(measured), level.width)
                waiting[rows[measured]] = False
            unlimited = rows[is_measurable & ~at_limit]
            if unlimited.size and _span_hosts(hosts[rows], level.hosts_min):
                _record_speeds(speeds, clock, unlimited, _measure_all(clock[rows]), level.width)
                waiting[unlimited] = False
    return speeds


def _nothing_known(shape: tuple[int, ...]) -> Speeds:
    unknown = np.full(shape, np.nan)
    none = np.zeros(shape, dtype=np.int32)
    return Speeds(unknown, none, unknown.copy(), unknown.copy(), none - 1, none.copy())


def _measure_all(clock: Floats) -> PeerMeasure:
    """Return what a group of *clock*s is measured by: all of it."""
    median = float(np.median(clock))
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = float(np.median(np.abs(clock / median - 1.0)))
    size, basis = np.array([clock.size], dtype=np.int32), np.array([ALL], dtype=np.int32)
    return PeerMeasure(np.array([median]), size, np.array([spread]), basis)


def _record_speeds(
    speeds: Speeds, clock: Floats, rows: Indexes, measure: PeerMeasure, width: int
) -> None:
    """Let *rows* be compared with *measure*."""
    median = measure.median_hertz
    speeds.median_hertz[rows], speeds.peers[rows] = median, measure.peers - 1
    speeds.width[rows], speeds.basis[rows] = width, measure.basis
    with np.errstate(invalid="ignore", divide="ignore"):
        speeds.relative[rows] = np.where(median > 0, clock[rows] / median, np.nan)
    speeds.error[rows] = np.where(median > 0, _pace_error(measure), np.nan)


def _span_hosts(hosts: Codes, least: int) -> bool:
    """Return whether *hosts* are *least* different ones or more."""
    for _ in range(least - 1):
        hosts = hosts[hosts != hosts[0]]
        if not hosts.size:
            return False
    return True


def _pace_error(measure: PeerMeasure) -> Floats:
    """Return the standard error of GPUs' paces, by their clocks over the median of them all.

    That median is off by 1.2533 s / sqrt(n) (normal spread s, here from the median of absolute deviations).
    """
    spread = 1.4826 * measure.spread
    return np.asarray(np.hypot(CLOCK_ERROR, 1.2533 * spread / np.sqrt(measure.peers)))


def describe_peers(fleet: PeerSource, speeds: Speeds, row: int) -> str:
    """Return what a GPU's peers are alike in, and what is not compared: not known, or too few are alike in it."""
    known = {*fleet.peer_groups.make(row)}
    ten, minute = fleet.tables["gpu_10s"], fleet.tables["gpu_60s"]
    if np.isfinite(ten.gauge("power_limit_watts")[row]):
        known.add(LIMIT)
    if np.isfinite(minute.gauge("sm_application_clock_hertz")[row]):
        known.add(SETTING)
    if fleet.tables["gpu_10s_changes"].known("mig_mode_state")[row]:
        known.add(MIG)
    basis_text = ("", "at their power limit; ", "in its job; ")[int(speeds.basis[row])]
    fields = WIDTHS[int(speeds.width[row])]
    same = [noun for noun in FIELDS if noun in fields and noun in known]
    others = [noun for noun in FIELDS if noun not in same]
    return f"{basis_text}same {_joined(same) or 'highest clock'}" + (
        f"; {_joined(others)} not compared" if others else ""
    )


def _joined(nouns: Sequence[str]) -> str:
    return ", ".join(nouns)


def speeds_of_hosts(speeds: Speeds, hosts: Codes, count: int) -> Floats:
    """Return the pace of each of *count* hosts: that of its slowest GPU, against the slowest of a typical host of its peers.

    The slowest of eight healthy parts is some 3 % below the median of all parts: that is their spread, and no host's. Of
    hosts that are compared with one median, the spread is the median over them of (1 - slowest) / c, where c is what the
    slowest of n is below the mean in a normal distribution, in standard deviations (Blom 1958; here its median,
    -inverse normal(1 - 2^(-1/n))). A host at 1 - c x spread, or above, is at 1.00. Three times as far below 1, or below
    `MEASURED_SHARE_MAX`, is no spread, and stays as it was measured; what is between is interpolated, so that the order of hosts
    stays. Of fewer than HOSTS_MIN hosts nothing is known of the spread. NaN where no GPU's pace is known.
    """
    least, known = slowest(speeds.relative, hosts, count), np.isfinite(speeds.relative)
    gpus = np.bincount(hosts[known], minlength=count)
    peer_median = np.full(count, np.nan)
    at = known & (speeds.relative == least[hosts])
    peer_median[hosts[at]] = speeds.median_hertz[at]
    several = np.flatnonzero(gpus > 1)
    slowest_deviation = _slowest_deviations(int(gpus.max(initial=1)))[gpus[several]]
    _, group = np.unique(peer_median[several], return_inverse=True)
    sizes = np.bincount(group)
    spread = medians((1.0 - least[several]) / slowest_deviation, group.astype(np.intp), sizes.size)
    below = np.clip(spread[group] * slowest_deviation, 0.0, SPREAD_MAX)
    typical = np.ones(count)
    typical[several] = np.where(sizes[group] >= HOSTS_MIN, 1.0 - below, 1.0)
    begins = np.maximum(1.0 - 3.0 * (1.0 - typical), MEASURED_SHARE_MAX)
    with np.errstate(invalid="ignore", divide="ignore"):
        between = begins + (least - begins) * (1.0 - begins) / (typical - begins)
    return np.where(
        least >= typical, np.maximum(least, 1.0), np.where(least > begins, between, least)
    )


@cache
def _slowest_deviations(gpus_max: int) -> Floats:
    """Return, by the number of GPUs, by how many standard deviations the slowest of them is below the mean in the median."""
    normal = NormalDist()
    return np.array(
        [0.0, 0.0, *(-normal.inv_cdf(1.0 - 2.0 ** (-1.0 / n)) for n in range(2, gpus_max + 1))]
    )


def slowest(relative: Floats, hosts: Codes, count: int) -> Floats:
    """Return the least of *relative* for each of *count* hosts, NaN where none is known."""
    known = np.isfinite(relative)
    least = np.full(count, np.inf)
    np.minimum.at(least, hosts[known], relative[known])
    return np.where(np.isfinite(least), least, np.nan)
