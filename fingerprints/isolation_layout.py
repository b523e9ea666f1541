"""A layout that keeps two jobs on one host apart: GPUs and instances, cores and memory nodes near them, adapters.

Advice for an operator or a scheduler. Gangline never applies it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..contract.isolation import (
    EMPTY,
    BoundaryStatus,
    BoundaryVerdict,
    GpuFacts,
    HostFacts,
    JobOnHost,
    numbers_text,
)

#: GPU instances of four and three of a GPU's seven compute slices, each with half of its memory.
TRAINING_SLICES, INFERENCE_SLICES = "4g", "3g"
#: Boundary -> the advice that no field of a layout has.
_ADVICE: Mapping[str, str] = {
    "mps": "set CUDA_MPS_ACTIVE_THREAD_PERCENTAGE and CUDA_MPS_PINNED_DEVICE_MEM_LIMIT of each process; together at most 100 %",
    "nic": "mount only the uverbs node of its own adapter into each job's /dev/infiniband",
    "iommu": "give each job GPUs of IOMMU groups of its own, with a translating IOMMU (not iommu=pt)",
    "rdma_limits": "set hca_handle and hca_object in rdma.max of both control groups",
    "block_io": "set limits of reads and writes in io.max (cgroup v2) of both jobs, for each disk",
    "shm": "give each job a /dev/shm and an IPC namespace of its own: no hostIPC, no --ipc=host; Slurm: job_container/tmpfs",
    "devices": "let each job open the nodes of its own GPUs only: Slurm ConstrainDevices=yes; no privileged containers",
}


@dataclass(frozen=True, slots=True)
class JobLayout:
    """The part of one job. `gpu_slices`: size of its GPU instance on each shared GPU; "": whole GPUs."""

    job: str
    gpus: tuple[str, ...]
    gpu_slices: str = ""
    cpus: str = ""
    memory_nodes: str = ""
    nics: tuple[str, ...] = ()


def propose(
    training: JobOnHost,
    inference: JobOnHost,
    host: HostFacts,
    verdicts: Iterable[BoundaryVerdict],
) -> tuple[list[JobLayout], list[str]]:
    """Return a layout of each job, and advice on each violated boundary; both empty if none is violated."""
    violated = {v.boundary for v in verdicts if v.verdict is BoundaryStatus.VIOLATED}
    if not violated:
        return [], []
    advice = [text for boundary, text in _ADVICE.items() if boundary in violated]
    jobs = training, inference
    gpus = [sorted({held.gpu for held in job.gpus}) for job in jobs]
    shared = sorted(set(gpus[0]) & set(gpus[1])) if "mig" in violated else []
    unused = sorted(host.gpus.keys() - set(gpus[0]) - set(gpus[1]))
    slices = ("", "")
    if shared and all(host.gpus.get(gpu, GpuFacts()).mig_mode is not None for gpu in shared):
        slices = TRAINING_SLICES, INFERENCE_SLICES
        advice.append(
            f"divide {', '.join(shared)} by MIG: a GPU instance of {slices[0]} for {training.name}, "
            f"of {slices[1]} for {inference.name}"
        )
    elif shared:
        advice.append(f"these GPUs show no MIG: {_elsewhere(unused)}")
    if "pcie_switch" in violated and not shared:
        free = [gpu for gpu in unused if not _meets(host, gpu, gpus[0])]
        advice.append(f"the jobs share a PCIe switch: {_elsewhere(free)}")
    nodes = [_nodes_near(host, own) for own in gpus]
    cores = _divide_cores(host, nodes, [len(own) for own in gpus])
    if "memory_nodes" in violated and (nodes[0] & nodes[1] or len(host.nodes) < 2):
        far = [gpu for gpu in unused if host.gpus[gpu].numa_node not in nodes[0] | {None}]
        advice.append(f"GPUs of both are near one memory node: {_elsewhere(far)}")
    layouts = [
        JobLayout(job.name, tuple(own), part, numbers_text(cpus), numbers_text(near), adapters)
        for job, own, part, cpus, near, adapters in zip(
            jobs, gpus, slices, cores, nodes, _divide_nics(host, gpus), strict=True
        )
    ]
    return [_without_empty(layout) for layout in layouts], advice


def _without_empty(layout: JobLayout) -> JobLayout:
    cpus, nodes = ("" if text == EMPTY else text for text in (layout.cpus, layout.memory_nodes))
    return JobLayout(layout.job, layout.gpus, layout.gpu_slices, cpus, nodes, layout.nics)


def _elsewhere(gpus: Sequence[str]) -> str:
    if gpus:
        return f"move one of the jobs to {', '.join(gpus[:8])}, which neither of them holds"
    return "this host cannot keep the jobs apart, so place one of them on another host"


def _meets(host: HostFacts, gpu: str, others: Iterable[str]) -> bool:
    """Return whether a PCIe bridge is above *gpu* and one of *others*; True if unknown."""
    own = set(host.gpus[gpu].parents)
    above = {bridge for other in others for bridge in host.gpus.get(other, GpuFacts()).parents}
    return not own or bool(own & above)


def _nodes_near(host: HostFacts, gpus: Iterable[str]) -> set[int]:
    """Return the NUMA nodes of *gpus*; all nodes of the host if unknown."""
    known = {host.gpus.get(gpu, GpuFacts()).numa_node for gpu in gpus}
    near = {node for node in known if node is not None and node in host.nodes}
    return near or set(host.nodes)


def _divide_cores(
    host: HostFacts, nodes: Sequence[set[int]], weights: Sequence[int]
) -> tuple[set[int], set[int]]:
    """Return the cores of each job, near its GPUs. Jobs divide the cores of a common node in proportion to their GPUs."""
    result: tuple[set[int], set[int]] = (set(), set())
    for node, cores in host.nodes.items():
        if node in nodes[0] and node in nodes[1]:
            for run in _runs(sorted(cores)):
                # Even, in each run of numbers: both threads of a core stay with one job
                share = max(weights[0], 1) / (max(weights[0], 1) + max(weights[1], 1))
                cut = round(len(run) * share / 2) * 2
                result[0].update(run[:cut])
                result[1].update(run[cut:])
        else:
            for own, near in zip(result, nodes, strict=True):
                own.update(cores if node in near else ())
    return result


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Return the runs of consecutive numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def _divide_nics(host: HostFacts, gpus: Sequence[Iterable[str]]) -> list[tuple[str, ...]]:
    """Return the adapters nearest to each job's GPUs; a common adapter belongs to one of the jobs."""
    first, second = (
        {nic for gpu in own for nic in host.gpus.get(gpu, GpuFacts()).nics} for own in gpus
    )
    for nic in sorted(first & second):
        larger = first if len(first) > len(second) else second
        if len(larger) > 1:
            larger.discard(nic)
    return [tuple(sorted(first)), tuple(sorted(second))]
