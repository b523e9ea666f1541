"""Effect of each fault class on a host's readings: one function per class, over all its active rows.

*strength* is 0 to 1 over the onset, *amount* the incident's magnitude, *seconds* its age. Levels without a public
figure are assumed, and listed here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .machine import GPUS
from .noise import Floats
from .scenario import FaultClass, Pair

Flags = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

#: Assumed: a host with contention has this share of its time in pressure, and of its cores stolen.
CONTENDED_PRESSURE, CONTENDED_STEAL = 0.75, 0.15
#: Temperature leads the clock by this share of the onset.
HEAT_LEAD_SHARE = 0.5
HALF_LANES, QUARTER_LANES = 8, 4
#: Assumed: a GPU with a link that repeats and retrains moves this share of its normal traffic, at worst.
REPEATING_SHARE = 0.5
#: Assumed: duration of the stall of one host before the next host stalls.
STALL_TURN_SECONDS = 10.0
RETRANSMISSIONS_PER_SECOND = 900.0
SYMBOL_ERRORS_PER_SECOND = 6.0
#: Corrected errors come in bursts: this share of the ten-second spans has them.
BURST_SHARE = 0.3
#: The recovery action of NVML that the driver asks for: a reset of the GPU.
RECOVERY_RESET = 1
#: Range of an amount that is a share; some must be left, else a gang would wait forever.
DEFAULT_AMOUNT_RANGE = 0.0, 0.95
#: Ranges of amounts that are not a share, or may be the whole.
AMOUNT_RANGES: dict[str, Pair] = {
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
         "gap", "hung_collector", "agent_restart", "planned_reboot", "stopped_rank"),
        (0.0, 1.0),
    ),
}  # fmt: skip


@dataclass(slots=True)
class ActiveFaults:
    """The rows of one class that are active at one moment. Arrays of one length."""

    fault_class: FaultClass
    slot: Ints  # index of the host in the arrays of `HostEffects`
    gpu: Ints  # -1: all GPUs of the host
    strength: Floats
    amount: Floats
    variant: Floats
    seconds: Floats
    is_due: Flags  # the onset is over: a failure that ends jobs has occurred
    is_over: Flags  # ended since the previous step
    is_new: Flags  # due for the first time: one-time counts are added in this step


class HostEffects:
    """Effects of incidents on *hosts* hosts; arrays are (hosts,) or (hosts, 8). The initial values are healthy."""

    def __init__(self, hosts: int) -> None:
        shape = hosts, GPUS
        self.speed: Floats = np.ones(shape)  # the clock, over the unbraked clock
        self.work: Floats = np.ones(shape)  # work per cycle
        self.port: Floats = np.ones(shape)  # a port's traffic, over its normal traffic
        self.stall: Floats = np.zeros(hosts)  # share of a step lost to the host itself
        self.starved: Floats = np.zeros(hosts)  # share of the time without data
        self.hangs: Flags = np.zeros(hosts, bool)  # its gang waits for this host forever
        self.heat: Floats = np.zeros(shape)  # share of the way to the brake's temperature
        self.thermal: Floats = np.zeros(shape)  # share of the time braked by heat
        self.capped: Floats = np.zeros(shape)  # share of the time held by the power limit
        self.limit: Floats = np.ones(shape)  # the power limit, over the usual limit
        self.braked: Floats = np.zeros(shape)  # share of the time held by the power brake
        self.lanes: Floats = np.full(shape, 16.0)
        self.replays: Floats = np.zeros(shape)  # per second, as all rates here
        self.corrected: Floats = np.zeros(shape)
        self.uncorrected: Floats = np.zeros(shape)  # a one-time count
        self.remap_pending: Floats = np.zeros(shape)
        self.remap_failed: Floats = np.zeros(shape)
        self.recovery_action: Floats = np.zeros(shape)
        self.lost: Flags = np.zeros(shape, bool)
        self.unread: Flags = np.zeros(shape, bool)  # a call into its driver does not return
        self.call_seconds: Floats = np.zeros(hosts)
        self.crc: Floats = np.zeros(shape)
        self.nvlink: Floats = np.ones(shape)  # a GPU's NVLink traffic, over its normal traffic
        self.link_down: Flags = np.zeros(shape, bool)
        self.retransmits: Floats = np.zeros(shape)
        self.symbols: Floats = np.zeros(shape)
        self.wait_ticks: Floats = np.zeros(shape)  # ticks that a port waits for credits
        self.downed: Floats = np.zeros(shape)  # a one-time count
        self.port_down: Flags = np.zeros(shape, bool)
        self.overruns: Floats = np.zeros(shape)  # the four-bit counter's value
        self.pressure: Floats = np.zeros(hosts)
        self.steal: Floats = np.zeros(hosts)
        self.iowait: Floats = np.zeros(hosts)
        self.silent: Flags = np.zeros(hosts, bool)
        self.offset_seconds: Floats = np.zeros(hosts)
        # Ratio of extra work: in a step's slowest rank, and in the last stage.
        self.imbalance: Floats = np.zeros(hosts)
        self.stage_imbalance: Floats = np.zeros(hosts)
        self.stopped: Flags = np.zeros(shape, bool)  # its rank starts no kernel any more
        self.neighbor_gpu: Ints = np.full(hosts, -1, np.int64)  # GPU that another job uses, too


def _combine(
    array: npt.NDArray[np.generic], faults: ActiveFaults, values: object, ufunc: np.ufunc
) -> None:
    """Combine *values* into the affected cells: one GPU, or all GPUs of the host."""
    new = np.broadcast_to(np.asarray(values), faults.slot.shape)
    has_gpu = faults.gpu >= 0
    if array.ndim == 1:
        ufunc.at(array, faults.slot, new)
        return
    ufunc.at(array, (faults.slot[has_gpu], faults.gpu[has_gpu]), new[has_gpu])
    slots, per_gpu = np.repeat(faults.slot[~has_gpu], GPUS), np.repeat(new[~has_gpu], GPUS)
    ufunc.at(array, (slots, np.tile(np.arange(GPUS), int((~has_gpu).sum()))), per_gpu)


def thermal(effects: HostEffects, faults: ActiveFaults) -> None:
    """Raise the temperature first, then lower the clock."""
    warm = np.minimum(faults.strength / HEAT_LEAD_SHARE, 1.0)
    cut = np.clip((faults.strength - HEAT_LEAD_SHARE) / (1 - HEAT_LEAD_SHARE), 0.0, 1.0)
    _combine(effects.heat, faults, warm, np.maximum)
    _combine(effects.thermal, faults, np.where(cut > 0, 0.9, 0.0), np.maximum)
    _combine(effects.speed, faults, 1 - faults.amount * cut, np.minimum)


def power_cap(effects: HostEffects, faults: ActiveFaults) -> None:
    """Lower the power limit, by an operator or the firmware: power is at the limit, the die is cool."""
    _combine(effects.capped, faults, 0.95 * faults.strength, np.maximum)
    _combine(effects.speed, faults, 1 - faults.amount * faults.strength, np.minimum)
    _combine(effects.limit, faults, (1 - faults.amount * faults.strength) ** 2.2, np.minimum)


def power_brake(effects: HostEffects, faults: ActiveFaults) -> None:
    """Slow down all GPUs of a rack at once, at the request of its power supply."""
    _combine(effects.braked, faults, 0.98 * faults.strength, np.maximum)
    _combine(effects.speed, faults, 1 - faults.amount * faults.strength, np.minimum)


def cpu_contention(effects: HostEffects, faults: ActiveFaults) -> None:
    """Put gaps between kernels, and pressure on the cores; the clocks do not change."""
    _combine(effects.stall, faults, faults.amount * faults.strength, np.maximum)
    pressure = CONTENDED_PRESSURE * faults.amount / 0.22 * faults.strength
    _combine(effects.pressure, faults, pressure, np.maximum)
    steal = CONTENDED_STEAL * (faults.variant < 0.5) * faults.strength
    _combine(effects.steal, faults, steal, np.maximum)


def storage_stall(effects: HostEffects, faults: ActiveFaults) -> None:
    """Lower utilization and power while a host waits for its data, or all hosts of a job at once."""
    _combine(effects.starved, faults, faults.amount * faults.strength, np.maximum)
    _combine(effects.iowait, faults, 0.3 * faults.strength, np.maximum)


def slow_host(effects: HostEffects, faults: ActiveFaults) -> None:
    """Do less work per cycle, with no sign from the driver."""
    _combine(effects.work, faults, 1 - faults.amount, np.minimum)


def pcie_width(effects: HostEffects, faults: ActiveFaults) -> None:
    """Halve or quarter the lanes; add replays; the port next to the GPU gets its data more slowly."""
    half = faults.variant < 0.5
    _combine(effects.lanes, faults, np.where(half, HALF_LANES, QUARTER_LANES), np.minimum)
    _combine(effects.replays, faults, np.where(half, 0.2, 3.0), np.add)
    _combine(effects.port, faults, np.where(half, 0.95, 0.55), np.minimum)


def nvlink(effects: HostEffects, faults: ActiveFaults) -> None:
    """Repeat more and more on one link, which delays its tensor group; then the link fails with XID 74."""
    _combine(effects.nvlink, faults, 1 - (1 - REPEATING_SHARE) * faults.strength, np.minimum)
    _combine(effects.crc, faults, faults.amount * np.minimum(faults.strength + 0.02, 1.0), np.add)
    _combine(effects.link_down, faults, faults.is_due, np.logical_or)
    _combine(effects.hangs, faults, faults.is_due, np.logical_or)


def rdma_link(effects: HostEffects, faults: ActiveFaults) -> None:
    """Simulate a bad cable: symbol errors, retransmissions, and the whole gang sends at this port's pace."""
    _combine(effects.port, faults, 1 - faults.amount * faults.strength, np.minimum)
    _combine(
        effects.retransmits,
        faults,
        RETRANSMISSIONS_PER_SECOND * faults.amount * faults.strength,
        np.add,
    )
    _combine(effects.symbols, faults, SYMBOL_ERRORS_PER_SECOND * faults.strength, np.add)


def congestion(effects: HostEffects, faults: ActiveFaults) -> None:
    """Slow down all ports of the gang equally: they wait for credits, and bytes reach a plateau."""
    _combine(effects.port, faults, 1 - faults.amount * faults.strength, np.minimum)
    _combine(effects.wait_ticks, faults, 4000.0 * faults.strength, np.add)


def flap(effects: HostEffects, faults: ActiveFaults) -> None:
    """Take the link down and up: the gang hangs for seconds, and there is a burst of retransmissions."""
    _combine(effects.port_down, faults, faults.seconds < 2.0, np.logical_or)
    _combine(effects.downed, faults, np.ceil(faults.amount) * faults.is_new, np.add)
    _combine(effects.hangs, faults, True, np.logical_or)
    _combine(effects.retransmits, faults, 2000.0, np.add)


def port_gone(effects: HostEffects, faults: ActiveFaults) -> None:
    """Take the port down for good; its gang waits until the timeout."""
    _combine(effects.port_down, faults, faults.is_due, np.logical_or)
    _combine(effects.downed, faults, faults.is_new, np.add)
    _combine(effects.hangs, faults, faults.is_due, np.logical_or)


def hbm(effects: HostEffects, faults: ActiveFaults) -> None:
    """Add bursts of corrected errors, if there is any warning; then lose data."""
    span = np.floor(faults.seconds / 10.0)
    bursts = (span * 0.618034 + faults.variant * 7.0) % 1.0 < BURST_SHARE
    warned = ~faults.is_due & bursts
    _combine(effects.corrected, faults, faults.amount * warned, np.add)
    _combine(effects.uncorrected, faults, faults.is_new, np.add)
    failed = faults.is_due & (faults.variant < faults.fault_class.remap_failed_ratio)
    _combine(effects.remap_pending, faults, faults.is_due & ~failed, np.maximum)
    _combine(effects.remap_failed, faults, failed, np.maximum)
    _combine(
        effects.recovery_action, faults, np.where(faults.is_due, RECOVERY_RESET, 0), np.maximum
    )
    _combine(effects.hangs, faults, faults.is_due, np.logical_or)


def gsp_hang(effects: HostEffects, faults: ActiveFaults) -> None:
    """Make calls slower until none returns: fields vanish, the gang waits, XID 119 comes late."""
    _combine(effects.call_seconds, faults, faults.amount * faults.strength, np.maximum)
    _combine(effects.unread, faults, faults.is_due, np.logical_or)
    _combine(effects.hangs, faults, faults.is_due, np.logical_or)


def gpu_lost(effects: HostEffects, faults: ActiveFaults) -> None:
    """Drop the GPU off the bus, without warning."""
    _combine(effects.lost, faults, faults.is_due, np.logical_or)
    _combine(effects.hangs, faults, faults.is_due, np.logical_or)


def gpu_fault(effects: HostEffects, faults: ActiveFaults) -> None:
    """Report the driver's request for a reset."""
    _combine(
        effects.recovery_action, faults, np.where(faults.is_due, RECOVERY_RESET, 0), np.maximum
    )
    _combine(effects.hangs, faults, faults.is_due, np.logical_or)


def rack_dark(effects: HostEffects, faults: ActiveFaults) -> None:
    """Silence a host without power."""
    _combine(effects.silent, faults, True, np.logical_or)
    _combine(effects.hangs, faults, True, np.logical_or)


def gap(effects: HostEffects, faults: ActiveFaults) -> None:
    """Stop the readings of a healthy host. A gap between two steps is not noticed."""
    _combine(effects.silent, faults, ~faults.is_over, np.logical_or)


def hung_collector(effects: HostEffects, faults: ActiveFaults) -> None:
    """Hang the readings of one GPU; its job continues."""
    _combine(effects.unread, faults, faults.is_due, np.logical_or)
    _combine(effects.call_seconds, faults, 1.0, np.maximum)


def skewed_clock(effects: HostEffects, faults: ActiveFaults) -> None:
    _combine(effects.offset_seconds, faults, faults.amount, np.add)


def saturated_counter(effects: HostEffects, faults: ActiveFaults) -> None:
    """Stick a counter at a value."""
    _combine(effects.overruns, faults, faults.amount, np.maximum)


def sequence_imbalance(effects: HostEffects, faults: ActiveFaults) -> None:
    """Make a different rank the slowest in every step."""
    _combine(effects.imbalance, faults, faults.amount, np.maximum)


def stage_imbalance(effects: HostEffects, faults: ActiveFaults) -> None:
    """Make the same stage the longest in every replica."""
    _combine(effects.stage_imbalance, faults, faults.amount, np.maximum)


def rotating_stall(effects: HostEffects, faults: ActiveFaults) -> None:
    """Starve one host of the job at a time, while the others wait for it; the host changes every turn."""
    for job in np.unique(faults.variant):  # the hosts of one job share its draws
        members = np.flatnonzero(faults.variant == job)
        turn = int(faults.seconds[members].max() // STALL_TURN_SECONDS)
        place = int(turn * 0.618034 * members.size) % members.size
        member = members[np.argsort(faults.slot[members])[place]]
        slot = faults.slot[member]
        effects.starved[slot] = max(effects.starved[slot], faults.amount[member])
        effects.iowait[slot] = max(effects.iowait[slot], 0.3)


def full_load_cap(effects: HostEffects, faults: ActiveFaults) -> None:
    """Report the power cap at full load, with no loss of clock."""
    _combine(effects.capped, faults, faults.amount, np.maximum)


def neighbor(effects: HostEffects, faults: ActiveFaults) -> None:
    """Slow the host by another job on one of its GPUs: the host is healthy."""
    _combine(effects.stall, faults, faults.amount * faults.strength, np.maximum)
    is_there = ~faults.is_over
    effects.neighbor_gpu[faults.slot[is_there]] = faults.gpu[is_there]


def stopped_rank(effects: HostEffects, faults: ActiveFaults) -> None:
    """Stop the kernels of a rank, for which its gang then waits. No part has a fault."""
    there = ~faults.is_over & faults.is_due
    _combine(effects.stopped, faults, there, np.logical_or)
    _combine(effects.hangs, faults, there, np.logical_or)


def no_effect(effects: HostEffects, faults: ActiveFaults) -> None:
    """Change nothing: no counter shows silent corruption, and a restart has no effect on readings."""


#: Class -> its effect. `scenario_file` refuses a class of `world.toml` without an effect.
EFFECTS: dict[str, Callable[[HostEffects, ActiveFaults], None]] = {
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
    "silent_corruption": no_effect,
    "gap": gap,
    "hung_collector": hung_collector,
    "skewed_clock": skewed_clock,
    "agent_restart": gap,
    "saturated_counter": saturated_counter,
    "planned_reboot": no_effect,
    "data_stall": storage_stall,
    "sequence_imbalance": sequence_imbalance,
    "stage_imbalance": stage_imbalance,
    "full_load_cap": full_load_cap,
    "nvlink_switch": nvlink,
    "rotating_stall": rotating_stall,
    "neighbor": neighbor,
    "stopped_rank": stopped_rank,
}
