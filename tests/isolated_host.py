"""A host in a folder with two isolated pods, and what breaks one boundary: /proc, /sys, and the path to VerifyIsolation."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gangline.agent.collectors.gpu_processes import GpuJobs
from gangline.agent.collectors.process_listing import GpuProcess
from gangline.agent.inventory import host as inventory
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.scoring.evaluate import Judgement
from gangline.aggregator.service.interference import InterferenceService
from gangline.contract.wire import interference_pb2 as wire
from gangline.contract.wire.telemetry_pb2 import Device, HealthEvent
from tests.agent.jobs_host import BOOT, JobsHost

#: Four GPUs: two behind each of two switches, each switch on a NUMA node.
GPUS = tuple(f"GPU-0000000{number}-0000-0000-0000-000000000000" for number in range(4))
BUSES = ("16", "17", "96", "97")
CORES = ("0-15,32-47", "16-31,48-63")
DISK = "259:0"
TRAINING, INFERENCE = "ml/trainer-0", "serving/llm-0"
PIDS = {TRAINING: 4711, INFERENCE: 4712}
UIDS = {
    TRAINING: "11111111-1111-4111-8111-111111111111",
    INFERENCE: "22222222-2222-4222-8222-222222222222",
}
CONTAINER = {TRAINING: "a" * 64, INFERENCE: "b" * 64}
SNAPSHOT = Judgement(version=3, computed_ns=1, horizon_seconds=1.0, hosts=(), names=("h0",))


class IsolatedHost(JobsHost):
    """Training on the first GPU, inference on the third; every boundary holds. *v1*: control groups of version 1."""

    def __init__(self, folder: Path, *, v1: bool = False) -> None:
        super().__init__(folder)
        self.v1 = v1
        self.dev = folder / "dev"
        self.mig: set[str] = set()
        self.threads: dict[int, str] = {}
        self.memory = ""
        self.holds: dict[str, list[GpuProcess]] = {
            TRAINING: [GpuProcess(GPUS[0], PIDS[TRAINING])],
            INFERENCE: [GpuProcess(GPUS[2], PIDS[INFERENCE])],
        }
        self._groups_root = self.roots.sys / "fs/cgroup"
        self._groups_root.mkdir(parents=True)
        if not v1:
            (self._groups_root / "cgroup.controllers").write_text(
                "cpuset cpu io memory pids rdma\n"
            )
        for number, bus in enumerate(BUSES):
            node = number // 2
            self._function(
                f"0000:{bus}:00.0",
                f"0000:{'15' if node == 0 else '95'}:00.0",
                "0x030200",
                node,
                40 + number,
            )
            gpu = self.proc / f"driver/nvidia/gpus/0000:{bus}:00.0"
            gpu.mkdir(parents=True)
            (gpu / "information").write_text(
                f"GPU UUID: \t {GPUS[number]}\nDevice Minor: \t {number}\n"
            )
        for node, bus in enumerate(("18", "98")):
            address = f"0000:{bus}:00.0"
            self._function(
                address, f"0000:{'15' if node == 0 else '95'}:00.0", "0x020700", node, 50 + node
            )
            verbs = self.roots.sys / f"class/infiniband_verbs/uverbs{node}"
            verbs.mkdir(parents=True)
            (verbs / "ibdev").write_text(f"mlx5_{node}\n")
            rdma = self.roots.sys / f"class/infiniband/mlx5_{node}"
            rdma.mkdir(parents=True)
            (rdma / "device").symlink_to(self.roots.sys / "bus/pci/devices" / address)
            cores = self.roots.sys / f"devices/system/node/node{node}"
            cores.mkdir(parents=True)
            (cores / "cpulist").write_text(f"{CORES[node]}\n")
        disk = self.roots.sys / "block/nvme0n1"
        (disk / "device").mkdir(parents=True)
        (disk / "dev").write_text(f"{DISK}\n")
        for index, job in enumerate((TRAINING, INFERENCE)):
            namespace, pod = job.split("/")
            (self.proc.parent / f"var/log/pods/{namespace}_{pod}_{UIDS[job]}").mkdir(parents=True)
            self.start(job, PIDS[job], index)

    def _function(self, address: str, switch: str, code: str, node: int, group: int) -> None:
        """Create a PCI function behind a port of *switch*."""
        root = "pci0000:14" if switch.startswith("0000:15") else "pci0000:94"
        port = f"{root[3:]}:01.0"
        below = switch.replace(":00.0", f":0{address[6]}.{address[6]}")
        device = self.roots.sys / "devices" / root / port / switch / below / address
        device.mkdir(parents=True)
        (device / "class").write_text(f"{code}\n")
        (device / "vendor").write_text("0x10de\n")
        (device / "numa_node").write_text(f"{node}\n")
        kind = self.roots.sys / f"kernel/iommu_groups/{group}"
        kind.mkdir(parents=True, exist_ok=True)
        (kind / "type").write_text("DMA-FQ\n")
        (device / "iommu_group").symlink_to(kind)
        devices = self.roots.sys / "bus/pci/devices"
        devices.mkdir(parents=True, exist_ok=True)
        (devices / address).symlink_to(device)

    def start(self, job: str, pid: int, index: int) -> None:
        """Create a process of *job* with facts of its own; *index* 0: training's, 1: inference's."""
        group = f"/kubepods.slice/kubepods-pod{UIDS[job].replace('-', '_')}.slice/cri-containerd-{CONTAINER[job]}.scope"
        lines = f"0::{group}\n"
        if self.v1:
            controllers = ("cpuset", "blkio", "devices", "rdma")
            lines = "".join(f"{n}:{name}:{group}\n" for n, name in enumerate(controllers, 2))
        folder = self.process(pid, lines, user=0)
        with (folder / "status").open("a") as status:
            status.write(f"Cpus_allowed_list:\t{CORES[index]}\nMems_allowed_list:\t{index}\n")
        (folder / "ns").mkdir(exist_ok=True)
        self.link(pid, f"ipc:[{4026532000 + index}]")
        self.mounts(pid, shm=f"0:{60 + index} /", dev=f"0:{70 + index} /")
        root = folder / "root/dev"
        (root / "infiniband").mkdir(parents=True, exist_ok=True)
        (root / f"nvidia{2 * index}").touch()
        (root / "nvidiactl").touch()
        (root / f"infiniband/uverbs{index}").touch()
        self.group(
            job,
            cpus=CORES[index],
            io=f"{DISK} rbps=1048576 wbps=1048576 riops=max wiops=max\n",
            rdma=f"mlx5_{index} hca_handle=2 hca_object=2000\n",
        )
        if self.v1:
            self.rules(job, f"c 195:{2 * index} rw\nc 195:255 rw\nc 231:{192 + index} rw\n")

    def link(self, pid: int, namespace: str) -> None:
        path = self.proc / str(pid) / "ns/ipc"
        path.unlink(missing_ok=True)
        path.symlink_to(namespace)

    def mounts(self, pid: int, *, shm: str, dev: str, kind: str = "tmpfs") -> None:
        (self.proc / str(pid) / "mountinfo").write_text(
            "100 1 0:50 / / rw - overlay overlay rw\n"
            f"101 100 {dev} /dev rw,nosuid - {kind} {kind} rw\n"
            f"102 101 {shm} /dev/shm rw,nosuid - tmpfs shm rw\n"
        )

    def folder_of(self, job: str, controller: str) -> Path:
        """Return the control group of the job's container."""
        pod = f"kubepods.slice/kubepods-pod{UIDS[job].replace('-', '_')}.slice/cri-containerd-{CONTAINER[job]}.scope"
        folder = self._groups_root / (f"{controller}/{pod}" if self.v1 else pod)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def group(
        self, job: str, *, cpus: str | None = None, io: str | None = None, rdma: str | None = None
    ) -> None:
        """Write the files of a job's control group."""
        if cpus is not None:
            name = "cpuset.effective_cpus" if self.v1 else "cpuset.cpus.effective"
            (self.folder_of(job, "cpuset") / name).write_text(f"{cpus}\n")
        if io is not None and self.v1:
            limit = f"{DISK} 1048576\n" if io else ""
            for direction in ("read", "write"):
                (
                    self.folder_of(job, "blkio") / f"blkio.throttle.{direction}_bps_device"
                ).write_text(limit)
        elif io is not None:
            (self.folder_of(job, "io") / "io.max").write_text(io)
        if rdma is not None:
            (self.folder_of(job, "rdma") / "rdma.max").write_text(rdma)

    def rules(self, job: str, text: str) -> None:
        (self.folder_of(job, "devices") / "devices.list").write_text(text)

    def status(self, job: str, key: str, value: str) -> None:
        """Change `Cpus_allowed_list` or `Mems_allowed_list` of a job's process."""
        path = self.proc / str(PIDS[job]) / "status"
        kept = [line for line in path.read_text().splitlines() if not line.startswith(f"{key}:")]
        path.write_text("\n".join([*kept, f"{key}:\t{value}", ""]))

    def node(self, job: str, name: str) -> None:
        """Show a device node to a job."""
        path = self.proc / str(PIDS[job]) / "root/dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def hide(self, job: str, name: str) -> None:
        path = self.proc / str(PIDS[job]) / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def divide(self, first: int, second: int) -> None:
        """Put both jobs into GPU instances of the first GPU."""
        self.mig.add(GPUS[0])
        self.holds = {
            TRAINING: [GpuProcess(GPUS[0], PIDS[TRAINING], first, 0)],
            INFERENCE: [GpuProcess(GPUS[0], PIDS[INFERENCE], second, 0)],
        }
        (self.proc / str(PIDS[INFERENCE]) / "root/dev/nvidia2").rename(
            self.proc / str(PIDS[INFERENCE]) / "root/dev/nvidia0"
        )
        for instance, minor, job in ((first, 21, TRAINING), (second, 30, INFERENCE)):
            access = self.proc / f"driver/nvidia/capabilities/gpu0/mig/gi{instance}/access"
            access.parent.mkdir(parents=True, exist_ok=True)
            access.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 256\n")
            self.node(job, f"nvidia-caps/nvidia-cap{minor}")

    def share(self, *threads: str, memory: str = "0=1000MB") -> None:
        """Put both jobs onto the first GPU, with these limits of MPS; "": none."""
        self.holds = {job: [GpuProcess(GPUS[0], pid)] for job, pid in PIDS.items()}
        self.hide(INFERENCE, "root/dev/nvidia2")
        self.node(INFERENCE, "nvidia0")
        self.threads, self.memory = dict(zip(PIDS.values(), threads, strict=True)), memory

    def devices(self) -> list[Device]:
        """Return the inventory; NVML's part of it is written here."""
        found = [
            *inventory.pcie_functions(self.roots), *inventory.numa_nodes(self.roots), *inventory.disks(self.roots),
        ]  # fmt: skip
        devices = [Device(kind=d.kind, key=d.key, attributes=d.attributes) for d in found]
        for number, gpu in enumerate(GPUS):
            attributes = {
                "pci_address": f"0000:{BUSES[number]}:00.0",
                "minor_number": str(number),
                "mig_mode": str(int(gpu in self.mig)),
            }
            devices.append(Device(kind="gpu", key=gpu, attributes=attributes))
        return devices

    def all_holdings(self) -> list[GpuProcess]:
        return [held for holdings in self.holds.values() for held in holdings]

    def observed(self, collector: GpuJobs | None = None, turns: int = 4) -> list[HealthEvent]:
        """Return the events of some turns of the agent's collector."""
        collector = collector or self.collector()
        for _ in range(turns):
            self.turn(collector, *self.all_holdings(), gpus=GPUS)
            for identity in collector._processes.identities():
                if self.threads.get(identity[0]):
                    limits = {"mps_threads": self.threads[identity[0]]}
                    limits |= {"mps_memory": self.memory} if self.memory else {}
                    collector._ranks_of[identity] = limits
                    collector._isolation.set_limits(identity, limits)
                    collector._is_behind = True
        return self.told()

    def fleet(self, events: Sequence[HealthEvent] | None = None) -> Fleet:
        """Return a fleet that knows the host's inventory and its jobs, as the agent reports them."""
        fleet = Fleet(epoch=7)
        boot = bytes.fromhex(BOOT.replace("-", ""))
        fleet.register("h0", simulated=False, boot_id=boot, devices=self.devices())
        for event in self.observed() if events is None else events:
            fleet.observe_event("h0", event, 10**18)
        return fleet


def ask(
    fleet: Fleet | None,
    training: str = TRAINING,
    inference: str = INFERENCE,
    snapshot: Judgement | None = None,
    **fields: Any,
) -> wire.VerifyIsolationResponse:
    """Return the answer of VerifyIsolation."""

    class Source:
        pass

    source: Any = Source()
    source.snapshot = replace(snapshot or SNAPSHOT)
    service: Any = InterferenceService(source, fleet)
    named: dict[str, Any] = {"node": "nodes/h0", "training": training, "inference": inference}
    request = wire.VerifyIsolationRequest(**(named | fields))
    response: wire.VerifyIsolationResponse = asyncio.run(service.VerifyIsolation(request, None))
    return response


def statuses(response: wire.VerifyIsolationResponse) -> dict[str, str]:
    """Return boundary -> status, in lower case."""
    prefix = "BOUNDARY_STATUS_"
    return {
        check.boundary: wire.BoundaryStatus.Name(check.status).removeprefix(prefix).lower()
        for check in response.boundaries
    }
