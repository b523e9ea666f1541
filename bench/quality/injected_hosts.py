"""A host for the injected table: the real agent on a folder that shows a healthy, working H100 host.

What is not real is the hardware: /sys, /proc and /dev are files, NVML is the stand-in of `tests/fake_nvml`, and the
wire may be a relay that goes silent. All that reads it, sends it and judges it is.
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
#: Of the stand-in's two steps, idle and at work, a host at work shows the second of these; of all others the first: those
#: are what goes wrong.
AT_WORK = frozenset(
    [
        "power",
        "event_reasons",
        "temperature",
        "utilization",
        "memory_utilization",
        "memory_used",
        "performance_state",
        "processes",
        "graphics_clock",
        "video_clock",
        "module_power",
        "pcie_generation",
    ]
)
FIELDS_AT_WORK = frozenset((82, 185, 186))
#: Degrees to the limit of a GPU that is well.
MARGIN_CELSIUS = 20
CLOCK_MEGAHERTZ = 1980
#: Healthy parts of one model differ by so much.
SPREAD = 0.03
#: These ask this machine, not the folder.
NOT_OF_THE_FOLDER = ("filesystem_60s", "clock_10s", "nvme_60s")
PORTS = ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3")
#: The process in the folder's /proc that holds every GPU.
HOLDER_PID = 4242
#: A host's folder stands there, as its /sys is on no disk either.
MEMORY = Path("/dev/shm")
KERNEL, USER = 0, 1


class KernelLogFile:
    """A FIFO in the place of /dev/kmsg: a record a read, as the kernel gives them."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)  # the folder's own, a plain file
        os.mkfifo(path)
        # Open for both ends, it is never at its end for the agent, as the kernel's log never is.
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        each_write_a_read = os.O_NONBLOCK | os.O_DIRECT
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, each_write_a_read)
        self._records: list[bytes] = []

    def write(self, text: str, facility: int = KERNEL) -> None:
        """Have the kernel (or a user) say a line."""
        microseconds = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        head = f"{facility * 8 + 3},{len(self._records)},{microseconds},-"
        self._records.append(f"{head};{text}\n".encode())
        os.write(self._descriptor, self._records[-1])

    def again(self) -> None:
        """Show who opens the log again all that is in it, as the kernel does."""
        for record in self._records:
            os.write(self._descriptor, record)

    def clear(self) -> None:
        """The machine boots."""
        self._records.clear()

    def close(self) -> None:
        os.close(self._descriptor)


class InjectedHostFolder:
    """One host, of which a GPU (`gpu`) and a port (`port`) are chosen to become sick. Made, then `start`."""

    def __init__(self, folder: Path, name: str, port: int, source: random.Random) -> None:
        """*port*: of the aggregator on the loopback. *folder* is made."""
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
        """Have its agent reach the aggregator by a wire that can be cut. Before the start."""
        self.cable = Cable(self.port)

    def keep_clock(self) -> None:
        """Have its wall clock be one that can be set. Before the start."""
        self.clock = Faults(self.folder, Path("/nowhere"))
        self._environment |= self.clock.environment

    def start(self, **settings: object) -> None:
        """Start the agent."""
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
        """Give the machine's boot an id of its own. Its kernel log is empty."""
        self.write("proc/sys/kernel/random/boot_id", str(_uuid(self.source)))
        self.log.clear()

    def step(self) -> None:
        """Have its GPUs show what they show next."""
        self._step += 1
        self.agent.scenario.step(self._step)

    def write(self, path: str, text: str) -> None:
        """Have a file of the folder hold *text*. In place: descriptors of sysfs files are kept open."""
        place = (self.folder / path).resolve()
        place.parent.mkdir(parents=True, exist_ok=True)
        with open(place, "r+" if place.exists() else "w") as file:
            file.write(text + "\n")
            file.truncate()

    def close(self) -> None:
        """End all of it; it was started."""
        self.agent.kill()
        self.log.close()
        if self.cable:
            self.cable.close()


def list_of(names: tuple[str, ...]) -> str:
    """Return names as the settings' parser takes a list."""
    return "[" + ",".join(f'"{name}"' for name in names) + "]"


def healthy_gpus(source: random.Random) -> list[Gpu]:
    """Return the host's GPUs, at work and well; each can be given what it shows from step 1 on."""
    devices = copy.deepcopy(_model())
    for gpu in devices:
        clock = round(CLOCK_MEGAHERTZ * (1 - source.uniform(0, SPREAD)))
        gpu.values["sm_clock"] = clock
        gpu.uuid = f"GPU-{_uuid(source)}"
    return devices


@contextmanager
def folder(within: Path | None = None) -> Iterator[Path]:
    """Give a folder that goes with the context; in memory where this machine has it."""
    place = within if within and os.access(within, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="gangline-", dir=place) as made:
        yield Path(made)


def prepare() -> None:
    """Make once what all hosts have alike: threads may then make hosts side by side."""
    with folder(MEMORY) as place:
        build(place)  # what it compiles is kept
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
    """`scoped LINK FIELD TYPE VALUES`: the first value alone."""
    parts = line.split()
    return " ".join(parts[:5]) if parts[0] == "scoped" else line


def make_healthy(host: HostFolder) -> None:
    """Take away what is wrong with the recorded folder: it was made to be read, not to be well."""
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
