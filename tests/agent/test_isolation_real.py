"""Facts of real processes: control groups, namespaces and mounts of this kernel, changed while the processes run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from gangline.agent.hardware.isolation_facts import IsolationReader
from gangline.contract.isolation import (
    BoundaryStatus,
    HeldGpu,
    HostFacts,
    JobOnHost,
    numbers_text,
    verify,
)

CGROUPS = Path("/sys/fs/cgroup")
#: Control groups of version 1, or the tree of version 2.
CPUSET = CGROUPS / "cpuset" if (CGROUPS / "cpuset").is_dir() else CGROUPS
IS_UNIFIED = (CGROUPS / "cgroup.controllers").exists()
DISKS = [
    path.read_text().strip()
    for path in Path("/sys/block").glob("*/dev")
    if (path.parent / "device").exists()
]
CORES = sorted(os.sched_getaffinity(0))
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access(CPUSET / "cgroup.procs", os.W_OK) or len(CORES) < 2,
    reason="needs root, writable control groups and two CPUs",
)
#: Unshares mounts and IPC, mounts a /dev and a /dev/shm with one GPU's node, and waits.
CHILD = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(result):
    if result: raise OSError(ctypes.get_errno(), "call")
own, number = sys.argv[1] == "own", int(sys.argv[2])
if own:
    call(libc.unshare(0x00020000 | 0x08000000))
    call(libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None))
    call(libc.mount(b"tmpfs", b"/dev", b"tmpfs", 0, b"mode=755"))
    os.mkdir("/dev/shm")
    call(libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, None))
    os.mknod(f"/dev/nvidia{number}", 0o020666, os.makedev(195, number))
print("ready", flush=True)
sys.stdin.read()
"""


class Pair:
    """Two processes, each in a control group, and optionally in namespaces of its own."""

    def __init__(self, *, own: bool = True) -> None:
        self.groups: list[Path] = []
        self.processes: list[subprocess.Popen[str]] = []
        self.reader = IsolationReader(Path("/proc"), Path("/sys"))
        for number in range(2):
            command = [sys.executable, "-c", CHILD, "own" if own else "shared", str(number)]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            self.processes.append(process)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            self.group("cpuset", number, "cpuset.cpus", str(CORES[number]))

    def group(self, controller: str, number: int, file: str, text: str) -> None:
        """Put a process into a control group of its own, after a write to one of its files."""
        root = CGROUPS if IS_UNIFIED else CGROUPS / controller
        folder = root / f"gangline-test-{os.getpid()}-{number}"
        if not folder.exists():
            folder.mkdir()
            self.groups.append(folder)
        if controller == "cpuset" and not (folder / "cpuset.mems").read_text().strip():
            (folder / "cpuset.mems").write_text((root / "cpuset.mems").read_text().strip() or "0")
        (folder / file).write_text(text)
        (folder / "cgroup.procs").write_text(str(self.processes[number].pid))

    def facts(self, number: int) -> Mapping[str, str]:
        self.reader.begin_turn()
        return self.reader.read(self.processes[number].pid)

    def verdicts(self) -> dict[str, BoundaryStatus]:
        jobs = [
            JobOnHost(
                f"job{number}",
                frozenset({HeldGpu(f"GPU-{number}")}),
                (self.facts(number),),
            )
            for number in range(2)
        ]
        return {v.boundary: v.verdict for v in verify(jobs[0], jobs[1], HostFacts())}

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()
        for folder in self.groups:
            with suppress(OSError):
                folder.rmdir()


@pytest.fixture
def pair() -> Iterator[Pair]:
    created = Pair()
    yield created
    created.close()


@pytest.fixture
def sharing_pair() -> Iterator[Pair]:
    created = Pair(own=False)
    yield created
    created.close()


def test_cpusets_of_the_kernel(pair: Pair) -> None:
    assert pair.verdicts()["cpus"] is BoundaryStatus.VERIFIED
    pair.group("cpuset", 1, "cpuset.cpus", numbers_text(CORES[:2]))
    assert pair.verdicts()["cpus"] is BoundaryStatus.VIOLATED


def test_an_affinity_is_no_boundary(pair: Pair) -> None:
    """The process itself may change it."""
    for number in range(2):
        pair.group("cpuset", number, "cpuset.cpus", numbers_text(CORES[:2]))
        os.sched_setaffinity(pair.processes[number].pid, {CORES[number]})
    assert pair.verdicts()["cpus"] is BoundaryStatus.VIOLATED


def test_mounts_and_namespaces_of_the_kernel(pair: Pair, sharing_pair: Pair) -> None:
    assert pair.verdicts()["shm"] is BoundaryStatus.VERIFIED
    assert sharing_pair.verdicts()["shm"] is BoundaryStatus.VIOLATED


def test_device_nodes_of_the_kernel(pair: Pair) -> None:
    assert [pair.facts(number)["gpus"] for number in range(2)] == ["0", "1"]
    assert pair.facts(0)["nodes"] == "own"


def test_a_renamed_node_counts_and_a_file_of_its_name_does_not(pair: Pair) -> None:
    """`docker run --device=/dev/nvidia1:/dev/nvidia0` looked like the first GPU."""
    dev = Path(f"/proc/{pair.processes[0].pid}/root/dev")
    os.mknod(dev / "nvidia7", 0o020666, os.makedev(195, 1))
    (dev / "nvidia3").touch()
    assert pair.facts(0)["gpus"] == "0-1"


@pytest.mark.skipif(
    not (CGROUPS / "devices/devices.list").exists(),
    reason="root finds no control groups of version 1",
)
def test_device_lists_of_the_kernel(pair: Pair) -> None:
    """A list that permits all shows no exceptions (Slurm 1 denies in this form): it proves nothing about a node."""
    pair.group("devices", 0, "devices.deny", "c 195:0 rw")
    assert (pair.facts(0)["gpus"], pair.facts(0)["nodes"]) == ("0", "own")
    pair.group("devices", 0, "devices.deny", "a")
    pair.group("devices", 0, "devices.allow", "c 195:0 m")
    assert (pair.facts(0)["gpus"], pair.facts(0)["nodes"]) == ("-", "list")
    pair.group("devices", 0, "devices.allow", "c 195:0 rw")
    assert (pair.facts(0)["gpus"], pair.facts(0)["nodes"]) == ("0", "list")


@pytest.mark.skipif(
    not (CGROUPS / "blkio/blkio.throttle.read_bps_device").exists() or not DISKS,
    reason="root finds no control groups of version 1, or no disk",
)
def test_limits_of_block_io_of_the_kernel(pair: Pair) -> None:
    """Limits of version 1 hold for direct I/O only."""
    for number in range(2):
        pair.group("blkio", number, "blkio.throttle.read_bps_device", f"{DISKS[0]} 1000000000")
    assert pair.verdicts()["block_io"] is BoundaryStatus.VIOLATED
    for number in range(2):
        pair.group("blkio", number, "blkio.throttle.write_iops_device", f"{DISKS[0]} 1000000")
    assert pair.verdicts()["block_io"] is BoundaryStatus.NOT_VERIFIED


def test_memory_nodes_that_all_processes_share(pair: Pair) -> None:
    """This machine may have one node: both then allocate on it."""
    assert pair.verdicts()["memory_nodes"] is BoundaryStatus.VIOLATED
