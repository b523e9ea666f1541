"""A host for the injected table: the real agent on a folder of a healthy, working H100 host.

Simulated are /sys, /proc and /dev (files), NVML (`tests/fake_nvml`), and a wire that can be cut.
Everything that reads, sends and judges is real.
"""

from __future__ import annotations

import copy
import fcntl
import functools
import os
import random
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.agent.sampler.real_agent import RealAgent
from tests.fake_nvml.build import build
from tests.fake_nvml.parts_scenario import process
from tests.fake_nvml.scenario import Gpu, Steps
from tests.hosts import HostFolder, unpack
from tests.hosts.reading import gpus_of
from tests.survival.faults import Faults

from .injected_cable import Cable

KIND = "h100-ib"
#: Values of which a working host shows the second step (idle, at work). The second step of any
#: other value is a fault.
AT_WORK = frozenset((
    "power", "event_reasons", "temperature", "utilization", "memory_utilization", "memory_used",
    "performance_state", "processes", "graphics_clock", "video_clock", "module_power", "pcie_generation",
))  # fmt: skip
FIELDS_AT_WORK = frozenset((82, 185, 186))
#: Degrees below the limit of a healthy GPU.
MARGIN_CELSIUS = 20
CLOCK_MEGAHERTZ = 1980
#: Spread of healthy parts of one model.
SPREAD = 0.03
#: Collectors that read this machine, not the folder.
NOT_OF_THE_FOLDER = ("filesystem_60s", "clock_10s", "nvme_60s")
PORTS = ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3")
#: The process in the folder's /proc that holds every GPU.
HOLDER_PID = 4242
#: Parent of host folders: in memory, because a real /sys is not on a disk either.
MEMORY = Path("/dev/shm")
KERNEL, USER = 0, 1


class KernelLogFile:
    """A FIFO in place of /dev/kmsg: one record per read, like the kernel."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)  # the folder's own, a plain file
        os.mkfifo(path)
        # Both ends are open, so that the agent never reads end of file, like on the kernel's log.
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        each_write_a_read = os.O_NONBLOCK | os.O_DIRECT
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, each_write_a_read)
        self._records: list[bytes] = []

    def write(self, text: str, facility: int = KERNEL) -> None:
        """Write a line as the kernel (or as a user)."""
        microseconds = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        head = f"{facility * 8 + 3},{len(self._records)},{microseconds},-"
        self._records.append(f"{head};{text}\n".encode())
        os.write(self._descriptor, self._records[-1])

    def again(self) -> None:
        """Write all records again for a reader that reopens the log, like the kernel."""
        for record in self._records:
            os.write(self._descriptor, record)

    def clear(self) -> None:
        """Clear the log, as a boot does."""
        self._records.clear()

    def close(self) -> None:
        os.close(self._descriptor)


class InjectedHostFolder:
    """One host with a GPU (`gpu`) and a port (`port`) for faults. Call `start` after creation."""

    def __init__(self, folder: Path, name: str, port: int, source: random.Random) -> None:
        """Create *folder*. *port*: of the aggregator on the loopback."""
        self.name, self.folder, self.source, self.port = name, folder, source, port
        folder.mkdir()
        self.gpus = healthy_gpus(source)
        self.gpu = source.choice(self.gpus)
        self.rdma = source.choice(PORTS)
        self.cable: Cable | None = None
        self.clock: Faults | None = None
        self._environment = {"GANGLINE_FAKE_NVML": str(folder / "scenario")}
        self._step = 0

    def lay_cable(self) -> None:
        """Connect its agent by a wire that can be cut. Call this before the start."""
        self.cable = Cable(self.port)

    def keep_clock(self) -> None:
        """Give it a wall clock that can be set. Call this before the start."""
        self.clock = Faults(self.folder, Path("/nowhere"))
        self._environment |= self.clock.environment

    def start(self, **settings: object) -> None:
        at = self.cable.port if self.cable else self.port
        given: dict[str, object] = {
            "host": self.name, "aggregator": f"127.0.0.1:{at}", "dev_root": self.folder / "dev",
            "run_root": self.folder / "run_root", "metrics_listen": "",
            "collectors_off": list_of(NOT_OF_THE_FOLDER),
        }  # fmt: skip
        self.agent = RealAgent(self.folder, self.gpus, **(given | settings))
        make_healthy(HostFolder(self.folder))
        self.log = KernelLogFile(self.folder / "dev/kmsg")
        self.agent.environment = self._environment
        self.boot()
        self.agent.start()

    def boot(self) -> None:
        """Give the boot an id of its own and an empty kernel log."""
        self.write("proc/sys/kernel/random/boot_id", str(_uuid(self.source)))
        self.log.clear()

    def step(self) -> None:
        """Advance its GPUs to their next values."""
        self._step += 1
        self.agent.scenario.step(self._step)

    def write(self, path: str, text: str) -> None:
        """Write *text* to a file of the folder, in place: descriptors of sysfs files are kept open."""
        place = (self.folder / path).resolve()
        place.parent.mkdir(parents=True, exist_ok=True)
        with open(place, "r+" if place.exists() else "w") as file:
            file.write(text + "\n")
            file.truncate()

    def close(self) -> None:
        """Stop the agent and close everything. Call this after `start`."""
        self.agent.kill()
        self.log.close()
        if self.cable:
            self.cable.close()


def list_of(names: tuple[str, ...]) -> str:
    """Return *names* in the list syntax of the settings' parser."""
    return "[" + ",".join(f'"{name}"' for name in names) + "]"


def healthy_gpus(source: random.Random) -> list[Gpu]:
    """Return the host's GPUs, working and healthy; their values for later steps can be set."""
    devices = copy.deepcopy(_model())
    for gpu in devices:
        clock = round(CLOCK_MEGAHERTZ * (1 - source.uniform(0, SPREAD)))
        gpu.values["sm_clock"] = clock
        gpu.uuid = f"GPU-{_uuid(source)}"
    return devices


@contextmanager
def folder(within: Path | None = None) -> Iterator[Path]:
    """Yield a temporary folder, in memory if *within* is writable."""
    place = within if within and os.access(within, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="gangline-", dir=place) as created:
        yield Path(created)


def prepare() -> None:
    """Create once the parts shared by all hosts, so that threads can create hosts concurrently."""
    with folder(MEMORY) as place:
        build(place)  # keeps the compiled library
    _model()


@functools.cache
def _model() -> list[Gpu]:
    with folder(MEMORY) as place:
        devices = gpus_of(unpack(KIND, place))
    for gpu in devices:
        gpu.values = {name: _steady(steps, name in AT_WORK) for name, steps in gpu.values.items()}
        gpu.values["margin"] = MARGIN_CELSIUS
        gpu.fields = {
            number: (kind, _steady(steps, number in FIELDS_AT_WORK))
            for number, (kind, steps) in gpu.fields.items()
        }
        lines = [_steady_line(line) for line in gpu.lines if not line.startswith("process ")]
        gpu.lines = [*lines, process(HOLDER_PID)]
    return devices


def _uuid(source: random.Random) -> uuid.UUID:
    return uuid.UUID(int=source.getrandbits(128))


def _steady(steps: Steps, at_work: bool) -> Steps:
    return steps if isinstance(steps, int | str) else steps[1 if at_work else 0]


def _steady_line(line: str) -> str:
    """Return `scoped LINK FIELD TYPE VALUES` with the first value alone."""
    parts = line.split()
    return " ".join(parts[:5]) if parts[0] == "scoped" else line


def make_healthy(host: HostFolder) -> None:
    """Remove the faults of the recorded folder, which was made for parsers."""
    root = host.root
    memory = root / "proc/meminfo"
    lines = memory.read_text().splitlines(keepends=True)
    memory.write_text("".join(line for line in lines if not line.startswith("HardwareCorrupted")))
    for function in (root / "sys/bus/pci/devices").iterdir():
        for what in ("speed", "width"):
            if (most := function / f"max_link_{what}").exists():
                shutil.copyfile(most, function / f"current_link_{what}")
    first, *others = sorted((root / "sys/class/infiniband").iterdir())
    for other in others:
        shutil.copytree(first / "ports", other / "ports", dirs_exist_ok=True)
