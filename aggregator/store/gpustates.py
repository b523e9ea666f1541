"""Which state each piece of evidence puts its GPU in: stored with it, so that SQL tells the state of each GPU, too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..judgement.gpus import Gpus
from ..judgement.judge import Judgement
from ..verdicts import Evidence, HostScore, Snapshot, State


def with_gpu_states(snapshot: Snapshot, hosts: Iterable[HostScore]) -> list[HostScore]:
    """Return *hosts* of *snapshot*, each evidence of a GPU, or of a part of one, with what it puts that in.

    Of a GPU that was not read since the start it stays as it is: there is no score of it. So does all that still stands of
    before a restart: GPUs are judged by what is seen since.
    """
    hosts = list(hosts)
    if not isinstance(snapshot, Judgement) or not any(map(_tells_of_gpus, hosts)):
        return hosts
    rows = _RowsOfHosts(snapshot.gpus, len(snapshot.hosts))
    return [
        host
        if not _tells_of_gpus(host) or _is_of_before(snapshot, host)
        else _with_states(snapshot.gpus, host, rows.of(host.node_index))
        for host in hosts
    ]


def _tells_of_gpus(host: HostScore) -> bool:
    return any(evidence.device.startswith("GPU-") for evidence in host.evidence)


def _is_of_before(snapshot: Judgement, host: HostScore) -> bool:
    carried = snapshot.before.scores.get(host.node_index)
    return carried is not None and carried.evidence is host.evidence


class _RowsOfHosts:
    """The GPUs of each host. Sorted once: ten thousand hosts may change together, and the loop waits for it."""

    def __init__(self, gpus: Gpus, hosts: int) -> None:
        self._rows = np.argsort(gpus.host, kind="stable")
        every = np.arange(hosts + 1, dtype=gpus.host.dtype)
        self._begins = np.searchsorted(gpus.host[self._rows], every)

    def of(self, host: int) -> list[int]:
        rows: list[int] = self._rows[self._begins[host] : self._begins[host + 1]].tolist()
        return rows


def _with_states(gpus: Gpus, host: HostScore, rows: Sequence[int]) -> HostScore:
    named = {gpus.names[row]: row for row in rows}
    return replace(host, evidence=tuple(_told(gpus, named, each) for each in host.evidence))


def _told(gpus: Gpus, named: Mapping[str, int], evidence: Evidence) -> Evidence:
    """HEALTHY: other evidence is the reason of its GPU's state, or none."""
    row = named.get(evidence.device.partition("/")[0])
    if row is None:
        return evidence
    is_reason = gpus.reason[row] == evidence.reason
    return replace(evidence, gpu_state=State(int(gpus.state[row])) if is_reason else State.HEALTHY)
