"""Rows of scores to store: changed hosts, with the GPU state that each evidence implies.

SQL shows the state of each GPU from these rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..arrays import Flags, Times
from ..model import UNCHANGED_SCORE_SECONDS, Evidence, HealthState, HostScore, Snapshot
from .evaluate import Judgement
from .results import Gpus
from .score_columns import Columns, columns_of

#: Steps that count as a change.
SCORE_STEP = 0.005
SPEED_STEP = 0.02
HAZARD_STEP_RATIO = 0.10


def with_gpu_states(snapshot: Snapshot, hosts: Iterable[HostScore]) -> list[HostScore]:
    """Return *hosts* with the GPU's state in each evidence of a GPU or its part.

    Leave evidence of a GPU that was not read since the start: it has no score. Leave all that is
    carried over from before a restart, too: GPUs are judged by readings since.
    """
    hosts = list(hosts)
    if not isinstance(snapshot, Judgement) or not any(map(_has_gpu_evidence, hosts)):
        return hosts
    rows = _RowsOfHosts(snapshot.gpus, len(snapshot.hosts))
    return [
        host
        if not _has_gpu_evidence(host) or _is_carried_over(snapshot, host)
        else _with_states(snapshot.gpus, host, rows.of_host(host.node_index))
        for host in hosts
    ]


def _has_gpu_evidence(host: HostScore) -> bool:
    return any(evidence.device.startswith("GPU-") for evidence in host.evidence)


def _is_carried_over(snapshot: Judgement, host: HostScore) -> bool:
    carried = snapshot.settling.get(host.node_index)
    return carried is not None and carried.score.evidence is host.evidence


class _RowsOfHosts:
    """The GPUs of each host, sorted once, since ten thousand hosts may change together."""

    def __init__(self, gpus: Gpus, hosts: int) -> None:
        self._rows = np.argsort(gpus.host, kind="stable")
        every = np.arange(hosts + 1, dtype=gpus.host.dtype)
        self._begins = np.searchsorted(gpus.host[self._rows], every)

    def of_host(self, host: int) -> list[int]:
        rows: list[int] = self._rows[self._begins[host] : self._begins[host + 1]].tolist()
        return rows


def _with_states(gpus: Gpus, host: HostScore, rows: Sequence[int]) -> HostScore:
    rows_by_name = {gpus.names[row]: row for row in rows}
    return replace(
        host,
        evidence=tuple(_with_gpu_state(gpus, rows_by_name, evidence) for evidence in host.evidence),
    )


def _with_gpu_state(gpus: Gpus, rows_by_name: Mapping[str, int], evidence: Evidence) -> Evidence:
    """Return *evidence* with its GPU's state if it is the reason of that state, else HEALTHY."""
    row = rows_by_name.get(evidence.device.partition("/")[0])
    if row is None:
        return evidence
    is_reason = gpus.reason[row] == evidence.reason
    return replace(
        evidence, gpu_state=HealthState(int(gpus.state[row])) if is_reason else HealthState.HEALTHY
    )


class ScoreLog:
    """The last written score of each host, by node index."""

    def __init__(self) -> None:
        self._columns = Columns.none()
        self._written_ns: Times = np.zeros(0, dtype=np.int64)

    def take_changed(self, snapshot: Snapshot) -> list[HostScore]:
        """Return the hosts to write now, and mark them as written."""
        now = columns_of(snapshot)
        due = self._due(now, snapshot.computed_ns)
        written_ns = np.zeros(due.size, dtype=np.int64)
        written_ns[: self._written_ns.size] = self._written_ns
        self._written_ns = np.where(due, snapshot.computed_ns, written_ns)
        self._columns = self._columns.followed_by(now, due)
        return with_gpu_states(
            snapshot, [snapshot.hosts[host] for host in np.flatnonzero(due).tolist()]
        )

    def _due(self, now: Columns, now_ns: int) -> Flags:
        """Return hosts that are new, changed, or due after UNCHANGED_SCORE_SECONDS."""
        due, known = np.ones(now.score.size, dtype=bool), self._written_ns.size
        spread = np.arange(known) % UNCHANGED_SCORE_SECONDS
        before, after = (
            (time_ns // 1_000_000_000 + spread) // UNCHANGED_SCORE_SECONDS
            for time_ns in (self._written_ns, np.int64(now_ns))
        )
        due[:known] = (before != after) | differs(self._columns, now.head(known))
        return due


def differs(before: Columns, now: Columns) -> Flags:
    """Return hosts that differ from *before* by more than noise."""
    other = (before.state != now.state) | (before.reason != now.reason)
    other |= before.simulated != now.simulated
    other |= np.isnan(before.relative_speed) != np.isnan(now.relative_speed)
    other |= np.abs(before.relative_speed - now.relative_speed) > SPEED_STEP
    other |= np.abs(before.score - now.score) > SCORE_STEP
    hazard = np.abs(before.hazard_per_hour - now.hazard_per_hour)
    return np.asarray(other | (hazard > HAZARD_STEP_RATIO * before.hazard_per_hour), dtype=bool)
