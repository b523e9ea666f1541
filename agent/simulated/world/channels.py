"""What incidents change of hosts, and the rows that change it: the table between `effects` and `physics`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..parts import GPUS
from .noise import Floats
from .settings import FaultClass

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
