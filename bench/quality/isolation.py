"""`make evaluate`, isolation: layouts of two pods, each violated in one boundary, through the agent's reader and VerifyIsolation."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench.quality.markdown import table
from bench.quality.progress import Progress
from gangline.agent.collectors.process_listing import GpuProcess
from tests.isolated_host import (
    DISK,
    GPUS,
    INFERENCE,
    PIDS,
    TRAINING,
    IsolatedHost,
    ask,
    statuses,
)

#: Further boundaries that cannot hold when both jobs use one GPU.
_ONE_GPU = frozenset({"mig", "mps", "pcie_switch", "iommu", "devices"})
_ONE_DIVIDED_GPU = frozenset({"pcie_switch", "iommu"})


class Layout(NamedTuple):
    """A change of a host whose boundaries hold. `also`: further boundaries that fail with `boundary`."""

    text: str
    boundary: str
    change: Callable[[IsolatedHost], object]
    also: frozenset[str] = frozenset()
    v1: bool = False


def _same_group(host: IsolatedHost) -> None:
    link = host.roots.sys / "bus/pci/devices/0000:96:00.0/iommu_group"
    link.unlink()
    link.symlink_to(host.roots.sys / "kernel/iommu_groups/40")


def _pass_through(host: IsolatedHost) -> None:
    for group in (40, 42):
        (host.roots.sys / f"kernel/iommu_groups/{group}/type").write_text("identity\n")


def _neighbor_gpu(host: IsolatedHost) -> None:
    host.holds[INFERENCE] = [GpuProcess(GPUS[1], PIDS[INFERENCE])]
    host.hide(INFERENCE, "root/dev/nvidia2")
    host.node(INFERENCE, "nvidia1")


def _open_adapter(rdma_max: str) -> Callable[[IsolatedHost], None]:
    def change(host: IsolatedHost) -> None:
        host.node(INFERENCE, "infiniband/uverbs0")
        host.group(INFERENCE, rdma=rdma_max)

    return change


def _virtual_function(host: IsolatedHost) -> None:
    (host.roots.sys / "bus/pci/devices/0000:98:00.0/physfn").symlink_to("../0000:18:00.0")


def _taskset(host: IsolatedHost) -> None:
    host.group(TRAINING, cpus="0-63")
    host.group(INFERENCE, cpus="0-63")


def _empty_cpuset(host: IsolatedHost) -> None:
    host.group(INFERENCE, cpus="")
    (host.roots.sys / "fs/cgroup/cpuset.cpus.effective").write_text("0-63\n")


def _overlap(host: IsolatedHost) -> None:
    host.group(INFERENCE, cpus="12-31,48-63")
    host.status(INFERENCE, "Cpus_allowed_list", "12-31,48-63")


def _two_processes(host: IsolatedHost) -> None:
    host.share("40", "40")
    host.start(INFERENCE, 4713, 1)
    (host.proc / "4713/root/dev/nvidia2").rename(host.proc / "4713/root/dev/nvidia0")
    host.holds[INFERENCE].append(GpuProcess(GPUS[0], 4713))
    host.threads[4713] = "40"


def _all_nodes(host: IsolatedHost) -> None:
    for number in range(len(GPUS)):
        host.node(INFERENCE, f"nvidia{number}")


def _privileged(host: IsolatedHost) -> None:
    _all_nodes(host)
    host.rules(INFERENCE, "a *:* rwm\n")


def _other_instance(host: IsolatedHost) -> None:
    host.divide(1, 2)
    host.node(INFERENCE, "nvidia-caps/nvidia-cap21")


LAYOUTS = (
    Layout("both on a GPU, time-sliced", "mig", lambda h: h.share("", ""), _ONE_GPU),
    Layout("both in one GPU instance, in compute instances of their own", "mig", lambda h: h.divide(1, 1), _ONE_GPU),
    Layout("MPS with 60 % for each job", "mps", lambda h: h.share("60", "60"), _ONE_GPU),
    Layout("MPS with 40 % for each of three processes", "mps", _two_processes, _ONE_GPU),
    Layout("four cores in both cpusets", "cpus", _overlap),
    Layout("four cores in both cpusets, version 1", "cpus", _overlap, frozenset({"block_io"}), v1=True),
    Layout("one cpuset for both, kept apart by taskset", "cpus", _taskset),
    Layout("an empty cpuset: the cores of the group above", "cpus", _empty_cpuset),
    Layout("inference may use memory of both nodes", "memory_nodes", lambda h: h.status(INFERENCE, "Mems_allowed_list", "0-1")),
    Layout("GPUs behind one switch", "pcie_switch", _neighbor_gpu),
    Layout("inference can open the adapter of training", "nic", _open_adapter("mlx5_0 hca_handle=1 hca_object=9\n")),
    Layout("adapters are functions of one card", "nic", _virtual_function),
    Layout("GPUs in one IOMMU group", "iommu", _same_group),
    Layout("iommu=pt", "iommu", _pass_through),
    Layout("one adapter, no limit in rdma.max", "rdma_limits", _open_adapter("mlx5_0 hca_handle=max hca_object=max\n"), frozenset({"nic"})),
    Layout("one adapter, handles limited but not objects", "rdma_limits", _open_adapter("mlx5_0 hca_handle=2 hca_object=max\n"), frozenset({"nic"})),
    Layout("no limit in io.max", "block_io", lambda h: h.group(TRAINING, io="")),
    Layout("io.max limits writes only", "block_io", lambda h: h.group(INFERENCE, io=f"{DISK} rbps=max wbps=1048576 riops=max wiops=max\n")),
    Layout("/dev/shm of the host in both", "shm", lambda h: h.mounts(PIDS[INFERENCE], shm="0:60 /", dev="0:71 /")),
    Layout("a folder of the other's /dev/shm", "shm", lambda h: h.mounts(PIDS[INFERENCE], shm="0:60 /llm", dev="0:71 /")),
    Layout("one IPC namespace", "shm", lambda h: h.link(PIDS[INFERENCE], "ipc:[4026532000]")),
    Layout("all GPUs in the /dev of inference", "devices", _all_nodes),
    Layout("a privileged container, version 1", "devices", _privileged, frozenset({"block_io"}), v1=True),
    Layout("the capability of the other's GPU instance", "devices", _other_instance, _ONE_DIVIDED_GPU),
)  # fmt: skip


class Result(NamedTuple):
    """The answer for a layout: its violated boundaries, and those wrongly VERIFIED."""

    layout: Layout
    violated: tuple[str, ...]
    wrongly_verified: tuple[str, ...]
    further: tuple[str, ...]  # not VERIFIED, although they hold
    evidence: str

    @property
    def is_named(self) -> bool:
        return self.layout.boundary in self.violated


def run(layout: Layout, folder: Path) -> Result:
    """Return the answer for *layout*, built in *folder*."""
    host = IsolatedHost(folder, v1=layout.v1)
    layout.change(host)
    response = ask(host.fleet())
    verdicts = statuses(response)
    broken = layout.also | {layout.boundary}
    return Result(
        layout,
        tuple(name for name, status in verdicts.items() if status == "violated"),
        tuple(name for name in sorted(broken) if verdicts[name] == "verified"),
        tuple(name for name in verdicts if verdicts[name] != "verified" and name not in broken),
        next(c.evidence for c in response.boundaries if c.boundary == layout.boundary),
    )


def section(seed: int, progress: Progress) -> str:
    """Return the section. Nothing in it is random."""
    results: list[Result] = []
    for index, layout in enumerate(LAYOUTS):
        progress("layouts", index / len(LAYOUTS))
        with tempfile.TemporaryDirectory() as folder:
            results.append(run(layout, Path(folder)))
    named = sum(result.is_named for result in results)
    wrong = sum(len(result.wrongly_verified) for result in results)
    further = sum(len(result.further) for result in results)
    summary = table(
        ["measure", "result", "target"],
        [
            ["the violated boundary is named", f"{named} of {len(results)}", "all"],
            ["boundaries that do not hold, but are VERIFIED", str(wrong), "0"],
            ["boundaries that hold, but are not VERIFIED", str(further), ""],
        ],
    )
    rows = [
        [r.layout.text, r.layout.boundary, "yes" if r.is_named else "NO", r.evidence]
        for r in results
    ]
    cases = table(["layout", "boundary", "named", "evidence"], rows)
    return f"""## Isolation

    python -m bench.quality.interference --only isolation

*Made by hand*: a host with four GPUs, two switches, two NUMA nodes and two pods in a folder, whose boundaries all hold, and
{len(results)} changes of it. The agent's collector reads the folder, the fleet takes its events, and VerifyIsolation answers.
`tests/agent/test_isolation_real.py` does the same with control groups, namespaces and mounts of the kernel.

{summary}

{cases}
"""
