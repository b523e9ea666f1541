"""Processes that do not come back from the kernel, above all those that hold a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ..entering import Spares
from ..hardware import tasks
from ..hardware.files import KeptFile, names_in, read_unsigned
from ..hardware.memory import parse_first_decimal
from ..hardware.roots import Roots
from ..hardware.tasks import Processes, Task
from ..turn import NoData
from .columns import put

#: More processes are not looked at in a turn, nor more threads of those that hold a GPU.
PROCESSES_MAX = 16384
THREADS_MAX = 4096
#: Of the processes that neither are new nor were blocked nor hold a GPU, so many are read in a turn.
READS_MAX = 512
#: Of a process's descriptors, the first: a driver is opened before files and sockets are.
DESCRIPTORS_MAX = 512
#: Whether a process holds a GPU is looked up anew after this many turns, for each descriptor is a link to be
#: read; after more turns where that would be more processes in a turn than these.
_ASK_TURNS = 6
_ASKS_MAX = 512
#: The device files of GPUs, before their number. A container's are shown under the same name.
_GPU = "nvidia"
HIDEPID = (
    "/proc hides the processes of other users (hidepid): open it with "
    "ProtectProc=default in the agent's unit, or with SupplementaryGroups= the gid= of the mount of /proc"
)
_HIDDEN = (
    "which GPU processes of other users are blocked is not shown: open it with "
    "AmbientCapabilities=CAP_SYS_PTRACE in the agent's unit"
)


class BlockedSince:
    """When each task in uninterruptible wait was first seen in it. A task that left it is forgotten."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], float] = {}

    def look(self, blocked: Iterable[Task], now_seconds: float) -> dict[tuple[int, int], float]:
        """Return how long each of these tasks has been seen blocked, in seconds, by its identity.

        It may have moved between two looks: blocked at both is not proof of blocked all the time.
        """
        self._first = {t.identity: self._first.get(t.identity, now_seconds) for t in blocked}
        return {identity: max(0.0, now_seconds - at) for identity, at in self._first.items()}


class GpuHolders:
    """The processes that have a GPU open, looked up now and then.

    One that was killed closes its descriptors on its way out; when the driver holds it fast there, it
    shows none and has the GPU still. So who held one and shows no descriptor holds it until it is gone.
    """

    def __init__(self, proc: Path, dev: Path) -> None:
        self._proc, self._dev = proc, dev
        self._turn = 0
        #: By identity whether the process holds a GPU; None where that is not shown.
        self._holding: dict[tuple[int, int], bool | None] = {}
        #: Whether there is a GPU to hold.
        self.has_gpus = False

    @property
    def is_hidden(self) -> bool:
        """Whether the descriptors of some process are not shown."""
        return None in self._holding.values()

    def holds(self, task: Task) -> bool:
        """Say whether the task held a GPU when it was asked last."""
        return bool(self._holding.get(task.identity))

    def among(self, processes: Sequence[Task]) -> list[Task]:
        """Return those that hold a GPU. One that is new is asked at once, each other once in some turns."""
        self._turn += 1
        self.has_gpus = any(
            name.startswith(_GPU) and name[len(_GPU) :].isdecimal() for name in names_in(self._dev)
        )
        asked = [task for task in processes if self.has_gpus and not task.is_kernel]
        turns = max(_ASK_TURNS, -(-len(asked) // _ASKS_MAX))
        self._holding = {
            task.identity: self._ask(task)
            if task.identity not in self._holding or (task.number + self._turn) % turns == 0
            else self._holding[task.identity]
            for task in asked
        }
        return [task for task in asked if self.holds(task)]

    def _ask(self, task: Task) -> bool | None:
        try:
            found = tasks.holds(self._proc / str(task.number), f"/dev/{_GPU}", DESCRIPTORS_MAX)
        except PermissionError:
            return None
        return self.holds(task) if found is None else found


def hides_processes(processes: Iterable[Task]) -> bool:
    """Say whether /proc shows some processes only: the first of all is always there."""
    return all(task.number != 1 for task in processes)


class BlockedTasks(Spares):
    """Counts tasks in uninterruptible wait (D) and how long they are in it, from /proc.

    Of processes that hold a GPU every thread is looked at, of others the main one; of thousands of those a part
    in each turn, so that one which blocks may be seen some turns later (`Processes`).
    """

    name = "tasks_10s"
    pace = Pace.TEN_SECONDS
    enters_driver = True  # no driver, but thousands of small files: not in the daemon's own thread

    def __init__(self, roots: Roots) -> None:
        self._proc = roots.proc
        self._processes = Processes(roots.proc, PROCESSES_MAX, READS_MAX)
        self._uptime = KeptFile(roots.proc / "uptime")
        self._holders = GpuHolders(roots.proc, roots.dev)
        self._since = BlockedSince()
        self._block = Block("tasks_10s", ("host",))
        self.blind_words = ""

    def collect(self) -> Sequence[Block]:
        """Return the one block. Raises NoData when /proc cannot be listed, or shows no process."""
        if self.is_spared(tasks.PROC):
            self._block.clear()
            return (self._block,)
        try:
            processes = self._processes.read(self._is_urgent)
        except OSError as error:
            raise NoData(f"/proc cannot be listed: {error.strerror}") from None
        now_seconds = parse_first_decimal(self._uptime.read())
        if not processes or now_seconds is None:
            raise NoData("no process in /proc")
        holders = self._holders.among(processes)
        threads = self._threads_of(holders)
        self.blind_words = self._hidden_words(processes)
        blocked = {t.identity: t for t in (*processes, *threads) if t.is_blocked}
        seconds = self._since.look(blocked.values(), now_seconds)
        self._put_counts(processes)
        own = [seconds[i] for i, t in blocked.items() if not t.is_kernel]
        self._put("blocked_longest_seconds", max(own, default=0.0))
        self._put_gpu(len(holders), [seconds[t.identity] for t in threads if t.is_blocked])
        return (self._block,)

    def _hidden_words(self, processes: Sequence[Task]) -> str:
        if hides_processes(processes):
            return HIDEPID
        return _HIDDEN if self._holders.is_hidden else ""

    def _is_urgent(self, task: Task) -> bool:
        return task.is_blocked or self._holders.holds(task)

    def _threads_of(self, holders: Iterable[Task]) -> list[Task]:
        found: list[Task] = []
        for holder in holders:
            folder = self._proc / str(holder.number) / "task"
            try:
                numbers = tasks.task_numbers(folder, THREADS_MAX)
            except OSError:
                continue  # it ended
            found += tasks.read_tasks(folder, numbers[: THREADS_MAX - len(found)])
        return found

    def _put_counts(self, processes: Sequence[Task]) -> None:
        """Put how many there are of each; nothing when not all were seen, for it would be too few."""
        counts = {
            "processes_count": self._processes.count,
            "blocked_count": sum(t.is_blocked and not t.is_kernel for t in processes),
            "blocked_kernel_count": sum(t.is_blocked and t.is_kernel for t in processes),
            "zombies_count": sum(t.state == "Z" for t in processes),
        }
        whole = self._processes.count is not None and self.blind_words != HIDEPID
        for column, count in counts.items():
            self._put(column, count if whole else None)
        detected = read_unsigned(self._proc / "sys/kernel/hung_task_detect_count")
        self._put("hung_detected_count", detected)

    def _put_gpu(self, holders_count: int, blocked_seconds: Sequence[float]) -> None:
        """Put what is known of processes with a GPU: nothing without one, or when not all are shown."""
        known = self._holders.has_gpus and self._processes.count is not None
        known = known and not self.blind_words
        self._put("gpu_holders_count", holders_count if known else None)
        self._put("blocked_gpu_count", len(blocked_seconds) if known else None)
        longest = max(blocked_seconds, default=0.0)
        self._put("blocked_gpu_longest_seconds", longest if known else None)

    def _put(self, column: str, value: float | None) -> None:
        put(self._block, f"tasks.{column}", 0, value)
