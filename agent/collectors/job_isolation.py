"""Isolation of the jobs on a host's GPUs: facts of their processes, and events of broken boundaries between tenants."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

from ...contract.isolation import (
    HELD,
    REPORTED,
    BoundaryStatus,
    BoundaryVerdict,
    Facts,
    GpuFacts,
    HeldGpu,
    HostFacts,
    JobOnHost,
    facts_text,
    verify,
)
from ...contract.job_names import job_name
from ...contract.wire.telemetry_pb2 import HealthEvent
from ..events import EventPublisher
from ..hardware.files import Roots, device_key, parse_unsigned
from ..hardware.isolation_facts import IsolationReader, owner_group
from ..hardware.numa_nodes import nodes
from ..hardware.nvidia import driver_gpu_minors
from .change_events import REPEAT_NS, revision_at
from .process_tracker import Identity, TrackedProcess

EVENT = "host.isolation"
#: Processes read per turn; later turns read the others.
READS_MAX = 32
#: Turns after which the facts on a host with one job are read again.
REFRESH_TURNS = 60
#: Pairs of jobs that are compared; further pairs are left out.
PAIRS_MAX = 64
#: Characters of all facts of a process: the limit of an attribute. Longer facts are left out, all together.
FACTS_CHARACTERS_MAX = 1024
MESSAGE_CHARACTERS_MAX = 1000


class Tenant(NamedTuple):
    """The owner of a job: a namespace of Kubernetes, or a user."""

    kind: str
    name: str


class TenantJob(NamedTuple):
    """A job of a known tenant."""

    job: JobOnHost
    tenant: Tenant


@dataclass(slots=True)
class _Breach:
    """A reported pair of jobs: event id, since when, the boundaries that are violated, and the last report."""

    event_id: str
    since_ns: int
    pair: tuple[TenantJob, TenantJob]
    reported: tuple[BoundaryVerdict, ...] = ()
    reported_ns: int = 0


@dataclass(slots=True)
class _KnownFacts:
    """Facts of a process: from files, and limits in its environment."""

    read: dict[str, str] = field(default_factory=dict[str, str])
    limits: dict[str, str] = field(default_factory=dict[str, str])
    text: str = ""

    def set_text(self) -> None:
        text = facts_text(self.read | self.limits)
        self.text = text if len(text) <= FACTS_CHARACTERS_MAX else ""


class JobIsolation:
    """Facts of each process with a known identity; breaches between jobs of different tenants.

    While several jobs hold GPUs, facts are read in each turn: a boundary may break at any time.
    """

    def __init__(self, roots: Roots, boot: str) -> None:
        self._roots, self._boot = roots, boot
        self._reader = IsolationReader(roots.proc, roots.sys)
        self._facts: dict[Identity, _KnownFacts] = {}
        self._next = 0  # index of the first process of the next turn
        self._turns_to_refresh = 0
        self._minors: dict[str, int] = {}
        self._memory_nodes = len(nodes(roots.sys))
        self._breaches: dict[tuple[str, str], _Breach] = {}
        self._gpus: frozenset[str] = frozenset()

    def observe(self, processes: Iterable[TrackedProcess], gpus: Collection[str]) -> bool:
        """Read facts; return whether any changed. *gpus*: the GPUs that answered."""
        self._gpus = frozenset(gpus)
        listed = {p.identity: p for p in processes if p.identity is not None and not p.is_dead}
        self._facts = {i: facts for i, facts in self._facts.items() if i in listed}
        owners = {owner_group(p.snapshot.owner) for p in listed.values() if p.snapshot is not None}
        self._turns_to_refresh -= 1
        if len(owners) > 1 or self._turns_to_refresh < 0:
            self._turns_to_refresh = REFRESH_TURNS
            identities = sorted(listed)
            first = self._next if self._next < len(identities) > READS_MAX else 0
            due = [*identities[first:], *identities[:first]][:READS_MAX]
            self._next = first + len(due)
        else:
            due = [i for i in listed if i not in self._facts][:READS_MAX]
        if not due:
            return False
        self._reader.begin_turn()
        changed = [self._read(identity) for identity in due]
        return any(changed)

    def _read(self, identity: Identity) -> bool:
        facts = self._reader.read(identity[0])
        known = self._facts.setdefault(identity, _KnownFacts())
        if known.read == facts:
            return False
        known.read = facts
        known.set_text()
        return True

    def set_limits(self, identity: Identity, limits: Mapping[str, str]) -> None:
        """Add facts of the process's environment."""
        known = self._facts.get(identity)
        if known is not None and known.limits != limits:
            known.limits = dict(limits)
            known.set_text()

    def text_of(self, identity: Identity | None) -> str:
        """Return the facts of a process as the attribute ATTRIBUTE; "" without facts."""
        known = self._facts.get(identity) if identity else None
        return known.text if known else ""

    def _facts_of(self, process: TrackedProcess) -> Facts:
        known = self._facts.get(process.identity) if process.identity else None
        facts = known.read | known.limits if known else {}
        return {**facts, HELD: process.gpu_process.gpu}

    def publish(
        self,
        publisher: EventPublisher,
        processes: Sequence[tuple[TrackedProcess, Mapping[str, str]]],
        now: tuple[int, int],
        refuse: Callable[[float], float],
    ) -> bool:
        """Report pairs whose violated boundaries changed. False: the queue is full.

        *processes*: with their attributes of `gpu.process`. *now*: boot time and wall time. *refuse*: the rate limit.
        """
        now_ns, wall_ns = now
        pairs = dict(self._pairs(processes))
        for names, breach in list(self._breaches.items()):
            held = {gpu for job in breach.pair for gpu, _ in job.job.gpus}
            if (
                names in pairs or not held <= self._gpus
            ):  # jobs on a GPU that does not answer still run
                continue
            if not publisher.publish(self._event(breach, (), now_ns, wall_ns)):
                return False
            del self._breaches[names]
        for names, (pair, violated) in pairs.items():
            breach = self._breaches.get(names) or self._new_breach(names, pair, now_ns)
            is_old = now_ns - breach.reported_ns >= REPEAT_NS
            if violated == breach.reported and not is_old:
                continue
            if refuse(now_ns / 1e9) or not publisher.publish(
                self._event(breach, violated, now_ns, wall_ns)
            ):
                return False
            breach.reported, breach.reported_ns = violated, now_ns
            self._breaches[names] = breach
        return True

    def _new_breach(
        self, names: tuple[str, str], pair: tuple[TenantJob, TenantJob], now_ns: int
    ) -> _Breach:
        digest = zlib.crc32("\n".join(names).encode())
        return _Breach(f"{self._boot}/isolation/{digest:08x}/{now_ns}", now_ns, pair)

    def _pairs(
        self, processes: Sequence[tuple[TrackedProcess, Mapping[str, str]]]
    ) -> Iterator[
        tuple[tuple[str, str], tuple[tuple[TenantJob, TenantJob], tuple[BoundaryVerdict, ...]]]
    ]:
        """Yield the pairs of jobs of different tenants with a violated boundary of REPORTED."""
        jobs = self._jobs(processes)
        tenants = {job.tenant for job in jobs.values()}
        if len(tenants) < 2:
            return
        host = self._host(processes)
        # No layout divides the memory of a host with one node.
        reported = [b for b in REPORTED if b != "memory_nodes" or self._memory_nodes > 1]
        ordered = [jobs[key] for key in sorted(jobs)]
        pairs = [pair for pair in combinations(ordered, 2) if pair[0].tenant != pair[1].tenant]
        for pair in pairs[:PAIRS_MAX]:
            verdicts = verify(pair[0].job, pair[1].job, host)
            violated = tuple(
                v
                for v in verdicts
                if v.verdict is BoundaryStatus.VIOLATED and v.boundary in reported
            )
            if violated:
                yield (pair[0].job.name, pair[1].job.name), (pair, violated)

    def _jobs(
        self, processes: Sequence[tuple[TrackedProcess, Mapping[str, str]]]
    ) -> dict[tuple[str, str], TenantJob]:
        members: dict[tuple[str, str], list[tuple[TrackedProcess, Mapping[str, str]]]] = {}
        for process, attributes in processes:
            name = job_name(attributes.get("source", ""), attributes)
            if name and not process.is_dead and not process.is_unsettled:
                members.setdefault((attributes["source"], name), []).append((process, attributes))
        jobs: dict[tuple[str, str], TenantJob] = {}
        for key, group in members.items():
            tenant = tenant_of(group[0][1])
            if tenant is not None:
                held = frozenset(
                    HeldGpu(p.gpu_process.gpu, p.gpu_process.gpu_instance) for p, _ in group
                )
                facts = tuple(self._facts_of(p) for p, _ in group)
                jobs[key] = TenantJob(JobOnHost(key[1], held, facts), tenant)
        return jobs

    def _host(self, processes: Sequence[tuple[TrackedProcess, Mapping[str, str]]]) -> HostFacts:
        """Return the device numbers of GPUs, and which are divided."""
        held = {process.gpu_process.gpu for process, _ in processes}
        if held - self._minors.keys():
            self._minors = dict.fromkeys(held, -1) | driver_gpu_minors(self._roots.proc)
        divided = {
            p.gpu_process.gpu for p, _ in processes if p.gpu_process.gpu_instance is not None
        }
        return HostFacts(
            {
                gpu: GpuFacts(minor=minor if minor >= 0 else None, mig_mode=gpu in divided)
                for gpu, minor in self._minors.items()
            }
        )

    def _event(
        self, breach: _Breach, violated: tuple[BoundaryVerdict, ...], now_ns: int, wall_ns: int
    ) -> HealthEvent:
        names = [job.job.name for job in breach.pair]
        tenants = [
            f"{name} ({job.tenant.kind} {job.tenant.name})"
            for name, job in zip(names, breach.pair, strict=True)
        ]
        evidence = "; ".join(f"{v.boundary}: {v.evidence}" for v in violated)
        both = " and ".join(tenants)
        message = (
            f"jobs {both} are not isolated: {evidence}"
            if violated
            else f"jobs {both} are isolated again, or no longer share the host"
        )
        attributes = {
            "state": "violated" if violated else "ended",
            "job": names[0],
            "other_job": names[1],
            "boundaries": " ".join(v.boundary for v in violated),
            **{v.boundary: v.evidence for v in violated},
        }
        return HealthEvent(
            event_id=breach.event_id,
            device_kind="host",
            device=device_key(" and ".join(names)),
            name=EVENT,
            message=message[:MESSAGE_CHARACTERS_MAX],
            boottime_ns=breach.since_ns,
            last_boottime_ns=now_ns,
            wall_time_ns=wall_ns - (now_ns - breach.since_ns),
            revision=revision_at(now_ns),
            attributes=attributes,
        )


def tenant_of(attributes: Mapping[str, str]) -> Tenant | None:
    """Return the tenant of a process; None if unknown. The user of a container is not the owner of its pod."""
    if attributes.get("source") == "kubernetes":
        return Tenant("namespace", attributes["namespace"]) if "namespace" in attributes else None
    user = parse_unsigned(attributes.get("user_id"))
    return None if user is None else Tenant("user", str(user))
