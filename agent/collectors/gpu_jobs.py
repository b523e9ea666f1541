"""Whose the processes on GPUs are: Slurm job, pod, container, unit. Told as `gpu.process`, counted in `gpu_job_1s`.

Frames carry numbers only, so who it is travels as an event: when a process is found, changes and ends, and now and
then again, so that an aggregator that lost it has it again. Each process on each GPU is one event, by its start, in ever
higher revisions. In the sampler of the GPUs, after the collector that lists the processes; a list like the one before
costs next to nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace, index_of
from ...fingerprints.wire.telemetry_pb2 import HealthEvent
from ..clock import Clock, SystemClock
from ..hardware import owners, pods
from ..hardware.owners import PLACE, Seen, State
from ..hardware.ranks import RankReader
from ..hardware.roots import Roots
from ..listening import Teller
from ..turn import Blind, NoData
from .columns import block_of
from .gpu_held import held_of
from .gpu_owners import (
    FOREIGN,
    GONE,
    HIDDEN,
    NO_GROUP,
    REUSED,
    Counts,
    Held,
    Identity,
    Owners,
    counts_of,
    words_of,
)
from .tasks import HIDEPID
from .telling import TELL_AGAIN_NS, TellBudget, anew, boot_of, revision_at

#: Names of pods are looked up again no more often than this while one is missing.
PODS_NS_MIN = 10_000_000_000
EVENT = "gpu.process"
#: The kernel's own names end at 15 bytes, those of its threads at 63.
NAME_CHARACTERS_MAX = 63
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
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
        self._pods: dict[str, pods.Pod] = {}
        self._pods_ns = -PODS_NS_MIN
        self._boot = boot_of(roots.proc)
        self._is_foreign = not owners.in_host_pid_namespace(roots.proc)
        self._shows_all = owners.shows_all(roots.proc)
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
            Seen(State.HIDDEN) if self._is_foreign else owners.look(self._roots.proc, pid)
        )

    def _glance(self, pid: int) -> Seen:
        return self._shown(
            Seen(State.HIDDEN) if self._is_foreign else owners.glance(self._roots.proc, pid)
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

    def _pod(self, uid: str, now_ns: int) -> pods.Pod | None:
        if uid not in self._pods and now_ns - self._pods_ns >= PODS_NS_MIN:
            self._pods, self._pods_ns = pods.names_of_pods(self._roots.proc.parent), now_ns
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

    def _tell_news(self, teller: Teller, held: Held, now_ns: int) -> bool:
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

    def _tell(self, teller: Teller, held: Held, said: dict[str, str], now_ns: int) -> bool:
        wall_ns = self._clock.wall_ns() - (now_ns - held.since_ns)
        if not teller.tell(self._event(held, said, wall_ns, now_ns)):
            return False
        held.told, held.told_ns = said, now_ns
        return True

    def _event(self, held: Held, said: dict[str, str], wall_ns: int, now_ns: int) -> HealthEvent:
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

    def _attributes(self, held: Held, now_ns: int) -> dict[str, str]:
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

    def _why(self, held: Held) -> str:
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
        by_gpu: dict[str, list[Held]] = {gpu: [] for gpu in self._owners.gpus}
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
