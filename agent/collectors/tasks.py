"""Processes stuck in the kernel (state D), especially those that use a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ...contract.block import Block
from ...ext.hostfiles import Glance
from ..collector import ExcludingCollector, NoData
from ..hardware import processes as tasks
from ..hardware.files import OpenFile, Roots, names_in, read_unsigned
from ..hardware.proc_files import parse_first_decimal
from ..hardware.processes import ProcessScanner, TaskStat
from .block_writer import row_writer

#: Per turn: processes that are read, and threads of GPU holders.
PROCESSES_MAX = 16384
THREADS_MAX = 4096
#: Known processes, neither blocked nor on a GPU, that are read per collection.
READS_MAX = 512
#: Descriptors of a process that are checked, from the first: a driver is opened before files and
#: sockets.
DESCRIPTORS_MAX = 512
#: A process is checked for an open GPU every _CHECK_TURNS, because each descriptor is a link to
#: read; less often if that exceeds _CHECKS_MAX processes per turn.
_CHECK_TURNS = 6
_CHECKS_MAX = 512
#: Prefix of the GPUs' device files, which have the same names in a container.
_GPU = "nvidia"
HIDEPID = (
    "/proc hides the processes of other users (hidepid): open it with "
    "ProtectProc=default in the agent's unit, or with SupplementaryGroups= the gid= of the mount of /proc"
)
_HIDDEN = (
    "which GPU processes of other users are blocked is not shown: open it with "
    "AmbientCapabilities=CAP_SYS_PTRACE in the agent's unit"
)


#: In the order of `BlockedTasks.collect`.
_COLUMNS = (
    "tasks.processes_count",
    "tasks.blocked_count",
    "tasks.blocked_kernel_count",
    "tasks.zombies_count",
    "tasks.hung_detected_count",
    "tasks.blocked_longest_seconds",
    "tasks.gpu_holders_count",
    "tasks.blocked_gpu_count",
    "tasks.blocked_gpu_longest_seconds",
)


class BlockedTimes:
    """When each task that is in uninterruptible wait was first seen in it."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], float] = {}

    def observe(
        self, blocked: Iterable[TaskStat], now_seconds: float
    ) -> dict[tuple[int, int], float]:
        """Return the seconds since each of these tasks was first seen blocked, by its identity.

        A task that is blocked at two checks may have run between them.
        """
        self._first = {
            task.identity: self._first.get(task.identity, now_seconds) for task in blocked
        }
        return {
            identity: max(0.0, now_seconds - first_seconds)
            for identity, first_seconds in self._first.items()
        }


class GpuHolders:
    """The processes that have a GPU open, looked up periodically.

    A killed process closes its descriptors while it exits; if the driver blocks it there, it shows
    no descriptors but still has the GPU. So such a process remains a holder until it has ended.
    """

    def __init__(self, proc: Path, dev: Path) -> None:
        self._proc, self._dev = proc, dev
        self._device_folder = Glance(dev)
        self._last_change_key: int | None = None
        self._turn = 0
        #: Identity -> whether the process holds a GPU; None: hidden.
        self._holding: dict[tuple[int, int], bool | None] = {}
        #: Whether the host has a GPU.
        self.has_gpus = False

    @property
    def is_hidden(self) -> bool:
        return None in self._holding.values()

    def holds(self, task: TaskStat) -> bool:
        """Return whether the task held a GPU at its last check."""
        return bool(self._holding.get(task.identity))

    def find(self, processes: Sequence[TaskStat]) -> list[TaskStat]:
        """Return the processes that hold a GPU: new ones at once, others every few turns."""
        self._turn += 1
        before, self._last_change_key = self._last_change_key, self._device_folder.look()
        if before != self._last_change_key:
            numbers = [n[len(_GPU) :] for n in names_in(self._dev) if n.startswith(_GPU)]
            self.has_gpus = any(number.isdecimal() for number in numbers)
        candidates = [task for task in processes if self.has_gpus and not task.is_kernel]
        turns = max(_CHECK_TURNS, -(-len(candidates) // _CHECKS_MAX))
        self._holding = {
            task.identity: self._check(task)
            if task.identity not in self._holding or (task.number + self._turn) % turns == 0
            else self._holding[task.identity]
            for task in candidates
        }
        return [task for task in candidates if self.holds(task)]

    def _check(self, task: TaskStat) -> bool | None:
        try:
            is_open = tasks.has_open_device(
                self._proc / str(task.number), f"/dev/{_GPU}", DESCRIPTORS_MAX
            )
        except PermissionError:
            return None
        return self.holds(task) if is_open is None else is_open


def hides_processes(processes: Iterable[TaskStat]) -> bool:
    """Return whether /proc hides processes: PID 1 always exists."""
    return all(task.number != 1 for task in processes)


class BlockedTasks(ExcludingCollector):
    """Counts tasks in uninterruptible wait (D) and their durations, from /proc.

    Every thread is read for GPU holders, only the main thread for other processes. Thousands of
    other processes are read in parts, so that a blocked one may be seen some turns later
    (`ProcessScanner`).
    """

    name = "tasks_10s"
    enters_driver = True  # no driver, but thousands of small files: not in the daemon's own thread

    def __init__(self, roots: Roots) -> None:
        self._proc = roots.proc
        self._processes = ProcessScanner(roots.proc, PROCESSES_MAX, READS_MAX)
        self._uptime = OpenFile(roots.proc / "uptime", whole=True)
        self._holders = GpuHolders(roots.proc, roots.dev)
        self._blocked_times = BlockedTimes()
        self._block = Block("tasks_10s", ("host",))
        self._writer = row_writer(self._block, _COLUMNS)

    def collect(self) -> Sequence[Block]:
        """Return the block. Raises NoData when /proc cannot be listed, or shows no process."""
        if self.is_excluded(tasks.PROC):
            self._block.clear()
            return (self._block,)
        try:
            processes = self._processes.read(self._is_urgent)
        except OSError as error:
            raise NoData(f"/proc cannot be listed: {error.strerror}") from None
        now_seconds = parse_first_decimal(self._uptime.read())
        if not processes or now_seconds is None:
            raise NoData("no process in /proc")
        holders = self._holders.find(processes)
        threads = self._threads_of(holders)
        self.access_error = self._access_error(processes)
        blocked = {task.identity: task for task in (*processes, *threads) if task.is_blocked}
        seconds = self._blocked_times.observe(blocked.values(), now_seconds)
        user_seconds = [seconds[i] for i, t in blocked.items() if not t.is_kernel]
        gpu_seconds = [seconds[task.identity] for task in threads if task.is_blocked]
        values = (
            *self._counts(processes),
            max(user_seconds, default=0.0),
            *self._of_gpus(len(holders), gpu_seconds),
        )
        self._writer.put(0, values)
        return (self._block,)

    def _access_error(self, processes: Sequence[TaskStat]) -> str:
        if hides_processes(processes):
            return HIDEPID
        return _HIDDEN if self._holders.is_hidden else ""

    def _is_urgent(self, task: TaskStat) -> bool:
        return task.is_blocked or self._holders.holds(task)

    def _threads_of(self, holders: Iterable[TaskStat]) -> list[TaskStat]:
        threads: list[TaskStat] = []
        for holder in holders:
            folder = self._proc / str(holder.number) / "task"
            try:
                numbers = tasks.task_numbers(folder, THREADS_MAX)
            except OSError:
                continue  # it ended
            threads += tasks.read_tasks(folder, numbers[: THREADS_MAX - len(threads)])
        return threads

    def _counts(self, processes: Sequence[TaskStat]) -> tuple[int | None, ...]:
        """Return the counts; None, instead of too low counts, if processes are hidden."""
        blocked = [task for task in processes if task.is_blocked]
        kernel_count = sum(task.is_kernel for task in blocked)
        zombies = sum(task.state == "Z" for task in processes)
        counts = (self._processes.count, len(blocked) - kernel_count, kernel_count, zombies)
        whole = self._processes.count is not None and self.access_error != HIDEPID
        detected = read_unsigned(f"{self._proc}/sys/kernel/hung_task_detect_count")
        return (*(counts if whole else (None,) * 4), detected)

    def _of_gpus(self, holders: int, blocked_seconds: Sequence[float]) -> tuple[float | None, ...]:
        """Return the values of GPU holders; None without a GPU, or if not all are visible."""
        known = self._holders.has_gpus and self._processes.count is not None
        if not known or self.access_error:
            return (None,) * 3
        return holders, len(blocked_seconds), max(blocked_seconds, default=0.0)
