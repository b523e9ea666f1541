"""Whose the processes on GPUs are, over time: listings and looks in, what is to be told and counted out. No clock, no I/O.

A process is its number and its start. NVML names the number only, so what is told of one must have held at two looks:
else a process that ended between the list and the look would lend its GPU to whoever was dealt its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ..hardware.cgroups import CONTAINER, KUBERNETES, SLURM, SYSTEMD
from ..hardware.owners import Seen, State
from .gpu_held import Holding, Listing

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


def key_of(holding: Holding) -> Key:
    """Return what tells a holding from all others of its host."""
    return holding[:4]


@dataclass(slots=True)
class Held:
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
        self._held: dict[Key, Held] = {}
        self._ended: list[Held] = []
        self._turns_to_look = 0
        self._listing = Listing((), ())

    def __iter__(self) -> Iterator[Held]:
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
        listed = {key_of(holding): holding for holding in listing.holdings}
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
                self._held[key] = Held(holding, now_ns)
            else:
                self._held[key].holding = holding
        return bool(went or came or others)

    def _left(self, held: Held) -> bool:
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

    def renew(self, held: Held) -> None:
        """Look at all of a process again: it may have been moved to another control group. Of one that has ended
        nothing new is believed: a kernel may show it in none."""
        seen = self._look(held.holding.pid)
        runs = seen.state is State.RUNNING
        if runs and held.seen and seen.start_ticks == held.seen.start_ticks:
            held.seen = seen

    def take_ended(self) -> list[Held]:
        """Return those that are listed no more and had been told of, each once."""
        ended, self._ended = [held for held in self._ended if held.told_ns is not None], []
        return ended

    def put_back(self, ended: Iterable[Held]) -> None:
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


def counts_of(holdings: Iterable[Held]) -> Counts:
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
