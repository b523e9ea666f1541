"""What each class does to what the host's parts read: a function each, over all rows of it that stand at once.

*strength* is 0 to 1 over the onset, *amount* the incident's own, *seconds* how long it has stood. Levels
for which no public figure is known are assumed, and named here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .machine import GPUS
from .noise import Floats
from .scenario import FaultClass, Pair

# ----------------------------------------------------------------------
# What incidents change of hosts, and the rows that change it: the table between `effects` and
# `physics`.

Flags = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class Struck:
    """The rows of one class that stand at one moment. Arrays of one length."""

    each: FaultClass
    slot: Ints  # of the host, in the arrays of `Channels`
    gpu: Ints  # -1: all of the host's
    strength: Floats
    amount: Floats
    variant: Floats
    seconds: Floats
    is_due: Flags  # the onset is over: what ends jobs has happened
    is_over: Flags  # it has ended since the step before
    is_new: Flags  # that is so for the first time: what is counted once is counted now


class Channels:
    """What incidents change, of *hosts* hosts; arrays are (hosts,) or (hosts, 8). As if all were well."""

    def __init__(self, hosts: int) -> None:
        shape = hosts, GPUS
        self.speed: Floats = np.ones(shape)  # the clock, over the unbraked clock
        self.work: Floats = np.ones(shape)  # work per cycle
        self.port: Floats = np.ones(shape)  # what a port moves, over what it should
        self.stall: Floats = np.zeros(hosts)  # share of a step lost to the host itself
        self.starved: Floats = np.zeros(hosts)  # share of the time without data
        self.hangs: Flags = np.zeros(hosts, bool)  # its gang waits for it, for ever
        self.heat: Floats = np.zeros(shape)  # of the way to the brake's temperature
        self.thermal: Floats = np.zeros(shape)  # share of the time braked by heat
        self.capped: Floats = np.zeros(shape)  # share of the time held by the power limit
        self.limit: Floats = np.ones(shape)  # the power limit, over the usual
        self.braked: Floats = np.zeros(shape)  # share of the time held by the power brake
        self.lanes: Floats = np.full(shape, 16.0)
        self.replays: Floats = np.zeros(shape)  # a second, as all rates here
        self.corrected: Floats = np.zeros(shape)
        self.uncorrected: Floats = np.zeros(shape)  # a count, once
        self.remap_pending: Floats = np.zeros(shape)
        self.remap_failed: Floats = np.zeros(shape)
        self.asks: Floats = np.zeros(shape)  # the recovery action
        self.lost: Flags = np.zeros(shape, bool)
        self.unread: Flags = np.zeros(shape, bool)  # a call into its driver does not return
        self.call_seconds: Floats = np.zeros(hosts)
        self.crc: Floats = np.zeros(shape)
        self.nvlink: Floats = np.ones(shape)  # what a GPU moves over NVLink, over what it should
        self.link_down: Flags = np.zeros(shape, bool)
        self.retransmits: Floats = np.zeros(shape)
        self.symbols: Floats = np.zeros(shape)
        self.marked: Floats = np.zeros(shape)  # ticks that a port waits for credits
        self.downed: Floats = np.zeros(shape)  # a count, once
        self.port_down: Flags = np.zeros(shape, bool)
        self.overruns: Floats = np.zeros(shape)  # what the four-bit counter stands at
        self.pressure: Floats = np.zeros(hosts)
        self.steal: Floats = np.zeros(hosts)
        self.iowait: Floats = np.zeros(hosts)
        self.silent: Flags = np.zeros(hosts, bool)
        self.offset_seconds: Floats = np.zeros(hosts)
        self.imbalance: Floats = np.zeros(
            hosts
        )  # the slowest rank of a step, over the others; less 1
        self.stage: Floats = np.zeros(hosts)  # the last stage's work, over the others'; less 1


#: Assumed: a host that is fought over has this much of its time in pressure, and of its cores stolen.
CONTENDED_PRESSURE, CONTENDED_STEAL = 0.75, 0.15
#: Temperature leads the clock by this share of the onset.
HEAT_LEADS = 0.5
HALF_LANES, QUARTER_LANES = 8, 4
#: Assumed: a GPU one of whose links repeats and is trained anew moves this share of what it should, at worst.
REPEATING_SHARE = 0.5
#: Assumed: a host whose turn it is to stall has it for so long.
TURN_SECONDS = 10.0
RETRANSMISSIONS_PER_SECOND = 900.0
SYMBOL_ERRORS_PER_SECOND = 6.0
#: Corrected errors come in bursts: this share of the ten-second spans has them.
BURST_SHARE = 0.3
#: The recovery action of NVML that the driver asks for.
ASKS_RESET = 1


def _put(array: npt.NDArray[np.generic], struck: Struck, values: object, how: np.ufunc) -> None:
    """Combine *values* into the cells that are struck: of one GPU, or of all of the host."""
    new = np.broadcast_to(np.asarray(values), struck.slot.shape)
    one = struck.gpu >= 0
    if array.ndim == 1:
        how.at(array, struck.slot, new)
        return
    how.at(array, (struck.slot[one], struck.gpu[one]), new[one])
    slots, whole = np.repeat(struck.slot[~one], GPUS), np.repeat(new[~one], GPUS)
    how.at(array, (slots, np.tile(np.arange(GPUS), int((~one).sum()))), whole)


def thermal(channels: Channels, struck: Struck) -> None:
    """Heat first, then the clock."""
    warm = np.minimum(struck.strength / HEAT_LEADS, 1.0)
    cut = np.clip((struck.strength - HEAT_LEADS) / (1 - HEAT_LEADS), 0.0, 1.0)
    _put(channels.heat, struck, warm, np.maximum)
    _put(channels.thermal, struck, np.where(cut > 0, 0.9, 0.0), np.maximum)
    _put(channels.speed, struck, 1 - struck.amount * cut, np.minimum)


def power_cap(channels: Channels, struck: Struck) -> None:
    """Somebody, or the firmware, has lowered the limit: power stands at it, the die is cool."""
    _put(channels.capped, struck, 0.95 * struck.strength, np.maximum)
    _put(channels.speed, struck, 1 - struck.amount * struck.strength, np.minimum)
    _put(channels.limit, struck, (1 - struck.amount * struck.strength) ** 2.2, np.minimum)


def power_brake(channels: Channels, struck: Struck) -> None:
    """The rack's power supply asks all its GPUs to slow down at once."""
    _put(channels.braked, struck, 0.98 * struck.strength, np.maximum)
    _put(channels.speed, struck, 1 - struck.amount * struck.strength, np.minimum)


def cpu_contention(channels: Channels, struck: Struck) -> None:
    """Gaps between kernels, and pressure on the cores; the clocks stay."""
    _put(channels.stall, struck, struck.amount * struck.strength, np.maximum)
    pressure = CONTENDED_PRESSURE * struck.amount / 0.22 * struck.strength
    _put(channels.pressure, struck, pressure, np.maximum)
    steal = CONTENDED_STEAL * (struck.variant < 0.5) * struck.strength
    _put(channels.steal, struck, steal, np.maximum)


def storage_stall(channels: Channels, struck: Struck) -> None:
    """Utilisation and power drop while one host waits for its data."""
    _put(channels.starved, struck, struck.amount * struck.strength, np.maximum)
    _put(channels.iowait, struck, 0.3 * struck.strength, np.maximum)


def slow_host(channels: Channels, struck: Struck) -> None:
    """Less work per cycle, and nothing that the driver names."""
    _put(channels.work, struck, 1 - struck.amount, np.minimum)


def pcie_width(channels: Channels, struck: Struck) -> None:
    """Half the lanes, or a quarter; replays; the port beside it is fed more slowly."""
    half = struck.variant < 0.5
    _put(
        channels.lanes,
        struck,
        np.where(half, HALF_LANES, QUARTER_LANES),
        np.minimum,
    )
    _put(channels.replays, struck, np.where(half, 0.2, 3.0), np.add)
    _put(channels.port, struck, np.where(half, 0.95, 0.55), np.minimum)


def nvlink(channels: Channels, struck: Struck) -> None:
    """One link repeats more and more, and its tensor group waits for it; then it is gone with XID 74."""
    _put(channels.nvlink, struck, 1 - (1 - REPEATING_SHARE) * struck.strength, np.minimum)
    _put(channels.crc, struck, struck.amount * np.minimum(struck.strength + 0.02, 1.0), np.add)
    _put(channels.link_down, struck, struck.is_due, np.logical_or)
    _put(channels.hangs, struck, struck.is_due, np.logical_or)


def rdma_link(channels: Channels, struck: Struck) -> None:
    """A bad cable: symbol errors, retransmissions, and the whole gang sends at this port's pace."""
    _put(channels.port, struck, 1 - struck.amount * struck.strength, np.minimum)
    _put(
        channels.retransmits,
        struck,
        RETRANSMISSIONS_PER_SECOND * struck.amount * struck.strength,
        np.add,
    )
    _put(channels.symbols, struck, SYMBOL_ERRORS_PER_SECOND * struck.strength, np.add)


def congestion(channels: Channels, struck: Struck) -> None:
    """All ports of the gang alike: they wait for credits, and bytes are on a plateau."""
    _put(channels.port, struck, 1 - struck.amount * struck.strength, np.minimum)
    _put(channels.marked, struck, 4000.0 * struck.strength, np.add)


def flap(channels: Channels, struck: Struck) -> None:
    """The link goes and comes: the gang hangs for seconds, and there is a burst of retransmissions."""
    _put(channels.port_down, struck, struck.seconds < 2.0, np.logical_or)
    _put(channels.downed, struck, np.ceil(struck.amount) * struck.is_new, np.add)
    _put(channels.hangs, struck, True, np.logical_or)
    _put(channels.retransmits, struck, 2000.0, np.add)


def port_gone(channels: Channels, struck: Struck) -> None:
    """The port is down and stays so; its gang waits until its time-out."""
    _put(channels.port_down, struck, struck.is_due, np.logical_or)
    _put(channels.downed, struck, struck.is_new, np.add)
    _put(channels.hangs, struck, struck.is_due, np.logical_or)


def hbm(channels: Channels, struck: Struck) -> None:
    """Corrected errors in bursts, where there is any warning; then data is lost."""
    span = np.floor(struck.seconds / 10.0)
    bursts = (span * 0.618034 + struck.variant * 7.0) % 1.0 < BURST_SHARE
    warned = ~struck.is_due & bursts
    _put(channels.corrected, struck, struck.amount * warned, np.add)
    _put(channels.uncorrected, struck, struck.is_new, np.add)
    failed = struck.is_due & (struck.variant < struck.each.remap_failed_ratio)
    _put(channels.remap_pending, struck, struck.is_due & ~failed, np.maximum)
    _put(channels.remap_failed, struck, failed, np.maximum)
    _put(channels.asks, struck, np.where(struck.is_due, ASKS_RESET, 0), np.maximum)
    _put(channels.hangs, struck, struck.is_due, np.logical_or)


def gsp_hang(channels: Channels, struck: Struck) -> None:
    """Calls take longer, then none returns: fields vanish, the gang waits, XID 119 comes late."""
    _put(channels.call_seconds, struck, struck.amount * struck.strength, np.maximum)
    _put(channels.unread, struck, struck.is_due, np.logical_or)
    _put(channels.hangs, struck, struck.is_due, np.logical_or)


def gpu_lost(channels: Channels, struck: Struck) -> None:
    """Off the bus, without a word before."""
    _put(channels.lost, struck, struck.is_due, np.logical_or)
    _put(channels.hangs, struck, struck.is_due, np.logical_or)


def gpu_fault(channels: Channels, struck: Struck) -> None:
    """The driver asks for a reset."""
    _put(channels.asks, struck, np.where(struck.is_due, ASKS_RESET, 0), np.maximum)
    _put(channels.hangs, struck, struck.is_due, np.logical_or)


def rack_dark(channels: Channels, struck: Struck) -> None:
    """No power: the host says nothing more."""
    _put(channels.silent, struck, True, np.logical_or)
    _put(channels.hangs, struck, True, np.logical_or)


def gap(channels: Channels, struck: Struck) -> None:
    """Nothing is heard; nothing is wrong. One between two steps is not noticed."""
    _put(channels.silent, struck, ~struck.is_over, np.logical_or)


def hung_collector(channels: Channels, struck: Struck) -> None:
    """One GPU's readings do not return; its job goes on."""
    _put(channels.unread, struck, struck.is_due, np.logical_or)
    _put(channels.call_seconds, struck, 1.0, np.maximum)


def skewed_clock(channels: Channels, struck: Struck) -> None:
    """The wall clock is off."""
    _put(channels.offset_seconds, struck, struck.amount, np.add)


def saturated_counter(channels: Channels, struck: Struck) -> None:
    """A counter that counts no more."""
    _put(channels.overruns, struck, struck.amount, np.maximum)


def data_stall(channels: Channels, struck: Struck) -> None:
    """All hosts of the job wait for data, as the file system is slow for all."""
    _put(channels.starved, struck, struck.amount * struck.strength, np.maximum)
    _put(channels.iowait, struck, 0.3 * struck.strength, np.maximum)


def sequence_imbalance(channels: Channels, struck: Struck) -> None:
    """Another rank is the slowest in every step."""
    _put(channels.imbalance, struck, struck.amount, np.maximum)


def stage_imbalance(channels: Channels, struck: Struck) -> None:
    """The same stage is the longest in every replica."""
    _put(channels.stage, struck, struck.amount, np.maximum)


def rotating_stall(channels: Channels, struck: Struck) -> None:
    """One host of the job waits for its data while the others wait for it: another one at every turn."""
    for job in np.unique(struck.variant):  # the hosts of one job share its draws
        mine = np.flatnonzero(struck.variant == job)
        turn = int(struck.seconds[mine].max() // TURN_SECONDS)
        place = int(turn * 0.618034 * mine.size) % mine.size
        at = mine[np.argsort(struck.slot[mine])[place]]
        slot = struck.slot[at]
        channels.starved[slot] = max(channels.starved[slot], struck.amount[at])
        channels.iowait[slot] = max(channels.iowait[slot], 0.3)


def full_load_cap(channels: Channels, struck: Struck) -> None:
    """The driver names the power cap at full load, and no clock is lost."""
    _put(channels.capped, struck, struck.amount, np.maximum)


def nothing(channels: Channels, struck: Struck) -> None:
    """Nothing that a counter shows (silent corruption), or nothing of this moment (a restart)."""


#: Class -> what it does. A class of `world.toml` without one is refused (`loading`).
EFFECTS: dict[str, Callable[[Channels, Struck], None]] = {
    "thermal": thermal,
    "power_cap": power_cap,
    "power_brake": power_brake,
    "cooling_loop": thermal,
    "cpu_contention": cpu_contention,
    "storage_stall": storage_stall,
    "slow_host": slow_host,
    "pcie_width": pcie_width,
    "nvlink": nvlink,
    "rdma_link": rdma_link,
    "congestion": congestion,
    "flap": flap,
    "nic": port_gone,
    "leaf_down": port_gone,
    "rack_dark": rack_dark,
    "hbm": hbm,
    "gsp_hang": gsp_hang,
    "gpu_lost": gpu_lost,
    "gpu_fault": gpu_fault,
    "silent_corruption": nothing,
    "gap": gap,
    "hung_collector": hung_collector,
    "skewed_clock": skewed_clock,
    "agent_restart": gap,
    "saturated_counter": saturated_counter,
    "planned_reboot": nothing,
    "data_stall": data_stall,
    "sequence_imbalance": sequence_imbalance,
    "stage_imbalance": stage_imbalance,
    "full_load_cap": full_load_cap,
    "nvlink_switch": nvlink,
    "rotating_stall": rotating_stall,
}

#: What an amount may be where it is a part of something: some is left, else a gang would wait for ever.
PART = 0.0, 0.95
#: Where it is something else, or everything.
AMOUNTS: dict[str, Pair] = {
    "nvlink": (0.0, 1e6),
    "nvlink_switch": (0.0, 1e6),
    "hbm": (0.0, 1e6),
    "flap": (0.0, 255.0),
    "gsp_hang": (0.0, 3600.0),
    "skewed_clock": (-1e7, 1e7),
    "saturated_counter": (0.0, 15.0),
    "sequence_imbalance": (0.0, 10.0),
    "stage_imbalance": (0.0, 10.0),
    **dict.fromkeys(
        ("pcie_width", "nic", "leaf_down", "rack_dark", "gpu_lost", "gpu_fault", "silent_corruption",
         "gap", "hung_collector", "agent_restart", "planned_reboot"),
        (0.0, 1.0),
    ),
}  # fmt: skip
