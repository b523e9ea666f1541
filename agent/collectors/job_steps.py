"""Step times that ranks report through `gangline.steps`: one row per rank and second.

The owner of a process is read from its cgroup if possible, and only otherwise from the slot. A slot
with a false job id or a torn write affects only its own process's job.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ...contract.block import Block
from ..clock import Clock, SystemClock
from ..collector import NO_DATA_TURNS, AccessDenied, Collector, NoData
from ..hardware import step_slots
from ..hardware.files import Roots, device_key
from ..hardware.kubelet import pods_by_uid
from ..hardware.process_owner import CGROUP_BYTES_MAX, KUBERNETES, SLURM, Owner, parse_cgroup
from ..hardware.step_slots import SlotHead, StepCount
from .block_writer import block_of, row_writer

#: Below the root of devices: `/dev/shm/gangline`.
FOLDER = Path("shm/gangline")
#: Maximum of slots that are read, and of those of one user. Beyond it users take turns, each with
#: its longest running process first, and `access_error` reports the number of slots left out.
SLOTS_MAX, SLOTS_PER_USER_MAX = 256, 64
#: Per collection: names read from the folder, and files removed that are not live slots.
NAMES_MAX, REMOVALS_MAX = 4096, 64
#: The folder is listed again after this many turns, even without a change.
LISTING_TURNS = 10
#: A file that has not become a slot after this many turns is removed.
DEAD_TURNS = 30
#: Step times cover the steps of this window, and at least the last step.
WINDOW_NS = 10_000_000_000
#: Without a step for this many mean steps, and this long, no step time is reported: the job is
#: stopped.
STANDING_STEPS, STANDING_SECONDS_MIN = 3, 30.0
#: Steps needed for a spread.
SPREAD_STEPS_MIN = 3
STEP_SECONDS_MAX = 86_400.0

_COLUMNS = (
    "step.steps_count", "step.step_seconds", "step.spread_seconds", "step.since_seconds",
    "step.rank_number", "step.world_count", "step.process_number", "step.user_number",
)  # fmt: skip
REMEDY = (
    "create it by systemd-tmpfiles --create, or by install -d -m 1777 -o gangline /dev/shm/gangline"
)


@dataclass(slots=True)
class OpenSlot:
    """A slot of a live process."""

    descriptor: int
    user_id: int
    head: SlotHead
    process: int
    job: str
    is_attested: bool  # the job's name comes from the control group
    started: float  # start of the process, see `JobSteps._started`
    #: (time of the read by our clock, count) in the last WINDOW_NS, and the last earlier pair.
    counts: deque[tuple[int, StepCount]] = field(default_factory=lambda: deque(maxlen=64))

    @property
    def key(self) -> str:
        """The device: job and rank, or the process of an unknown rank."""
        rank = f"p{self.process}" if self.head.rank < 0 else str(self.head.rank)
        return device_key(f"{self.job}/{rank}")

    def update(self, steps: StepCount, now_ns: int) -> None:
        if self.counts and steps.steps <= self.counts[-1][1].steps:
            if steps.steps == self.counts[-1][1].steps:
                return
            self.counts.clear()  # the count restarted
        self.counts.append((now_ns, steps))
        while len(self.counts) > 2 and now_ns - self.counts[1][0] >= WINDOW_NS:
            self.counts.popleft()

    def times(self, now_ns: int) -> tuple[float | None, float | None, float]:
        """Return step time (mean, standard deviation) and time since the last step, in seconds."""
        last_ns, last = self.counts[-1]
        _, first = self.counts[0]
        since_seconds = (now_ns - last_ns) / 1e9
        steps, seconds = last.steps - first.steps, last.last_seconds - first.last_seconds
        if steps < 1 or not 0.0 < seconds <= STEP_SECONDS_MAX * steps:
            return None, None, since_seconds
        mean = seconds / steps
        if since_seconds > max(STANDING_STEPS * mean, STANDING_SECONDS_MIN):
            return None, None, since_seconds
        variance = (last.squares - first.squares) / steps - mean**2
        is_known = steps >= SPREAD_STEPS_MIN and variance < STEP_SECONDS_MAX**2
        return mean, max(0.0, variance) ** 0.5 if is_known else None, since_seconds


class Candidate(NamedTuple):
    """A live slot: its user, the start of its process, that process, and the slot's head."""

    user_id: int
    started: float
    process: int
    head: SlotHead


def fair_choice(live: dict[str, Candidate]) -> set[str]:
    """Return the names of the slots to read: users take turns, each with its longest running process first."""
    by_user: dict[int, list[tuple[float, str]]] = {}
    for name, candidate in live.items():
        by_user.setdefault(candidate.user_id, []).append((candidate.started, name))
    ranked = sorted(
        (position, started, name)
        for slots in by_user.values()
        for position, (started, name) in enumerate(sorted(slots)[:SLOTS_PER_USER_MAX])
    )
    return {name for _, _, name in ranked[:SLOTS_MAX]}


class JobSteps(Collector):
    """Step times.

    `collect` raises NoData without the folder, AccessDenied if it may not be read.
    """

    name = "step_1s"
    enters_driver = False  # tmpfs and /proc

    def __init__(self, roots: Roots, clock: Clock | None = None) -> None:
        self._roots, self._clock = roots, clock or SystemClock()
        self._path = roots.dev / FOLDER
        self._slots: dict[str, OpenSlot] = {}
        #: Name of a file that is not a slot (yet) -> its age in turns.
        self._others: dict[str, int] = {}
        self._folder_key: tuple[int, int, int] | None = None
        self._turns_to_listing = 0
        self._turns_missing = 0  # since a turn without a folder
        self._block = Block("step_1s", ())
        self._writer = row_writer(self._block, _COLUMNS)
        self._left_out = self._unseen_names = 0

    def __del__(self) -> None:
        for slot in getattr(self, "_slots", {}).values():
            os.close(slot.descriptor)

    def skip(self) -> bool:
        """Without the folder, run only one turn in ten until it appears."""
        if not 0 < self._turns_missing < NO_DATA_TURNS or os.access(self._path, os.F_OK):
            return False
        self._turns_missing += 1
        return True

    def collect(self) -> Sequence[Block]:
        self._turns_missing = 1
        try:
            folder = step_slots.open_folder(self._path)
        except PermissionError as error:
            raise AccessDenied(f"/dev/{FOLDER}: {error.strerror}; {REMEDY}") from None
        except OSError as error:
            self._close_all()
            raise NoData(f"no folder /dev/{FOLDER} ({error.strerror}): {REMEDY}") from None
        self._turns_missing = 0
        try:
            self._turns_to_listing -= 1
            self._others = {name: turns + 1 for name, turns in self._others.items()}
            if folder.key != self._folder_key or self._turns_to_listing <= 0:
                self._folder_key, self._turns_to_listing = folder.key, LISTING_TURNS
                self._list(folder.descriptor)
            now_ns = self._clock.boottime_ns()
            for name in [
                name for name, slot in self._slots.items() if not self._read(slot, now_ns)
            ]:
                self._close(name)
                self._others[name] = DEAD_TURNS
            self._remove_dead(folder.descriptor)
        finally:
            os.close(folder.descriptor)
        problems = []
        if self._left_out:
            problems.append(
                f"{self._left_out} slots in /dev/{FOLDER} are ignored: at most {SLOTS_MAX}, and "
                f"{SLOTS_PER_USER_MAX} of one user, are read"
            )
        if self._unseen_names:
            problems.append(
                f"/dev/{FOLDER} has {self._unseen_names} more files than the {NAMES_MAX} that are looked at: slots may "
                "be among them; remove the files of users without jobs"
            )
        self.access_error = "; ".join(problems)
        return (self._fill(now_ns),)

    def _list(self, folder: int) -> None:
        """Open new slots, and close removed ones."""
        names, self._unseen_names = step_slots.names_of(folder, NAMES_MAX)
        present = set(names)
        for name in [
            name for name in self._slots if name not in present and not self._unseen_names
        ]:
            self._close(name)
        self._others = {name: turns for name, turns in self._others.items() if name in present}
        live = {
            name: Candidate(slot.user_id, slot.started, slot.process, slot.head)
            for name, slot in self._slots.items()
        }
        for name in sorted(present - self._slots.keys()):
            candidate = self._candidate(folder, name)
            if candidate is None:
                self._others.setdefault(name, 0)
            else:
                live[name] = candidate
        chosen = fair_choice(live)
        self._left_out = len(live) - len(chosen)  # their processes live: they may be read later
        for name in self._slots.keys() - chosen:
            self._close(name)
        self._open_all(folder, {name: live[name] for name in chosen - self._slots.keys()})

    def _candidate(self, folder: int, name: str) -> Candidate | None:
        """Return a live slot; None for any other file."""
        opened = step_slots.open_slot(folder, name)
        if opened is None:
            return None
        descriptor, user_id = opened
        head = step_slots.parse_head(step_slots.read_slot(descriptor))
        process = step_slots.holder_of(descriptor)
        os.close(descriptor)
        if head is None or process is None:
            return None
        return Candidate(user_id, self._started(process), process, head)

    def _started(self, process: int) -> float:
        """Return *process*'s start in clock ticks since boot; infinity if it is not visible."""
        try:
            with open(self._roots.proc / str(process) / "stat", "rb") as file:
                return float(file.read(4096).rpartition(b")")[2].split()[19])
        except (OSError, ValueError, IndexError):
            return math.inf

    def _open_all(self, folder: int, chosen: dict[str, Candidate]) -> None:
        pods = None
        for name, (user_id, started, process, head) in sorted(chosen.items()):
            opened = step_slots.open_slot(folder, name)
            # Replaced meanwhile: retried at the next listing
            if opened is None or opened[1] != user_id:
                if opened is not None:
                    os.close(opened[0])
                continue
            descriptor, _ = opened
            owner = self._owner(process)
            if owner.source == KUBERNETES and pods is None:
                pods = pods_by_uid(self._roots.proc.parent)
            pod = (pods or {}).get(owner.pod_uid)
            attested = f"{pod.namespace}/{pod.name}" if pod else job_of(owner)
            job = attested or head.job or f"user{user_id}"
            self._others.pop(name, None)
            self._slots[name] = OpenSlot(
                descriptor=descriptor,
                user_id=user_id,
                head=head,
                process=process,
                job=job,
                is_attested=bool(attested),
                started=started,
            )

    def _owner(self, process: int) -> Owner:
        try:
            with open(self._roots.proc / str(process) / "cgroup", "rb") as file:
                return parse_cgroup(file.read(CGROUP_BYTES_MAX))
        except OSError:
            return Owner()

    def _read(self, slot: OpenSlot, now_ns: int) -> bool:
        """Read a slot's count, and return whether its process lives."""
        steps = step_slots.parse_steps(step_slots.read_slot(slot.descriptor))
        before = slot.counts[-1][1] if slot.counts else None
        if steps is not None:
            slot.update(steps, now_ns)
        # A process that steps is alive; any other is looked up.
        return steps not in (None, before) or step_slots.holder_of(slot.descriptor) is not None

    def _remove_dead(self, folder: int) -> None:
        """Remove dead slots, as far as the folder's owner and mode permit."""
        dead = (name for name, turns in self._others.items() if turns >= DEAD_TURNS)
        for name in list(islice(dead, REMOVALS_MAX)):
            try:
                os.unlink(name, dir_fd=folder)
            except OSError:
                self._others[name] = 0  # not permitted, or a folder: retried later
            else:
                del self._others[name]

    def _close(self, name: str) -> None:
        os.close(self._slots.pop(name).descriptor)

    def _close_all(self) -> None:
        for name in list(self._slots):
            self._close(name)
        self._others.clear()
        self._folder_key = None

    def _fill(self, now_ns: int) -> Block:
        rows = self._rows()
        block = block_of(self._block, rows)
        if block is not self._block:
            self._block = block
            self._writer = row_writer(block, _COLUMNS)
        for row, slot in enumerate(rows.values()):
            mean, spread, since = slot.times(now_ns)
            rank = slot.head.rank if slot.head.rank >= 0 else None
            self._writer.put(
                row,
                (
                    slot.counts[-1][1].steps, mean, spread, since, rank,
                    slot.head.world or None, slot.process or None, slot.user_id,
                ),
            )  # fmt: skip
        return block

    def _rows(self) -> dict[str, OpenSlot]:
        """Return the slots with counts, by device.

        The first of two slots with one rank, or of two users with one job, wins. Attested jobs are
        first, so that no user can report for another's job.
        """
        users: dict[str, int] = {}
        rows: dict[str, OpenSlot] = {}
        slots = [slot for slot in self._slots.values() if slot.counts]
        for slot in sorted(slots, key=lambda slot: not slot.is_attested):
            if users.setdefault(slot.job, slot.user_id) == slot.user_id or slot.is_attested:
                rows.setdefault(slot.key, slot)
        return rows


def job_of(owner: Owner) -> str:
    """Return the job of a control group, as `ops.jobs` names it; "" without a scheduler's job."""
    if owner.source == SLURM:
        return owner.job_id
    return owner.pod_uid or owner.container_id if owner.source == KUBERNETES else ""
