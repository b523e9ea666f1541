"""One synchronous training job over all GPUs of the fleet, advanced from change to change.

Every rank does the same work in the same wall time: a step ends when the slowest has computed, and
the exchange when the slowest port has sent. Whoever is done waits, which keeps a kernel resident
(100 % utilisation) at little power. An elastic job: a rank that dies is left out after a stall.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from .tables import Floats


class Phase(IntEnum):
    """What the gang is at."""

    COMPUTE = 0
    COMMUNICATE = 1
    GAP = 2  # between two steps: the host prepares the next batch, no kernel runs
    CHECKPOINT = 3  # writers write, the others wait
    STALL = 4  # all wait for a rank that will not come


#: Share of a step's bytes that travel while computing (parameters fetched ahead, as in FSDP).
OVERLAPPED_SHARE = 0.35
STALL_SECONDS = 2.0
#: Ranks' work differs this much from step to step (standard deviation).
WORK_JITTER = 0.004
#: A stretch this short is over.
INSTANT_SECONDS = 1e-9


@dataclass(slots=True)
class Stretch:
    """What happened in `seconds` without a change of phase. Arrays are (hosts, GPUs)."""

    seconds: float
    phase: Phase
    busy: Floats  # share of the stretch each rank spent at the phase's own work, not waiting
    sent: Floats  # share of a step's bytes that each port moved


class Job:
    """The gang's state; `advance` alone changes it, `lose` apart."""

    def __init__(self, random: np.random.Generator, hosts: int, gpus: int) -> None:
        """Period, phases, cadence of checkpoints and who writes them are drawn from *random*."""
        self._random = random
        self.period_seconds = random.uniform(2.0, 4.0)  # at nominal clocks
        self.communicate_seconds = self.period_seconds * random.uniform(0.14, 0.22)
        self.gap_seconds = self.period_seconds * random.uniform(0.008, 0.015)
        self.compute_seconds = self.period_seconds - self.communicate_seconds - self.gap_seconds
        self.checkpoint_seconds = random.uniform(4.0, 7.0)
        self.writers = np.zeros((hosts, gpus), bool)
        # Either the first rank of each host writes its shard, or rank 0 writes for all.
        self.writers[: (1 if random.random() < 0.5 else hosts), 0] = True
        self.alive = np.ones((hosts, gpus), bool)
        self.steps = 0
        self._now_seconds = 0.0
        self._stall_seconds = 0.0
        # The first one early: operators see that a checkpoint is no fault before any fault begins.
        self._checkpoint_at_seconds = random.uniform(6.0, 12.0)
        self._nobody: Floats = np.zeros((hosts, gpus))
        self._nominal: Floats = np.ones((hosts, gpus))
        self.phase = Phase.COMPUTE
        self._left: Floats = self._nobody
        self._overlapped_left = 0.0
        self._begin(Phase.COMPUTE)

    def lose(self, host: int, gpu: int) -> None:
        """A rank dies: all stall, then the job goes on without it."""
        if self.alive[host, gpu]:
            self.alive[host, gpu] = False
            self._stall_seconds += STALL_SECONDS

    def advance(self, seconds_max: float, compute_speed: Floats, port_speed: Floats) -> Stretch:
        """Advance to the next change of phase, at most *seconds_max*. Speeds: 1.0 is nominal."""
        if self._stall_seconds > 0:
            return self._stall(seconds_max)
        speed = {Phase.COMPUTE: compute_speed, Phase.COMMUNICATE: port_speed}.get(
            self.phase, self._nominal
        )
        needed = self._left * self.alive / speed
        whole = float(needed.max())
        seconds = min(seconds_max, whole)
        stretch = self._stretch(seconds, whole, needed, speed)
        self._now_seconds += seconds
        if whole - seconds <= INSTANT_SECONDS:
            self._begin(self._next_phase())
        return stretch

    def _stall(self, seconds_max: float) -> Stretch:
        seconds = min(seconds_max, self._stall_seconds)
        self._stall_seconds -= seconds
        self._now_seconds += seconds
        if self._stall_seconds <= INSTANT_SECONDS:
            self._stall_seconds = 0.0
        return Stretch(seconds, Phase.STALL, self._nobody, self._nobody)

    def _stretch(self, seconds: float, whole: float, needed: Floats, speed: Floats) -> Stretch:
        worked = np.minimum(needed, seconds)  # seconds each rank was at it
        share = worked / max(seconds, INSTANT_SECONDS)
        # Rounding must not leave less than nothing: counters are fed from it.
        self._left = np.maximum(self._left - worked * speed, 0.0)
        sent: Floats = self._nobody
        if self.phase is Phase.COMMUNICATE:
            sent = worked * speed * ((1 - OVERLAPPED_SHARE) / self.communicate_seconds)
        elif self.phase is Phase.COMPUTE:
            # A collective ties its ports together: what overlaps moves at the slowest rank's pace.
            moved = self._overlapped_left * seconds / max(whole, INSTANT_SECONDS)
            self._overlapped_left -= moved
            sent = self.alive * moved
        return Stretch(seconds, self.phase, share, sent)

    def _next_phase(self) -> Phase:
        if self.phase is Phase.COMPUTE:
            return Phase.COMMUNICATE
        if self.phase is Phase.COMMUNICATE:
            return Phase.GAP
        if self.phase is Phase.GAP:
            self.steps += 1
            if self._now_seconds >= self._checkpoint_at_seconds:
                self._checkpoint_at_seconds = self._now_seconds + self._random.uniform(60.0, 90.0)
                return Phase.CHECKPOINT
        return Phase.COMPUTE

    def _begin(self, phase: Phase) -> None:
        self.phase = phase
        if phase is Phase.COMPUTE:
            jitter = self._random.standard_normal(self.alive.shape)
            self._left = self.compute_seconds * (1 + WORK_JITTER * jitter)
            self._overlapped_left = OVERLAPPED_SHARE
        elif phase is Phase.COMMUNICATE:
            self._left = self._nominal * self.communicate_seconds
        elif phase is Phase.GAP:
            self._left = self._nominal * self.gap_seconds
        else:
            self._left = self.writers * self.checkpoint_seconds

    def expected_shares(self, compute_speed: Floats) -> tuple[Floats, float]:
        """Return the shares of a step each rank computes, and all exchange, at steady speeds."""
        compute = self.compute_seconds / compute_speed
        period = float(compute.max()) + self.communicate_seconds + self.gap_seconds
        return compute / period, self.communicate_seconds / period
