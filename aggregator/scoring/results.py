"""Scores of a judgement per host (healthy ones are built on access) and per GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from ..arrays import Bytes, Codes, Flags, Floats, Times
from ..fleet.devices import DeviceNames
from ..hazard.model import PRIOR, SPREAD_ASSUMED
from ..model import SEVERITY, GpuScore, HealthState, HostScore, Reason, Snapshot
from .base_hazard import GPU_HAZARD_PER_HOUR, ModelHazard, base_hazards_per_hour
from .calibration import NO_OUTCOMES, Calibration
from .score import (
    SPEED_UNKNOWN,
    SPREAD_SILENT,
    Z90,
    HostInput,
    ObservedSymptom,
    score_host,
    speed_interval,
)
from .symptom import Symptom
from .view import FleetView


@dataclass(frozen=True, slots=True)
class HostInputs:
    """The inputs of scores besides symptoms, by node index. The arrays never change."""

    names: Sequence[str]
    simulated: Flags
    gpus: Codes
    last_received_ns: Times
    is_reporting: Flags
    relative_speed: Floats  # slowest computing GPU's, against a typical host's
    speed_error: Floats
    #: ln of each host's hazard before any evidence, addition of each feature, and the features.
    log_base: Floats
    parts: Floats
    features: Floats
    model: str = PRIOR
    at_ns: int = 0
    spread: float = SPREAD_ASSUMED  # factor of a hazard's 90 % interval, up and down
    outcomes: Calibration = NO_OUTCOMES

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, host: int) -> HostInput:
        return HostInput(
            self.names[host],
            host,
            bool(self.simulated[host]),
            int(self.gpus[host]),
            int(self.last_received_ns[host]),
            bool(self.is_reporting[host]),
            float(self.relative_speed[host]),
            float(self.speed_error[host]),
            ModelHazard(
                self.model,
                float(self.log_base[host]),
                tuple(self.parts[host].tolist()),
                tuple(self.features[host].tolist()),
                self.at_ns,
                self.spread,
                self.outcomes,
            ),
        )

    @property
    def hazards_per_hour(self) -> Floats:
        """Each host's hazard before any symptom."""
        log_hazard = self.log_base + self.parts.sum(axis=1)
        return np.asarray(np.exp(log_hazard + self.outcomes.log_factors(log_hazard)))


class Hosts(Sequence[HostScore]):
    """A score per host, by node index.

    *computed_scores*: the scores of hosts that are not plainly healthy.
    """

    def __init__(self, inputs: HostInputs, computed_scores: Mapping[int, HostScore]) -> None:
        self.inputs, self.computed_scores = inputs, computed_scores

    def __len__(self) -> int:
        return len(self.inputs)

    @overload
    def __getitem__(self, host: int) -> HostScore: ...
    @overload
    def __getitem__(self, host: slice) -> tuple[HostScore, ...]: ...
    def __getitem__(self, host: int | slice) -> HostScore | tuple[HostScore, ...]:
        if isinstance(host, slice):
            return tuple(self._of(index) for index in range(*host.indices(len(self))))
        if not -len(self) <= host < len(self):
            raise IndexError(f"host {host} of {len(self)}")
        return self._of(host % len(self))

    def __iter__(self) -> Iterator[HostScore]:
        return map(self._of, range(len(self)))

    def _of(self, host: int) -> HostScore:
        return self.computed_scores.get(host) or score_host(self.inputs[host], ())

    def calm_hazards_per_hour(self, hosts: Iterable[int]) -> Floats:
        """Return each host's hazard before any symptom; *hosts* use their stored outcomes."""
        log_hazard = self.inputs.log_base + self.inputs.parts.sum(axis=1)
        log_factors = self.inputs.outcomes.log_factors(log_hazard)
        for host in hosts:
            if inputs := self.computed_scores[host].inputs:
                log_factors[host] = inputs.log_hazard_outcomes
        return np.asarray(np.exp(log_hazard + log_factors))

    def state(self, host: int) -> HealthState:
        """Return the state of a host without making its score."""
        score = self.computed_scores.get(host)
        return score.state if score else HealthState.HEALTHY

    def listed_count(self, snapshot: Snapshot) -> int:
        """Return the number of listed hosts (`Snapshot.is_listed`) without making their scores."""
        has_reported = self.inputs.last_received_ns > 0
        ended = has_reported & self.inputs.simulated & snapshot.simulation_ended
        return len(self) - int(ended.sum())

    def with_scores(self, others: Mapping[int, HostScore]) -> Hosts:
        """Return the hosts with the scores *others* in place of their own."""
        return Hosts(self.inputs, {**self.computed_scores, **others})


Singles = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Gpus:
    """A score per GPU, as columns by GPU index, which is stable within an epoch.

    A GPU has its share of its host's calm hazard, plus all that its own faults add to the host's,
    since a repair of the GPU ends those. A fault that several devices share belongs to none of
    them. So no GPU's hazard is above its host's, nor is their sum.
    """

    names: DeviceNames | Sequence[str]
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
                state=HealthState(int(self.state[row])),
                reason=Reason(int(self.reason[row])),
                hazard_per_hour=hazard,
                hazard_lower=hazard / spread,
                hazard_upper=hazard * spread,
                relative_speed=float(self.relative_speed[row]),
                speed_lower=float(self.speed_lower[row]),
                speed_upper=float(self.speed_upper[row]),
            )


def empty_gpus() -> Gpus:
    """Return columns without GPUs."""
    floats, codes = np.zeros(0, dtype=np.float32), np.zeros(0, dtype=np.int32)
    flags = np.zeros(0, dtype=np.uint8)
    return Gpus((), codes, floats, floats, floats, floats, floats, flags, flags)


def score_gpus(
    view: FleetView, hosts: Hosts, observed: Mapping[int, Sequence[ObservedSymptom]]
) -> Gpus:
    """Return all GPUs that were ever read. *observed*: the active symptoms, by host."""
    gpus, host_inputs = view.fleet.devices["gpu"], hosts.inputs
    host, is_reporting = gpus.host.copy(), host_inputs.is_reporting[gpus.host]
    calm = hosts.calm_hazards_per_hour(observed)
    # A replaced GPU keeps its row, but is not in the host's count.
    rows = np.bincount(gpus.host, minlength=len(hosts))
    share = calm * (GPU_HAZARD_PER_HOUR / base_hazards_per_hour(np.maximum(host_inputs.gpus, rows)))
    speed = view.speeds.relative.astype(np.float32)
    lower, upper = _intervals(speed, view.speeds.error, is_reporting)
    columns = Gpus(
        names=gpus.names,
        host=host,
        hazard_per_hour=share[host].astype(np.float32),
        hazard_spread=_spreads(hosts, observed)[host],
        relative_speed=speed,
        speed_lower=lower,
        speed_upper=upper,
        state=_states(view, view.awake[gpus.host]),
        reason=np.zeros(len(host), dtype=np.uint8),
    )
    for index, symptoms in observed.items():
        _apply_symptoms(view, columns, hosts.computed_scores[index], symptoms)
    return columns


def _spreads(hosts: Hosts, observed: Mapping[int, Sequence[ObservedSymptom]]) -> Singles:
    """Return the factor of the 90 % interval of each host's hazard, also for its GPUs."""
    spreads = np.where(hosts.inputs.is_reporting, hosts.inputs.spread, SPREAD_SILENT)
    for index in observed:
        if inputs := hosts.computed_scores[index].inputs:
            spreads[index] = inputs.hazard_spread
    return spreads.astype(np.float32)


def _intervals(speed: Singles, error: Floats, is_reporting: Flags) -> tuple[Singles, Singles]:
    known = np.isfinite(speed) & is_reporting
    reach = np.where(known, Z90 * error, 0.0)
    low = np.where(known, np.maximum(speed - reach, SPEED_UNKNOWN[0]), SPEED_UNKNOWN[0])
    high = np.where(known, speed + reach, SPEED_UNKNOWN[1])
    return low.astype(np.float32), high.astype(np.float32)


def _states(view: FleetView, is_reporting: Flags) -> Bytes:
    states = np.full(len(is_reporting), HealthState.HEALTHY, dtype=np.uint8)
    states[~view.fresh("gpu_1s")] = HealthState.UNKNOWN
    states[~is_reporting] = HealthState.STALE
    return states


def _apply_symptoms(
    view: FleetView, columns: Gpus, host: HostScore, observed: Sequence[ObservedSymptom]
) -> None:
    """Add the costs of a host's symptoms to its GPUs."""
    added: dict[int, float] = {}
    for evidence in host.evidence:
        row = gpu_row(view, host.node_index, evidence.device)
        if row >= 0 and evidence.shared_count == 1:
            added[row] = added.get(row, 0.0) + evidence.hazard_delta
    for row, hazard in added.items():
        columns.hazard_per_hour[row] = min(
            columns.hazard_per_hour[row] + hazard, host.hazard_per_hour
        )
    for symptom in (s.symptom for s in observed):
        row = gpu_row(view, host.node_index, symptom.device)
        if row >= 0:
            _mark(columns, row, symptom, float(view.speeds.error[row]))


def _mark(columns: Gpus, row: int, symptom: Symptom, error: float) -> None:
    """Set the GPU's state and speed by a worse symptom. *error*: standard error of the speed."""
    if symptom.speed < 1.0 and not columns.relative_speed[row] <= symptom.speed:  # or NaN
        columns.relative_speed[row] = symptom.speed
        slow, fast = speed_interval(symptom.speed, error, is_reporting=True)
        columns.speed_lower[row], columns.speed_upper[row] = slow, fast
    before = HealthState(int(columns.state[row]))
    if SEVERITY.index(symptom.host_state) < SEVERITY.index(before):
        columns.state[row] = symptom.host_state
        columns.reason[row] = symptom.rule.reason if symptom.reason is None else symptom.reason


def gpu_row(view: FleetView, host: int, device: str) -> int:
    """Return the row of the GPU of *device* (`GPU-3f../link3`); -1 for none."""
    return view.fleet.devices["gpu"].find(host, device.partition("/")[0])
