"""Features known of a host when its hazard is computed: for training, and stored with each score.

The columns are one list, `SCORE_FEATURE_NAMES`: the history features and the measured ones
(OBSERVED_NAMES) in the order of `hazard.features`, then those that no model uses. All are stored
with each score; the first OBSERVED_NAMES of each day are kept longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from ..arrays import Flags, Floats, Indexes
from ..fleet.relative_speeds import slowest
from ..hazard import events, fault_classes
from ..hazard import features as learned
from ..hazard.features import OBSERVED_NAMES
from ..hazard.history import UnitState, state_at
from ..hazard.store_history import DAY_US, DAYS_BACK_MAX, FaultIncident, add_finding
from ..model import Evidence, Reason
from .evidence_sql import CORRECTED, LINK_DOWNS, LINK_ERRORS, REMAPS, query_of
from .view import FleetView

#: Faults of other hosts count as one cause within this time: 27 % begin within ten minutes of
#: another host's fault.
NEAR_US = 600_000_000

#: host, start (us), class
OpenFaults = frozenset[tuple[str, int, str]]


@dataclass(frozen=True)
class FaultHistory:
    """The incidents of each host, by name, and those of the fleet's hosts as arrays.

    Immutable: each judgement makes the next history from it and the open findings; after a restart
    the store's findings restore it. Findings merge into incidents as in training. Hosts are known
    by name, so a host that returns after months has its record.
    """

    incidents: Mapping[str, tuple[FaultIncident, ...]] = field(default_factory=dict)
    #: Open findings that are faults.
    open_faults: OpenFaults = frozenset()
    hosts: int = 0
    #: Per incident of a host of the fleet: node index, begin and end.
    node: Indexes = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    spans_us: Floats = field(default_factory=lambda: np.zeros((0, 2)))
    classes: Flags = field(default_factory=lambda: fault_classes.class_flags(()))

    @staticmethod
    def of(found: Mapping[str, Sequence[FaultIncident]]) -> FaultHistory:
        """Return the history on record, before any host is known to the fleet."""
        return FaultHistory({host: tuple(incidents) for host, incidents in found.items()})

    def after(self, index: Mapping[str, int], open_faults: OpenFaults, now_us: int) -> FaultHistory:
        """Return the history at *now_us* with *open_faults*. *index*: node indexes by name."""
        oldest_us = now_us - DAYS_BACK_MAX * DAY_US
        is_old = bool(self.spans_us.size) and self.spans_us[:, 0].min() < oldest_us
        if open_faults == self.open_faults and len(index) == self.hosts and not is_old:
            return self
        changed: dict[str, list[FaultIncident]] = {}
        new = sorted(
            (since_us, host, fault_class)
            for host, since_us, fault_class in open_faults - self.open_faults
        )
        for since_us, host, fault_class in new:
            if since_us >= oldest_us:
                host_incidents = changed.setdefault(host, list(self.incidents.get(host, ())))
                add_finding(host_incidents, since_us, inf, fault_class)
        incidents = {**self.incidents, **{host: tuple(record) for host, record in changed.items()}}
        affected = {host for host, _, _ in open_faults}
        for host, record in incidents.items():
            if record[-1].end_us == inf and host not in affected:
                last = record[-1]
                closed = last._replace(end_us=max(last.start_us, now_us))
                incidents[host] = (*record[:-1], closed)
        if is_old:
            recent = {
                host: tuple(incident for incident in record if incident.start_us >= oldest_us)
                for host, record in incidents.items()
            }
            incidents = {host: record for host, record in recent.items() if record}
        return FaultHistory(incidents, open_faults, len(index), *_arrays(incidents, index))

    def state(self, names: Sequence[str], now_us: float) -> UnitState:
        """Return the models' input of each host of the fleet at *now_us*."""
        start, end = (self.spans_us.T - now_us) / DAY_US
        hardware = np.ones(len(start), dtype=bool)
        faults = events.FaultTable(
            tuple(names), self.node, start, end, hardware, 0.0, classes=self.classes
        )
        return state_at(faults, 0.0)[1]

    def of_others(self, now_us: int) -> Floats:
        """Return for each host the number of faults of other hosts within NEAR_US."""
        near = self.node[np.abs(now_us - self.spans_us[:, 0]) <= NEAR_US]
        per_host = np.bincount(near, minlength=self.hosts)
        return np.asarray(len(near) - per_host, dtype=np.float64)


def _arrays(
    incidents: Mapping[str, tuple[FaultIncident, ...]], index: Mapping[str, int]
) -> tuple[Indexes, Floats, Flags]:
    known = [(index[host], record) for host, record in incidents.items() if host in index]
    node = np.repeat(
        np.array([host_index for host_index, _ in known], dtype=np.intp),
        [len(host_incidents) for _, host_incidents in known],
    )
    faults = [fault for _, host_incidents in known for fault in host_incidents]
    spans = np.array([fault[:2] for fault in faults], dtype=np.float64).reshape(-1, 2)
    return node, spans, fault_classes.class_flags([fault.classes for fault in faults])


def assemble(
    view: FleetView, faults: FaultHistory, names: tuple[str, ...], frozen: frozenset[int]
) -> Floats:
    """Return hosts x SCORE_FEATURE_NAMES; NaN if unknown. *names*: host names.

    *frozen*: hosts whose silence is more likely our fault, and so is not a feature, now or for a
    model that trains on this day.
    """
    fleet, now_us = view.fleet, view.now_ns // 1000
    hosts, gpus = len(fleet), fleet.devices["gpu"]
    observed: dict[str, Floats] = {
        "gpus": fleet.gpus.astype(np.float64),
        "corrected_errors": _worst(view, CORRECTED),
        "remaps_waiting": _remaps(view),
        "link_errors": _worst(view, LINK_ERRORS),
        "link_downs": _worst(view, LINK_DOWNS),
        "speed": slowest(view.speeds.relative, gpus.host, hosts),
        "headroom_celsius": slowest(_headroom(view), gpus.host, hosts),
        "silent_seconds": _silent(view, frozen),
        "gpus_unread": _unread(view),
        "faults_of_others": faults.of_others(now_us),
    }
    measured = np.stack([observed[name] for name in OBSERVED_NAMES], axis=1)
    return np.hstack([learned.features_of(faults.state(names, now_us)), measured])


def evidence_of(
    at: int, host: str, value: float, delta: float, score_delta: float, at_ns: int
) -> Evidence:
    """Return the model's column *at* as one contribution to the hazard of *host*."""
    feature = learned.FEATURES[at]
    return Evidence(
        signal=f"hazard.{feature.name}",
        device="host",
        value=value,
        unit=feature.unit,
        normal=feature.normal,
        log_hazard_delta=delta,
        relative_speed_factor=1.0,
        score_delta=score_delta,
        # by the feature's own reason advice would act, but a model requests no action
        reason=Reason.LEMON,
        message=feature.describe(value),
        observed_ns=at_ns,
        sql=query_of(feature.name, host, at_ns),
    )


def _silent(view: FleetView, frozen: frozenset[int]) -> Floats:
    known = np.isfinite(view.silent_seconds)
    known[list(frozen)] = False
    return np.where(known, view.silent_seconds, np.nan)


def _worst(view: FleetView, counters: tuple[tuple[str, str], ...]) -> Floats:
    """Return each host's largest counter within ten minutes; NaN if the host is silent."""
    worst = np.zeros(len(view.fleet))
    for table, column in counters:
        rows, events = view.counting(table, column, 0.1, slow=True)
        np.maximum.at(worst, view.fleet.tables[table].devices.host[rows], events)
    return np.where(view.awake, worst, np.nan)


def _remaps(view: FleetView) -> Floats:
    waiting = np.zeros(view.fleet.devices["gpu"].count, dtype=bool)
    for column in REMAPS:
        waiting[view.where("gpu_10s_changes", column, lambda cells: cells > 0)] = True
    hosts = view.fleet.devices["gpu"].host[waiting]
    counts = np.bincount(hosts, minlength=len(view.fleet))
    return np.where(view.awake, counts, np.nan)


def _headroom(view: FleetView) -> Floats:
    die = view.gauge("gpu_1s", "temperature_celsius")
    margin = view.gauge("gpu_1s", "temperature_margin_celsius")
    return np.where(
        np.isfinite(margin), margin, view.gauge("gpu_10s", "temperature_slowdown_celsius") - die
    )


def _unread(view: FleetView) -> Floats:
    fresh = view.fleet.devices["gpu"].host[view.fresh("gpu_1s")]
    read = np.bincount(fresh, minlength=len(view.fleet))[: len(view.fleet)]
    missing = np.maximum(view.fleet.gpus - read, 0).astype(np.float64)
    return np.where(view.awake, missing, np.nan)
