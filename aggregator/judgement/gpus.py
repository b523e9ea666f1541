"""A score per GPU, as columns: what its host's hazard owes to it, and its own pace.

A GPU has its share of its host's base hazard, and all that its own symptoms add to the host's: repairing it
gives that back. So no GPU's hazard is above its host's, nor the sum of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp

import numpy as np
from numpy.typing import NDArray

from ..fleet.arrays import Bytes, Codes, Flags, Floats
from ..fleet.devices import Names
from ..verdicts import SEVERITY, GpuScore, HostScore, Reason, State
from .hosts import Hosts
from .present import Present
from .scoring import (
    GPU_HAZARD_PER_HOUR,
    SPEED_UNKNOWN,
    SPREAD_UNHEARD,
    Z90,
    Seen,
    base_hazards_per_hour,
    speed_interval,
)
from .symptoms import Symptom

Singles = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Gpus:
    """Columns by GPU index, which is given once within an epoch."""

    names: Names | Sequence[str]
    host: Codes
    hazard_per_hour: Singles
    hazard_spread: Singles
    relative_speed: Singles
    speed_lower: Singles
    speed_upper: Singles
    state: Bytes
    reason: Bytes

    def __len__(self) -> int:
        return len(self.host)

    def of(self, host: int) -> Iterator[GpuScore]:
        """Yield the GPUs of *host*."""
        for row in np.flatnonzero(self.host == host).tolist():
            hazard, spread = float(self.hazard_per_hour[row]), float(self.hazard_spread[row])
            yield GpuScore(
                gpu=self.names[row],
                host=host,
                state=State(int(self.state[row])),
                reason=Reason(int(self.reason[row])),
                hazard_per_hour=hazard,
                hazard_lower=hazard / spread,
                hazard_upper=hazard * spread,
                relative_speed=float(self.relative_speed[row]),
                speed_lower=float(self.speed_lower[row]),
                speed_upper=float(self.speed_upper[row]),
            )


def none() -> Gpus:
    """Return the columns of no GPUs."""
    none, codes = np.zeros(0, dtype=np.float32), np.zeros(0, dtype=np.int32)
    flags = np.zeros(0, dtype=np.uint8)
    return Gpus((), codes, none, none, none, none, none, flags, flags)


def score_gpus(present: Present, hosts: Hosts, seen: Mapping[int, Sequence[Seen]]) -> Gpus:
    """Return all GPUs that were ever read. *seen*: the symptoms that count, by host."""
    gpus, subjects = present.fleet.devices["gpu"], hosts.subjects
    host, heard = gpus.host.copy(), subjects.heard[gpus.host]
    own = subjects.hazards_per_hour
    # One that was replaced is none of its host's, and has its row.
    rows = np.bincount(gpus.host, minlength=len(hosts))
    share = own * (GPU_HAZARD_PER_HOUR / base_hazards_per_hour(np.maximum(subjects.gpus, rows)))
    speed = present.speeds.relative.astype(np.float32)
    lower, upper = _intervals(speed, present.speeds.error, heard)
    columns = Gpus(
        names=gpus.names,
        host=host,
        hazard_per_hour=share[host].astype(np.float32),
        hazard_spread=_spreads(hosts, seen)[host],
        relative_speed=speed,
        speed_lower=lower,
        speed_upper=upper,
        state=_states(present, heard),
        reason=np.zeros(len(host), dtype=np.uint8),
    )
    for index, held in seen.items():
        _judge(present, columns, (hosts.told[index], float(own[index])), held)
    return columns


def _spreads(hosts: Hosts, seen: Mapping[int, Sequence[Seen]]) -> Singles:
    """Return the factor of the 90 % interval of each host's hazard: its GPUs' are no surer."""
    spreads = np.where(hosts.subjects.heard, hosts.subjects.spread, SPREAD_UNHEARD)
    for index in seen:
        if inputs := hosts.told[index].inputs:
            spreads[index] = inputs.hazard_spread
    return spreads.astype(np.float32)


def _intervals(speed: Singles, error: Floats, heard: Flags) -> tuple[Singles, Singles]:
    known = np.isfinite(speed) & heard
    reach = np.where(known, Z90 * error, 0.0)
    low = np.where(known, np.maximum(speed - reach, SPEED_UNKNOWN[0]), SPEED_UNKNOWN[0])
    high = np.where(known, speed + reach, SPEED_UNKNOWN[1])
    return low.astype(np.float32), high.astype(np.float32)


def _states(present: Present, heard: Flags) -> Bytes:
    states = np.full(len(heard), State.HEALTHY, dtype=np.uint8)
    states[~present.fresh("gpu_1s")] = State.UNKNOWN
    states[~heard] = State.STALE
    return states


def _judge(
    present: Present, columns: Gpus, told: tuple[HostScore, float], held: Sequence[Seen]
) -> None:
    """Put on the GPUs of one host what its symptoms cost. *told*: its score, and its hazard without any."""
    host, own = told
    added: dict[int, float] = {}
    for evidence in host.evidence:
        row = gpu_row(present, host.node_index, evidence.device)
        if row >= 0:
            added[row] = added.get(row, 0.0) + evidence.log_hazard_delta
    for row, delta in added.items():
        hazard = columns.hazard_per_hour[row] + own * (exp(delta) - 1.0)
        columns.hazard_per_hour[row] = min(hazard, host.hazard_per_hour)
    for symptom in (s.symptom for s in held):
        row = gpu_row(present, host.node_index, symptom.device)
        if row >= 0:
            _mark(columns, row, symptom, float(present.speeds.error[row]))


def _mark(columns: Gpus, row: int, symptom: Symptom, error: float) -> None:
    """Let the worst symptom of a GPU say its state, and the slowest its speed for as long as it counts. *error*: of its speed."""
    if symptom.speed < 1.0 and not columns.relative_speed[row] <= symptom.speed:  # or NaN
        columns.relative_speed[row] = symptom.speed
        slow, fast = speed_interval(symptom.speed, error, heard=True)
        columns.speed_lower[row], columns.speed_upper[row] = slow, fast
    before = State(int(columns.state[row]))
    if SEVERITY.index(symptom.host_state) < SEVERITY.index(before):
        columns.state[row] = symptom.host_state
        columns.reason[row] = symptom.rule.reason if symptom.reason is None else symptom.reason


def gpu_row(present: Present, host: int, device: str) -> int:
    """Return the row of the GPU that *device* is, or is a part of (`GPU-3f../link3`); -1 for none."""
    return present.fleet.devices["gpu"].find(host, device.partition("/")[0])
