"""Processes on each GPU and MIG instance, with the memory that each holds, every second."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...contract.block import Block
from ...contract.signal import Pace
from ...contract.signals import index_of
from ...contract.wire.telemetry_pb2 import HealthEvent
from ...ext.nvml_parts import Parts, Process, ProcessLists
from ..clock import Clock, SystemClock
from ..collector import Blind, NoData
from ..events import Teller
from ..hardware import process_owner
from ..hardware.files import Roots
from ..hardware.job_ranks import RankReader
from ..hardware.process_owner import CONTAINER, KUBERNETES, PLACE, SLURM, SYSTEMD, Seen, State
from ..hardware.processes import read_tasks
from .block_writer import block_of
from .change_events import TELL_AGAIN_NS, TellBudget, anew, boot_of, revision_at
from .gpu_parts import PartsLane, remade
from .tasks import HIDEPID

# ----------------------------------------------------------------------
# The processes that NVML lists, from the collector that asks for them to the one that finds out
# whose they are.
#
# Both take their turns in one process, one after the other, so that nothing here needs a lock.


class Holding(NamedTuple):
    """A process that holds a GPU, or under MIG an instance of it."""

    gpu: str  # as the GPU's readings are keyed
    pid: int
    gpu_instance: int | None = None
    compute_instance: int | None = None
    memory_bytes: int | None = None


class Listing(NamedTuple):
    """One look. A GPU that did not answer is not among `gpus`: of it nothing is known."""

    gpus: tuple[str, ...]
    holdings: tuple[Holding, ...]


class ProcessListing:
    """The last listing, for one who takes it."""

    def __init__(self) -> None:
        self._listing: Listing | None = None

    def put(self, listing: Listing) -> None:
        """Note what NVML has just listed: the same object as long as it is the same."""
        self._listing = listing

    def take(self) -> Listing | None:
        """Return what was put since the last call; None: there was no look since then."""
        listing, self._listing = self._listing, None
        return listing


_HELD: weakref.WeakValueDictionary[Roots, ProcessListing] = weakref.WeakValueDictionary()


def held_of(roots: Roots) -> ProcessListing:
    """Return the one of this host; it lives as long as somebody keeps it."""
    held = _HELD.get(roots)
    if held is None:
        held = _HELD[roots] = ProcessListing()
    return held


#: Of a host, in all; those with the higher numbers are left out, which `blind_words` says.
ROWS_MAX = 8192

#: As long as the lists are the same, no process came or went: when each began is looked at anew this often, should a
#: PID have been given to another within a second.
SAME_TURNS_MAX = 9

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class GpuProcesses(PartsLane):
    """Who holds a GPU. PID and start together are one process; a start that is missing belongs to a PID of another
    namespace, or to a process that went between the two looks."""

    def __init__(self, roots: Roots) -> None:
        super().__init__("gpu_process_1s", Pace.SECOND, roots)
        self._block: Block | None = None
        self._held = held_of(roots)  # for `gpu_processes.py`, whose turn comes after
        self._lists: ProcessLists | None = None
        self._told = Listing((), ())
        self._too_many = ""
        self._turns_as_it_is = 0

    def let_go(self) -> None:
        super().let_go()
        self._lists, self._turns_as_it_is = None, 0

    def _read(self, parts: Parts) -> Sequence[Block]:
        """Look who is there; as long as every GPU says the same, the block stands, but for a look at the PIDs."""
        if self._lists is None:
            self._lists = ProcessLists(parts, self._gpus)
        is_same = self._lists.run()
        self._turns_as_it_is -= 1
        if self._turns_as_it_is < 0 or self._block is None or not is_same:
            self._turns_as_it_is = (
                0  # should this fail, the block is not what was said: it is filled anew
            )
            self._block = self._filled(self._ask(self._lists.of))
            self._turns_as_it_is = SAME_TURNS_MAX
        self._held.put(self._told)
        self.blind_words = self.blind_words or self._too_many
        return (self._block,)

    def _filled(self, answers: Mapping[str, list[Process]]) -> Block:
        rows: dict[str, Process] = {}
        listed = {self._gpus[address]: merged(those) for address, those in answers.items()}
        self._told = Listing(tuple(listed), _holdings(listed))
        for gpu, processes in listed.items():
            rows |= {process_key(gpu, process): process for process in processes}
        too_many = len(rows) > ROWS_MAX
        self._too_many = f"{len(rows)} processes on GPUs, {ROWS_MAX} are told" if too_many else ""
        if too_many:
            rows = dict(sorted(rows.items(), key=lambda item: item[1].pid)[:ROWS_MAX])
        starts = self._starts({process.pid for process in rows.values()})
        block = remade(self._block, "gpu_process_1s_changes", rows)
        for row, process in enumerate(rows.values()):
            block.put_float(0, row, process.memory_bytes)
            block.put_int(1, row, process.kinds)
            block.put_int(2, row, starts.get(process.pid))
            block.put_int(3, row, process.gpu_instance)
            block.put_int(4, row, process.compute_instance)
        return block

    def _starts(self, pids: Iterable[int]) -> dict[int, int]:
        tasks = read_tasks(self._roots.proc, map(str, pids))
        return {task.number: task.start_ticks * _TICK_NS for task in tasks}


def _holdings(listed: Mapping[str, Iterable[Process]]) -> tuple[Holding, ...]:
    holdings = [
        Holding(gpu, p.pid, p.gpu_instance, p.compute_instance, p.memory_bytes)
        for gpu, processes in listed.items()
        for p in processes
    ]
    return tuple(holdings[:ROWS_MAX])


def merged(processes: Iterable[Process]) -> list[Process]:
    """Return one entry for each process and instance: a process may stand in several of a GPU's lists, each with
    all the memory that it holds."""
    found: dict[tuple[int, int | None, int | None], Process] = {}
    for process in processes:
        place = process.pid, process.gpu_instance, process.compute_instance
        other = found.get(place, process)
        known = [m for m in (process.memory_bytes, other.memory_bytes) if m is not None]
        found[place] = process._replace(
            kinds=process.kinds | other.kinds, memory_bytes=max(known, default=None)
        )
    return list(found.values())


def process_key(gpu: str, process: Process) -> str:
    """Return `GPU-uuid/PID`, under MIG `GPU-uuid/gi1/ci0/PID`."""
    if process.gpu_instance is None:
        return f"{gpu}/{process.pid}"
    compute = "" if process.compute_instance is None else f"/ci{process.compute_instance}"
    return f"{gpu}/gi{process.gpu_instance}{compute}/{process.pid}"


# ----------------------------------------------------------------------
# Whose the processes on GPUs are, over time: listings and looks in, what is to be told and counted
# out. No clock, no I/O.
#
# A process is its number and its start. NVML names the number only, so what is told of one must
# have held at two looks: else a process that ended between the list and the look would lend its GPU
# to whoever was dealt its number.

#: Processes that were known at the last look are looked at again after so many turns of an unchanged list.
LOOK_AGAIN_TURNS = 10
#: An ended process that NVML goes on to list at so many looks holds what nobody will give back by itself.
DEAD_LOOKS = 2

FOREIGN = "its number is of another PID namespace than the agent's"
HIDDEN = "/proc does not show it"
REUSED = "its number was dealt to another process while the GPU was still listed"
GONE = "it ended before it was seen"
NO_GROUP = "it is in no control group that tells"

Identity = tuple[int, int]  # PID and start in clock ticks
Key = tuple[str, int, int | None, int | None]


def holding_key(holding: Holding) -> Key:
    """Return what tells a holding from all others of its host."""
    return holding[:4]


@dataclass(slots=True)
class TrackedProcess:
    """A process on a GPU, since it was first listed there."""

    holding: Holding
    since_ns: int
    seen: Seen | None = None  # the last look that showed the process; None: none did
    looks: int = 0  # how many showed the same process
    ended_looks: int = 0  # at how many, in a row, it had ended
    state: State = State.HIDDEN  # at the last look
    is_reused: bool = False
    #: What was told of it last, and when, and as which event: that stays, also when more is found out.
    told: Mapping[str, str] = field(default_factory=dict[str, str])
    told_ns: int | None = None
    event_id: str = ""

    @property
    def identity(self) -> Identity | None:
        """Which process it is; None while that is not known."""
        if self.seen is None or self.is_reused:
            return None
        return self.holding.pid, self.seen.start_ticks

    @property
    def is_dead(self) -> bool:
        """Whether its process has ended and the GPU is held nevertheless."""
        return self.ended_looks >= DEAD_LOOKS and not self.is_reused

    @property
    def is_unsettled(self) -> bool:
        """Whether a look at the next turn will tell more than this one has."""
        if self.is_reused:
            return False
        seen_once = self.looks == 1 and not self.ended_looks
        return seen_once or 0 < self.ended_looks < DEAD_LOOKS or self.state is State.CHANGED

    @property
    def source(self) -> str:
        """Who runs it, as `Owner.source`; empty: not known."""
        return self.seen.owner.source if self.seen and not self.is_reused else ""

    def take(self, seen: Seen) -> None:
        """Take over a look at its number. A start of 0: there was nothing to be seen."""
        self.state = seen.state
        ended = seen.state in (State.GONE, State.ZOMBIE)
        self.ended_looks = self.ended_looks + 1 if ended else 0
        if not seen.start_ticks:
            return
        if self.seen is None:
            self.seen, self.looks = seen, 1
        elif self.seen.start_ticks == seen.start_ticks:
            self.looks += 1
        else:
            self.is_reused = True


class Owners:
    """All processes that are on this host's GPUs."""

    def __init__(self, look: Callable[[int], Seen], glance: Callable[[int], Seen]) -> None:
        """*look* shows all of a process by its number, *glance* its state and start."""
        self._look, self._glance = look, glance
        self._held: dict[Key, TrackedProcess] = {}
        self._ended: list[TrackedProcess] = []
        self._turns_to_look = 0
        self._listing = Listing((), ())

    def __iter__(self) -> Iterator[TrackedProcess]:
        """Yield those on GPUs that answered last: what happened on the others since is not known."""
        return (held for held in self._held.values() if held.holding.gpu in self._listing.gpus)

    def observe(self, listing: Listing, now_ns: int) -> bool:
        """Take over a list; look at those that are new or not yet certain, and now and then at all. Return whether
        there was anything to do."""
        self._turns_to_look -= 1
        if listing == self._listing and self._turns_to_look > 0:
            return False
        changed = self._follow(listing, now_ns)
        if not changed and self._turns_to_look > 0:
            return False
        self._look_at_all()
        unsettled = any(held.is_unsettled for held in self)
        self._turns_to_look = 1 if unsettled else LOOK_AGAIN_TURNS
        return True

    def _follow(self, listing: Listing, now_ns: int) -> bool:
        """Add who came and end who went. A GPU that does not answer keeps those it had."""
        others = listing.gpus != self._listing.gpus
        back = set(listing.gpus).difference(self._listing.gpus)
        self._listing = listing
        listed = {holding_key(holding): holding for holding in listing.holdings}
        went = [
            key
            for key, held in self._held.items()
            if key[0] in listing.gpus
            and (key not in listed or (key[0] in back and self._left(held)))
        ]
        self._ended += [self._held.pop(key) for key in went]
        came = listed.keys() - self._held.keys()
        for key, holding in listed.items():
            if key in came:
                self._held[key] = TrackedProcess(holding, now_ns)
            else:
                self._held[key].holding = holding
        return bool(went or came or others)

    def _left(self, held: TrackedProcess) -> bool:
        """Say whether another has its number now: while the GPU did not answer that is no riddle."""
        now = self._glance(held.holding.pid)
        return held.identity is not None and now.start_ticks not in (0, held.identity[1])

    def _look_at_all(self) -> None:
        looks: dict[int, Seen] = {}
        for held in self:
            pid = held.holding.pid
            if held.seen is None:  # all of it, once
                looks[pid] = self._look(pid)
            elif pid not in looks:
                looks[pid] = self._glance(pid)
        for held in self:
            held.take(looks[held.holding.pid])

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs that answered last."""
        return self._listing.gpus

    def renew(self, held: TrackedProcess) -> None:
        """Look at all of a process again: it may have been moved to another control group. Of one that has ended
        nothing new is believed: a kernel may show it in none."""
        seen = self._look(held.holding.pid)
        runs = seen.state is State.RUNNING
        if runs and held.seen and seen.start_ticks == held.seen.start_ticks:
            held.seen = seen

    def take_ended(self) -> list[TrackedProcess]:
        """Return those that are listed no more and had been told of, each once."""
        ended, self._ended = [held for held in self._ended if held.told_ns is not None], []
        return ended

    def put_back(self, ended: Iterable[TrackedProcess]) -> None:
        """Take back what could not be told."""
        self._ended += ended

    def identities(self) -> set[Identity]:
        """Return the processes that are known."""
        return {held.identity for held in self._held.values() if held.identity}


@dataclass(slots=True)
class Counts:
    """What one GPU's processes come to."""

    processes: int = 0
    jobs: int = 0
    in_jobs: int = 0
    others: int = 0
    unknown: int = 0
    dead: int = 0
    dead_memory_bytes: int | None = 0  # None: some of it is not told


def counts_of(holdings: Iterable[TrackedProcess]) -> Counts:
    """Count the processes on one GPU: in jobs and pods, of others, of nobody known, and those that have ended."""
    counts, jobs = Counts(), set[tuple[str, str]]()
    memory: list[int | None] = []
    for held in holdings:
        counts.processes += 1
        if held.is_dead:
            counts.dead += 1
            memory.append(held.holding.memory_bytes)
        elif held.seen and held.source in (SLURM, KUBERNETES):
            owner = held.seen.owner
            counts.in_jobs += 1
            jobs.add((owner.source, owner.job_id or owner.pod_uid or owner.container_id))
        elif held.source:
            counts.others += 1
        else:
            counts.unknown += 1
    counts.jobs = len(jobs)
    known = [number for number in memory if number is not None]
    counts.dead_memory_bytes = sum(known) if len(known) == len(memory) else None
    return counts


def words_of(said: Mapping[str, str], pid: int, name: str) -> str:
    """Return what is told of a process, in a line."""
    who = f"process {pid}" + (f" ({name})" if name else "")
    rank = f", rank {said['rank']} of {said.get('world_size', '?')}" if "rank" in said else ""
    whose = f"{owner_words(said)}{rank}"
    if said["state"] == "ended":
        return f"{who} of {whose} no longer holds the GPU"
    if said["state"] == "dead":
        return f"{who} of {whose} has ended ({said['dead']}), and the GPU is held still"
    return f"{who} of {whose} holds the GPU"


def owner_words(said: Mapping[str, str]) -> str:
    """Return who runs it, in words."""
    source = said["source"]
    if source == SLURM:
        return f"Slurm job {said['job_id']}" + (f" step {said['step']}" if "step" in said else "")
    if source == KUBERNETES:
        named = f"{said['namespace']}/{said['pod']}" if "pod" in said else said.get("pod_uid", "")
        return f"pod {named}" if named else f"container {said['container_id'][:12]}"
    if source == CONTAINER:
        return f"container {said['container_id'][:12]}"
    if source == SYSTEMD:
        return f"unit {said.get('user_unit') or said['unit']}"
    return "an owner that is not known" + (f" ({said['unknown']})" if said.get("unknown") else "")


# ----------------------------------------------------------------------
# Whose the processes on GPUs are: Slurm job, pod, container, unit. Told as `gpu.process`, counted
# in `gpu_job_1s`.
#
# Frames carry numbers only, so who it is travels as an event: when a process is found, changes and
# ends, and now and then again, so that an aggregator that lost it has it again. Each process on
# each GPU is one event, by its start, in ever higher revisions. In the sampler of the GPUs, after
# the collector that lists the processes; a list like the one before costs next to nothing.

#: Names of pods are looked up again no more often than this while one is missing.
PODS_NS_MIN = 10_000_000_000
EVENT = "gpu.process"
#: The kernel's own names end at 15 bytes, those of its threads at 63.
NAME_CHARACTERS_MAX = 63
_NAMESPACE_WORDS = (
    "the driver numbers processes as the host does and this agent does not: run it in the host's PID namespace "
    "(hostPID: true, --pid=host)"
)
_RELATIVE_WORDS = (
    "control groups are shown from within the agent's own: run it in the host's control group namespace "
    "(--cgroupns=host)"
)


class GpuJobs:
    """Who runs on each GPU. `collect` raises NoData where no process is listed by a driver."""

    name = "gpu_job_1s"
    pace = Pace.SECOND
    enters_driver = True

    def __init__(
        self, roots: Roots, clock: Clock | None = None, ranks: RankReader | None = None
    ) -> None:
        """*ranks*: the helper; by default there is one where the setting `read_ranks` says so."""
        self.blind_words = ""
        self._roots, self._clock = roots, clock or SystemClock()
        self._held = held_of(roots)
        self._is_spared = False
        self._owners = Owners(self._look, self._glance)
        self._ranks = ranks or (RankReader(roots.proc, self._clock) if roots.reads_ranks else None)
        self._ranks_of: dict[Identity, dict[str, str]] = {}
        self._pods: dict[str, process_owner.Pod] = {}
        self._pods_ns = -PODS_NS_MIN
        self._boot = boot_of(roots.proc)
        self._is_foreign = not process_owner.in_host_pid_namespace(roots.proc)
        self._shows_all = process_owner.shows_all(roots.proc)
        self._budget = TellBudget()
        self._is_behind = False  # there was no room for all that was to be told
        self._since: dict[str, int] = {}  # when each GPU was listed first, until all on it was told
        self._teller: Teller | None = None
        self._block: Block | None = None

    def listen(self, teller: Teller) -> None:
        """Take the teller: who it is cannot travel in a frame."""
        self._teller = teller

    def close(self) -> None:
        """End the helper, if it runs."""
        if self._ranks:
            self._ranks.close()

    def spare(self, devices: frozenset[str]) -> None:
        """Leave /proc alone when it has held a sampler: then nothing new is found out."""
        self._is_spared = PLACE in tuple(devices)  # named, that is: not among "all but one GPU"

    def collect(self) -> Sequence[Block]:
        """Return the one block, a row for each GPU that answered."""
        if self._is_spared:
            raise Blind("/proc does not return: who runs on the GPUs is not looked up")
        listing = self._held.take()
        if listing is None:
            raise NoData("no driver has listed processes since the last turn")
        now_ns = self._clock.boottime_ns()
        moved = self._owners.observe(listing, now_ns)
        if self._ask_ranks() or moved or self._is_behind or self._block is None:
            self.blind_words = self._blind()
            if self._teller:
                self._is_behind = not self._tell_all(self._teller, now_ns)
            self._block = self._filled()
        return (self._block,)

    # ---- looking ------------------------------------------------------------------------------------------

    def _look(self, pid: int) -> Seen:
        return self._shown(
            Seen(State.HIDDEN) if self._is_foreign else process_owner.look(self._roots.proc, pid)
        )

    def _glance(self, pid: int) -> Seen:
        return self._shown(
            Seen(State.HIDDEN) if self._is_foreign else process_owner.glance(self._roots.proc, pid)
        )

    def _shown(self, seen: Seen) -> Seen:
        """A number that is not in /proc is of nobody only where /proc shows all."""
        is_hidden = seen.state is State.GONE and not self._shows_all
        return Seen(State.HIDDEN) if is_hidden else seen

    def _blind(self) -> str:
        held = list(self._owners)
        if self._is_foreign:
            return _NAMESPACE_WORDS if held else ""
        if any(one.state is State.HIDDEN for one in held):
            return HIDEPID
        if any(one.seen and one.seen.owner.is_relative and not one.source for one in held):
            return _RELATIVE_WORDS
        return self._ranks.blind_words if self._ranks else ""

    def _ask_ranks(self) -> bool:
        """Hand the helper who is new, and take what it has found; return whether it has found any."""
        if self._ranks is None:
            return False
        known = self._owners.identities()
        new = known - self._ranks_of.keys()
        self._ranks_of = {i: self._ranks_of.get(i, {}) for i in known}
        self._ranks.ask(sorted(new))
        answers = [answer for answer in self._ranks.poll() if answer.identity in known]
        self._ranks_of |= {answer.identity: answer.attributes for answer in answers}
        return bool(answers)

    def _pod(self, uid: str, now_ns: int) -> process_owner.Pod | None:
        if uid not in self._pods and now_ns - self._pods_ns >= PODS_NS_MIN:
            self._pods, self._pods_ns = process_owner.names_of_pods(self._roots.proc.parent), now_ns
        return self._pods.get(uid)

    # ---- telling ------------------------------------------------------------------------------------------

    def _tell_all(self, teller: Teller, now_ns: int) -> bool:
        """Tell what is new. False: the way was full, and the rest is for the next turn."""
        self._budget.refill(now_ns)
        return (
            self._tell_ended(teller, now_ns)
            and all(self._tell_news(teller, held, now_ns) for held in self._owners)
            and self._tell_anew(teller, now_ns)
        )

    def _tell_ended(self, teller: Teller, now_ns: int) -> bool:
        ended = self._owners.take_ended()
        for at, held in enumerate(ended):
            if not self._tell(teller, held, {**held.told, "state": "ended"}, now_ns):
                self._owners.put_back(ended[at:])
                return False
        return True

    def _tell_news(self, teller: Teller, held: TrackedProcess, now_ns: int) -> bool:
        if held.is_unsettled or now_ns <= held.since_ns:
            return True
        is_old = held.told_ns is not None and now_ns - held.told_ns >= TELL_AGAIN_NS
        if is_old:
            self._owners.renew(held)
        said = self._attributes(held, now_ns)
        if (is_old or said != held.told) and self._budget.take():
            return self._tell(teller, held, said, now_ns)
        return True

    def _tell_anew(self, teller: Teller, now_ns: int) -> bool:
        """Say of each GPU, once, that all on it was told: what ended while nobody looked is not among it."""
        for gpu in self._owners.gpus:
            self._since.setdefault(gpu, now_ns)
        waiting = {held.holding.gpu for held in self._owners if held.told_ns is None}
        for gpu in [g for g in self._owners.gpus if self._since[g] and g not in waiting]:
            event = anew(self._boot, EVENT, "gpu", gpu, self._since[gpu], now_ns)
            if not teller.tell(event):
                return False
            self._since[gpu] = 0
        return True

    def _tell(
        self, teller: Teller, held: TrackedProcess, said: dict[str, str], now_ns: int
    ) -> bool:
        wall_ns = self._clock.wall_ns() - (now_ns - held.since_ns)
        if not teller.tell(self._event(held, said, wall_ns, now_ns)):
            return False
        held.told, held.told_ns = said, now_ns
        return True

    def _event(
        self, held: TrackedProcess, said: dict[str, str], wall_ns: int, now_ns: int
    ) -> HealthEvent:
        gpu, pid, instance, compute, _ = held.holding
        start = held.seen.start_ticks if held.seen else 0
        name = held.seen.name[:NAME_CHARACTERS_MAX] if held.seen else ""
        place = "" if instance is None else f"{instance}.{compute}"
        held.event_id = held.event_id or f"{self._boot}/{gpu[:48]}/{place}/{pid}/{start}"
        return HealthEvent(
            event_id=held.event_id,
            device_kind="gpu",
            device=gpu,
            name=EVENT,
            message=words_of(said, pid, name),
            boottime_ns=held.since_ns,
            last_boottime_ns=now_ns,
            wall_time_ns=wall_ns,
            revision=revision_at(now_ns),
            process_id=pid,
            process_name=name,
            attributes=said,
        )

    def _attributes(self, held: TrackedProcess, now_ns: int) -> dict[str, str]:
        said = {"state": "dead" if held.is_dead else "running", "source": held.source or "unknown"}
        numbers = {
            "gpu_instance": held.holding.gpu_instance,
            "compute_instance": held.holding.compute_instance,
        }
        if held.is_dead:
            said["dead"] = held.state.value
        if not held.source:
            said["unknown"] = self._why(held)
        if held.seen and not held.is_reused:
            numbers["start_nanoseconds"] = held.seen.start_ticks * _TICK_NS
            numbers["user_id"] = held.seen.user_id
            numbers["namespace_pid"] = held.seen.namespace_pid
            said |= held.seen.owner.attributes()
            pod = self._pod(uid, now_ns) if (uid := said.get("pod_uid")) else None
            said |= {"namespace": pod.namespace, "pod": pod.name} if pod else {}
            said |= self._ranks_of.get((held.holding.pid, held.seen.start_ticks), {})
        return said | {name: str(number) for name, number in numbers.items() if number is not None}

    def _why(self, held: TrackedProcess) -> str:
        """Return why it is not known whose a process is."""
        if held.is_dead and held.seen is None:
            return GONE
        if self._is_foreign:
            return FOREIGN
        if held.is_reused:
            return REUSED
        return HIDDEN if held.state is State.HIDDEN else NO_GROUP

    # ---- counting -----------------------------------------------------------------------------------------

    def _filled(self) -> Block:
        by_gpu: dict[str, list[TrackedProcess]] = {gpu: [] for gpu in self._owners.gpus}
        for held in self._owners:
            by_gpu[held.holding.gpu].append(held)
        block = block_of(self._block or Block("gpu_job_1s_changes", ()), by_gpu)
        for row, those in enumerate(by_gpu.values()):
            counts = counts_of(those)
            for name, value in vars_of(counts).items():
                block.put_float(index_of(name), row, value)
        return block


def vars_of(counts: Counts) -> dict[str, float | None]:
    """Return the counts by their signals."""
    return {
        "gpu_job.processes_count": counts.processes,
        "gpu_job.jobs_count": counts.jobs,
        "gpu_job.in_jobs_count": counts.in_jobs,
        "gpu_job.others_count": counts.others,
        "gpu_job.unknown_count": counts.unknown,
        "gpu_job.dead_count": counts.dead,
        "gpu_job.dead_memory_bytes": counts.dead_memory_bytes,
    }
