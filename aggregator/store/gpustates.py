"""Which state each piece of evidence puts its GPU in: stored with it, so that SQL tells the state of each GPU, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..judgement.judge import Judgement
from ..verdicts import Evidence, GpuScore, HostScore, Snapshot, State


def with_gpu_states(snapshot: Snapshot, host: HostScore) -> HostScore:
    """Return *host* of *snapshot*, each evidence of a GPU, or of a part of one, with what it puts that in.

    Of a GPU that was not read since the start it stays as it is: there is no score of it. So does all that still stands of
    before a restart: GPUs are judged by what is seen since.
    """
    if not isinstance(snapshot, Judgement) or _is_of_before(snapshot, host):
        return host
    if not any(evidence.device.startswith("GPU-") for evidence in host.evidence):
        return host  # all GPUs of the fleet are looked through for those of a host
    gpus = {gpu.gpu: gpu for gpu in snapshot.gpus.of(host.node_index)}
    return replace(host, evidence=tuple(_told(evidence, gpus) for evidence in host.evidence))


def _is_of_before(snapshot: Judgement, host: HostScore) -> bool:
    carried = snapshot.before.scores.get(host.node_index)
    return carried is not None and carried.evidence is host.evidence


def _told(evidence: Evidence, gpus: Mapping[str, GpuScore]) -> Evidence:
    """HEALTHY: other evidence is the reason of its GPU's state, or none."""
    gpu = gpus.get(evidence.device.partition("/")[0])
    if gpu is None:
        return evidence
    return replace(
        evidence, gpu_state=gpu.state if gpu.reason is evidence.reason else State.HEALTHY
    )
