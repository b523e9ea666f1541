"""Peer groups of GPUs that match in everything that affects the clock, and their relative speeds.

If too few GPUs match in everything, groups are wider.

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
from .gang_comparison import GangComparison
from .tables import DeviceTable

# GPUs at their power limit: their clock depends on the density of their work, so they are compared
# only with others at the same limit. The driver's cap flag is normal at full load. A GPU at its
# limit has a lower clock than GPUs with light work, or than another job with less work per watt,
# without being faulty.

#: Limits that differ by less count as equal.
LIMIT_WATTS = 5.0
#: From this many hosts of a gang at their limit they are a stage of its work, and not faulty.
STAGE_HOSTS_MIN = 3
#: This many GPUs of a host below their limit show the power of its work; up to this ratio it is the
#: same work.
FREE_MIN, SAME_WORK_RATIO_MAX = 3, 1.02
#: Peers of a GPU: all alike, all at a shared limit, or its gang.
ALL, AT_LIMIT, IN_GANG = 0, 1, 2


class PowerLimited(NamedTuple):
    """Per GPU row: whether it computes at its power limit, the limit, and its gang (-1: none).

    `divided`: other GPUs of its host compute for other jobs.
    """

    rows: Flags
    watts: Floats
    gang: Indexes
    divided: Flags


class PeerMeasure(NamedTuple):
    """Per GPU: median clock of its peers (NaN: too few), their number, and their spread.

    `basis`: ALL, AT_LIMIT or IN_GANG.
    """

    median_hertz: Floats
    peers: Codes
    spread: Floats
    basis: Codes

    def select(self, some: Flags) -> PeerMeasure:
        return PeerMeasure(
            self.median_hertz[some], self.peers[some], self.spread[some], self.basis[some]
        )


def power_limited(
    rows: Flags, watts: Floats, hosts: Codes, comparison: GangComparison | None
) -> PowerLimited:
    """Return the limits of GPUs. *rows*: whether each is at its limit; *hosts*: of each GPU."""
    divided = np.zeros(rows.shape, dtype=bool)
    if comparison is None:
        return PowerLimited(rows, watts, np.full(rows.shape, -1, dtype=np.intp), divided)
    known = hosts < comparison.divided.size
    divided[known] = comparison.divided[hosts[known]]
    return PowerLimited(rows, watts, comparison.of_gpus(hosts), divided)


def at_shared_limit(limits: PowerLimited, rows: Indexes) -> Flags:
    """Return which *rows* are at a limit that is not lower than usual: a lower one must be
    reported.
    """
    is_at_limit = limits.rows[rows]
    if not is_at_limit.any():
        return is_at_limit
    return np.asarray(
        is_at_limit & (limits.watts[rows] >= np.nanmedian(limits.watts[rows]) - LIMIT_WATTS)
    )


def capped_below_limit(limits: PowerLimited, power: Floats, clock: Floats, hosts: Codes) -> Flags:
    """Return which GPUs in *limits* are held by another cap than their own limit.

    *power*: current watts. They draw less than their limit and no more than GPUs of their host
    below the limit, but have a lower clock; denser work would draw more. A GPU with a known gang is
    excluded: its gang does the same work and is the better comparison.
    """
    with np.errstate(invalid="ignore"):
        result = limits.rows & (limits.gang < 0) & (power < AT_LIMIT_SHARE * limits.watts)
    if not result.any():
        return result
    group = np.where(np.isfinite(clock) & ~limits.rows, hosts, -1).astype(np.intp)
    count = int(hosts.max(initial=0)) + 1
    watts, hertz = (medians(values, group, count)[hosts] for values in (power, clock))
    result &= _group_sizes(group, count)[hosts] >= FREE_MIN
    with np.errstate(invalid="ignore"):
        return np.asarray(
            result & (power <= SAME_WORK_RATIO_MAX * watts) & (clock < hertz), dtype=bool
        )


def measure_at_limit(
    limits: PowerLimited, clock: Floats, hosts: Codes, rows: Indexes, least: tuple[int, int]
) -> PeerMeasure:
    """Measure *rows* (GPUs alike), each by its gang, or else by those at a shared limit.

    If enough of a gang are at their limit (such as a pipeline stage) they are the peers, else the
    whole gang. With too few of a gang on a shared host the result is NaN, because others at a limit
    belong to another job. *least*: minimum GPUs and hosts of a median.
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
    # Without enough members of the gang: all at a shared limit.
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
    """Return per GPU the measure of the group *of* it, computed from the members in *measure*."""
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
    """Return the number of hosts of each group."""
    is_member = group >= 0
    hosts_max = int(hosts.max(initial=0)) + 1
    pairs = np.unique(group[is_member].astype(np.int64) * hosts_max + hosts[is_member])
    return np.bincount(pairs // hosts_max, minlength=count)


#: Minimum number of computing GPUs for a median.
PEERS_MIN = 4
#: Minimum number of hosts in a narrow group; otherwise a misconfigured host would be its own
#: measure.
HOSTS_MIN = 3
#: Limit of the groups per width, largest first, against hosts that invent values.
GROUPS_MAX = 256

#: Attribute of an inventory -> text.
MAKE_ATTRIBUTES = {
    "name": "model", "board_part_number": "part", "vbios": "VBIOS", "driver": "driver", "ecc_mode": "ECC mode",
}  # fmt: skip
LIMIT, SETTING, MIG = "power limit", "clock setting", "MIG mode"
FIELDS = (*MAKE_ATTRIBUTES.values(), LIMIT, SETTING, MIG)
#: From all fields to the model alone. A driver or a VBIOS affects clocks less than a limit does.
WIDTHS: tuple[frozenset[str], ...] = tuple(
    frozenset(FIELDS) - set(left_out)
    for left_out in (
        (), ("part", "VBIOS"), ("part", "VBIOS", "driver"), tuple(f for f in FIELDS if f != "model"),
    )
)  # fmt: skip
#: Limits and clock settings within a bucket count as equal; in hertz (NVIDIA's step is 15 MHz).
SETTING_HERTZ = 15e6
#: Offsets of a key's bits: highest clock if there is no name, limit, setting, MIG, make. Bit 0:
#: simulated.
_CEILING, _LIMIT, _SETTING, _MIG, _MAKE = 1, 14, 26, 38, 40
_TWELVE_BITS, _THIRTEEN_BITS, _MAKES_MAX = 0xFFF, 0x1FFF, 1 << 20
Keys = NDArray[np.int64]


class PeerLevel(NamedTuple):
    """Groups of GPUs that are alike in WIDTHS[`width`]."""

    width: int
    hosts_min: int
    groups: list[Indexes]
    settled: Flags  # GPUs that a narrower group measures, even if too few of it compute


class PeerSource(TopologySource, Protocol):
    """The attributes of a fleet that peer groups depend on."""

    tables: dict[str, DeviceTable]
    peer_groups: PeerGroups

    @property
    def simulated(self) -> Flags: ...


class PeerGroups:
    """The peer groups of a fleet. Cached until a host, a limit or a setting changes."""

    def __init__(self) -> None:
        self._version = -1
        #: Number of each make by the values of MAKE_ATTRIBUTES, and the make of every GPU row.
        self._make_ids: dict[tuple[str, ...], int] = {}
        self._makes: Keys = np.zeros(0, dtype=np.int64)
        self._setting_keys: Keys = np.zeros(0, dtype=np.int64)
        self._levels: list[PeerLevel] = []
        self._cells: list[NDArray[Any]] = []  # inputs of `_setting_keys`

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
        self._cells = [cell_array.copy() for cell_array in cells]
        settings = _settings(fleet, self._has_name())
        if is_new or not np.array_equal(settings, self._setting_keys):
            self._setting_keys = settings
            self._levels = list(self._build_levels(fleet.devices["gpu"].host))
        return self._levels

    def make(self, row: int) -> dict[str, str]:
        """Return the known fields of a GPU's make."""
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
            make = make_by_attributes.get(id(attributes))  # similar hosts share them
            if make is None:
                values = tuple(attributes.get(attribute, "") for attribute in MAKE_ATTRIBUTES)
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
        """Yield the levels; of two that split the GPUs equally, only the narrower one.

        A GPU whose power limit is shared by enough hosts is measured under that limit or not at
        all: a rack capped on purpose must not look slow while most of it is idle.
        """
        levels: list[tuple[int, NDArray[np.intp]]] = []
        for width, fields in enumerate(WIDTHS):
            numbers = np.unique(self._keys(fields), return_inverse=True)[1]
            if levels and np.array_equal(numbers, levels[-1][1]):
                continue
            levels.append((width, numbers))
        last, numbers = levels[-1]
        settled = np.zeros(hosts.size, dtype=bool)
        if LIMIT not in WIDTHS[last]:
            settled = _may_have_median(levels[-2][1], hosts) & (
                _sizes_of_groups(levels[-2][1]) < _sizes_of_groups(numbers)
            )
        for width, narrow in levels[:-1]:
            yield PeerLevel(width, HOSTS_MIN, _groups(narrow), np.zeros_like(settled))
        yield PeerLevel(last, 1, _groups(numbers), settled)

    def _keys(self, fields: frozenset[str]) -> Keys:
        chosen = [index for index, noun in enumerate(MAKE_ATTRIBUTES.values()) if noun in fields]
        codes: dict[tuple[str, ...], int] = {}
        make_codes = np.array(
            [
                codes.setdefault(tuple(values[index] for index in chosen), len(codes))
                for values in self._make_ids
            ],
            dtype=np.int64,
        )
        keys = self._setting_keys & ((1 << _LIMIT) - 1)
        for noun, index, bits in ((LIMIT, _LIMIT, 12), (SETTING, _SETTING, 12), (MIG, _MIG, 2)):
            if noun in fields:
                keys = keys | (self._setting_keys & (((1 << bits) - 1) << index))
        return np.asarray(keys | (make_codes[self._makes] << _MAKE) if make_codes.size else keys)


def _cells(fleet: PeerSource) -> list[NDArray[Any]]:
    """Return the cells that settings are derived from."""
    tables = fleet.tables
    cells: list[NDArray[Any]] = [fleet.simulated]
    for name, column in (
        ("gpu_10s", "sm_clock_max_hertz"),
        ("gpu_10s", "power_limit_watts"),
        ("gpu_60s", "sm_application_clock_hertz"),
    ):
        cells += [tables[name].raw(column).view(np.uint64), tables[name].known(column)]
    mode = tables["gpu_10s_changes"]
    return [*cells, mode.state("mig_mode_state"), mode.known("mig_mode_state")]


def _settings(fleet: PeerSource, has_name: Flags) -> Keys:
    """Return the part of each key from readings. Without a model, GPUs with an equal highest SM
    clock are grouped.
    """
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
    """Return *values* in whole *unit*s; 0 if missing."""
    return np.clip(np.rint(np.nan_to_num(values / unit, nan=0.0)), 0, most).astype(np.int64)


def _groups(numbers: NDArray[np.intp]) -> list[Indexes]:
    """Return the rows of the largest groups with at least PEERS_MIN rows."""
    if not numbers.size:
        return []
    counts = np.bincount(numbers)
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(counts)
    large = np.argsort(-counts, kind="stable")[:GROUPS_MAX].tolist()
    return [
        order[ends[group] - counts[group] : ends[group]]
        for group in large
        if counts[group] >= PEERS_MIN
    ]


def _may_have_median(numbers: NDArray[np.intp], hosts: Codes) -> Flags:
    """Return which GPUs are in a group that has a median if all of it computes."""
    if not numbers.size:
        return np.zeros(0, dtype=bool)
    hosts_max = int(hosts.max()) + 1
    host_counts = np.bincount(np.unique(numbers * hosts_max + hosts) // hosts_max)
    return np.asarray(
        (host_counts[numbers] >= HOSTS_MIN) & (_sizes_of_groups(numbers) >= PEERS_MIN), dtype=bool
    )


def _sizes_of_groups(numbers: NDArray[np.intp]) -> NDArray[np.intp]:
    return np.bincount(numbers)[numbers]


#: Error of a clock as a measure of pace, as a share (assumed: memory-bound work hardly depends on
#: it).
CLOCK_ERROR = 0.01

#: A host whose slowest GPU is below this share of its peers has a slow GPU; its value is reported
#: as measured.
MEASURED_SHARE_MAX = 0.92
#: Limit of the normal spread of a host's slowest GPU below the median of healthy parts (outliers: 7
#: %).
SPREAD_MAX = 0.05


class Speeds(NamedTuple):
    """Per GPU row: its clock relative to its peers' median (NaN: unknown), and their number."""

    relative: Floats
    peers: Codes
    median_hertz: Floats
    error: Floats  # standard error of `relative` as a measure of the GPU's pace
    width: Codes  # index in WIDTHS of its peers; -1: none
    basis: Codes  # ALL, AT_LIMIT or IN_GANG


def relative_speeds(fleet: PeerSource, clock: Floats, limits: PowerLimited) -> Speeds:
    """Compare *clock* (Hz while computing, else NaN) with the median of the narrowest group that
    has one.

    For a GPU at a power limit shared with its peers, use those at the limit, or its gang.
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
                minimums = PEERS_MIN, level.hosts_min
                measure = measure_at_limit(limits, clock, hosts, rows, minimums)
                measured = is_measurable & at_limit & np.isfinite(measure.median_hertz)
                _record_speeds(speeds, clock, rows[measured], measure.select(measured), level.width)
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
    median = float(np.median(clock))
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = float(np.median(np.abs(clock / median - 1.0)))
    size, basis = np.array([clock.size], dtype=np.int32), np.array([ALL], dtype=np.int32)
    return PeerMeasure(np.array([median]), size, np.array([spread]), basis)


def _record_speeds(
    speeds: Speeds, clock: Floats, rows: Indexes, measure: PeerMeasure, width: int
) -> None:
    median = measure.median_hertz
    speeds.median_hertz[rows], speeds.peers[rows] = median, measure.peers - 1
    speeds.width[rows], speeds.basis[rows] = width, measure.basis
    with np.errstate(invalid="ignore", divide="ignore"):
        speeds.relative[rows] = np.where(median > 0, clock[rows] / median, np.nan)
    speeds.error[rows] = np.where(median > 0, _pace_error(measure), np.nan)


def _span_hosts(hosts: Codes, least: int) -> bool:
    """Return whether *hosts* has at least *least* different ones."""
    for _ in range(least - 1):
        hosts = hosts[hosts != hosts[0]]
        if not hosts.size:
            return False
    return True


def _pace_error(measure: PeerMeasure) -> Floats:
    """Return the standard error of pace measured by clock over the median.

    The median's error is 1.2533 s / sqrt(n) (normal spread s, here from the median absolute
    deviation).
    """
    spread = 1.4826 * measure.spread
    return np.asarray(np.hypot(CLOCK_ERROR, 1.2533 * spread / np.sqrt(measure.peers)))


def describe_peers(fleet: PeerSource, speeds: Speeds, row: int) -> str:
    """Return the fields that a GPU shares with its peers, and those not compared."""
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
    """Return the pace of each of *count* hosts: its slowest GPU relative to a typical host of its
    peers.

    NaN if no GPU's pace is known. The slowest of eight healthy parts is about 3 % below the median
    of all parts; this normal spread must not count against a host. For hosts with the same peer
    median the spread is the median of (1 - slowest) / c, where c is the median number of standard
    deviations by which the slowest of n is below the mean of a normal distribution (after Blom
    1958: -inverse normal(1 - 2^(-1/n))). A host at or above 1 - c x spread has pace 1.00. A host
    three times as far below 1, or below `MEASURED_SHARE_MAX`, keeps its measured value; between
    these, the value is interpolated so that the order of hosts does not change. With fewer than
    HOSTS_MIN hosts the spread is unknown.
    """
    slowest_relative, known = slowest(speeds.relative, hosts, count), np.isfinite(speeds.relative)
    gpus = np.bincount(hosts[known], minlength=count)
    peer_median = np.full(count, np.nan)
    is_slowest = known & (speeds.relative == slowest_relative[hosts])
    peer_median[hosts[is_slowest]] = speeds.median_hertz[is_slowest]
    several_gpus = np.flatnonzero(gpus > 1)
    slowest_deviation = _slowest_deviations(int(gpus.max(initial=1)))[gpus[several_gpus]]
    _, group = np.unique(peer_median[several_gpus], return_inverse=True)
    sizes = np.bincount(group)
    spread = medians(
        (1.0 - slowest_relative[several_gpus]) / slowest_deviation,
        group.astype(np.intp),
        sizes.size,
    )
    below = np.clip(spread[group] * slowest_deviation, 0.0, SPREAD_MAX)
    typical = np.ones(count)
    typical[several_gpus] = np.where(sizes[group] >= HOSTS_MIN, 1.0 - below, 1.0)
    begins = np.maximum(1.0 - 3.0 * (1.0 - typical), MEASURED_SHARE_MAX)
    with np.errstate(invalid="ignore", divide="ignore"):
        between = begins + (slowest_relative - begins) * (1.0 - begins) / (typical - begins)
    return np.where(
        slowest_relative >= typical,
        np.maximum(slowest_relative, 1.0),
        np.where(slowest_relative > begins, between, slowest_relative),
    )


@cache
def _slowest_deviations(gpus_max: int) -> Floats:
    normal = NormalDist()
    return np.array(
        [0.0, 0.0, *(-normal.inv_cdf(1.0 - 2.0 ** (-1.0 / n)) for n in range(2, gpus_max + 1))]
    )


def slowest(relative: Floats, hosts: Codes, count: int) -> Floats:
    """Return the minimum of *relative* for each of *count* hosts; NaN if unknown."""
    known = np.isfinite(relative)
    minimum = np.full(count, np.inf)
    np.minimum.at(minimum, hosts[known], relative[known])
    return np.where(np.isfinite(minimum), minimum, np.nan)
