"""Why a Slurm job is pending: how many nodes remain after each of its constraints, from scontrol's output. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .host_sets import HostSetError, expand_hosts
from .mirror_format import NODES_MAX, MirrorError, is_node_name
from .slurm_text import BUSY, DOWN, DRAINED, OUT, gpus_of, gres_of, parse_reason, state_names

#: Slurm's flags of a node on which no job starts.
UNAVAILABLE = OUT | DOWN | BUSY | {"NOT_RESPONDING"}
OUT_OF_SERVICE = DRAINED | DOWN | {"NOT_RESPONDING"}
#: Reasons of Slurm that no node can cure -> what they mean.
NOT_FOR_NODES = {
    "BeginTime": "its start time has not come; a requeued job waits two minutes",
    "Dependency": "it waits for another job",
    "DependencyNeverSatisfied": "the job that it waits for has failed: cancel it",
    "JobHeldAdmin": "an administrator holds it: scontrol release",
    "JobHeldUser": "its user holds it: scontrol release",
    "Licenses": "it waits for a license",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
}
REASONS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class PendingJob:
    """What a job asks for. *features* is None where the expression is more than names that must all be there."""

    number: str
    state: str
    reason: str
    nodes: int
    partitions: frozenset[str]
    gpus_per_node: int
    cpus_per_node: int
    memory_mb_per_node: int
    features: frozenset[str] | None
    named: frozenset[str]
    left_out: frozenset[str]
    reservation: str
    #: Other generic resources of each node, and GPUs of a certain type: count by `name` or `name:type`.
    gres: Mapping[str, int] = field(default_factory=dict)
    #: Licenses that are all needed, by name.
    licenses: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node as Slurm shows it."""

    name: str
    flags: frozenset[str]
    reason: str
    partitions: frozenset[str]
    features: frozenset[str]
    gpus: int
    gpus_used: int
    cpus: int
    cpus_used: int
    memory_mb: int
    memory_mb_used: int
    gres: Mapping[str, int] = field(default_factory=dict)  #: count by `name` and by `name:type`


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """One thing that nodes must have: how many are left, and who falls out by it, with why."""

    name: str
    left: int
    lost: tuple[str, ...] = ()
    why: Mapping[str, int] = field(default_factory=dict)


def _fields(line: str) -> dict[str, str]:
    return dict(re.findall(r"(?:^| )([A-Za-z/_:]+)=(\S*)", line))


def _number(text: str, pattern: str = r"(\d+)") -> int:
    match = re.search(pattern, text)
    return int(match[1]) if match and len(match[1]) <= 12 else 0


def _names(text: str) -> frozenset[str]:
    if text in ("", "(null)"):
        return frozenset()
    try:
        return frozenset(expand_hosts(text, NODES_MAX))
    except HostSetError as error:
        raise MirrorError(f"{text[:80]!r} is not a list of nodes: {error}") from error


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split(",")) - {"", "(null)"}


def parse_job(text: str) -> PendingJob:
    """Return the job of `scontrol -o show job NUMBER`; of an array or a heterogeneous job its first part. Raises MirrorError."""
    line = next((each for each in text.splitlines() if "JobId=" in each), "")
    fields = _fields(line)
    if "JobState" not in fields or "JobId" not in fields:
        raise MirrorError("expected the text of scontrol -o show job")
    nodes = max(_number(fields.get("NumNodes", "")), 1)
    gpus = gpus_of(fields.get("TresPerNode", ""))
    if not gpus:  # a total, of equal shares; TRES has it only where Slurm accounts for GPUs
        total = max(
            gpus_of(fields.get("TresPerJob", "")),
            _number(fields.get("TRES", ""), r"gres/gpu=(\d+)"),
        )
        gpus = -(-total // nodes)
    gres: Counter[str] = Counter()
    requested = fields.get("TresPerNode", "") + (
        "," + fields.get("TresPerJob", "") if nodes == 1 else ""
    )
    for name, kind, count in gres_of(requested):
        if (name, kind) != ("gpu", ""):
            gres[f"{name}:{kind}" if kind else name] += count
    features = fields.get("Features", "(null)")
    plain = features == "(null)" or re.fullmatch(r"[\w.-]+(?:&[\w.-]+)*", features)
    return PendingJob(
        number=fields["JobId"],
        state=fields["JobState"],
        reason=fields.get("Reason", ""),
        nodes=nodes,
        partitions=_words(fields.get("Partition", "")),
        gpus_per_node=gpus,
        cpus_per_node=max(
            _number(fields.get("MinCPUsNode", "")), -(-_number(fields.get("NumCPUs", "")) // nodes)
        ),
        memory_mb_per_node=_megabytes(fields.get("MinMemoryNode", "0")),
        features=_words(features.replace("&", ",")) if plain else None,
        named=_names(fields.get("ReqNodeList", "")),
        left_out=_names(fields.get("ExcNodeList", "")),
        reservation=fields.get("Reservation", "").replace("(null)", ""),
        gres=dict(gres),
        licenses=_requested_licenses(fields.get("Licenses", "")),
    )


def _requested_licenses(text: str) -> dict[str, int]:
    """Return the licenses of `ansys@db:2,tool`; nothing for alternatives (`a:1|b:1`)."""
    if "|" in text or text in ("", "(null)"):
        return {}
    found = (re.fullmatch(r"([^:,]+)(?::([0-9]{1,9}))?", one) for one in re.split("[,;]", text))
    return {one[1]: int(one[2] or 1) for one in found if one}


def parse_licenses(text: str) -> dict[str, int]:
    """Return how many there are of each license, in use or not, of `scontrol -o show license`."""
    found: Counter[str] = Counter()  # a hierarchical resource has a row for each layer
    for line in text.splitlines():
        fields = _fields(line)
        if "LicenseName" in fields:
            found[fields["LicenseName"]] += _number(fields.get("Total", ""))
    return dict(found)


def _megabytes(text: str) -> int:
    match = re.fullmatch(r"(\d{1,12})(?:\.\d+)?([KMGT]?)", text)
    if match is None:
        return 0
    units = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}
    return int(int(match[1]) * units[match[2]])


def parse_nodes(text: str) -> list[SlurmNode]:
    """Return the nodes of `scontrol -d -o show node`; without -d Slurm does not say which GPUs are in use. Raises MirrorError."""
    found = list[SlurmNode]()
    for line in text.splitlines():
        head, _, reason = line.partition(" Reason=")
        fields = _fields(head)
        name = fields.get("NodeName", "")
        if not is_node_name(name):
            continue
        if len(found) >= NODES_MAX:
            raise MirrorError(f"Slurm has more than {NODES_MAX} nodes")
        state = fields.get("State", "UNKNOWN")
        found.append(
            SlurmNode(
                name, state_names(state), parse_reason(reason)[0], _words(fields.get("Partitions", "")),
                _words(fields.get("ActiveFeatures", "")), gpus_of(fields.get("Gres", "")),
                gpus_of(fields.get("GresUsed", "")), _number(fields.get("CPUTot", "")),
                _number(fields.get("CPUAlloc", "")), _number(fields.get("RealMemory", "")), _number(fields.get("AllocMem", "")),
                _gres_of_node(fields.get("Gres", "")),
            )
        )  # fmt: skip
    if not found:
        raise MirrorError("Slurm names no nodes: expected the text of scontrol -o show node")
    return found


def _gres_of_node(text: str) -> dict[str, int]:
    found: Counter[str] = Counter()
    for name, kind, count in gres_of(text):
        found[name] += count
        if kind:
            found[f"{name}:{kind}"] += count
    return dict(found)


def parse_reservations(text: str) -> dict[str, frozenset[str]]:
    """Return the nodes of each reservation of `scontrol -o show reservation` that is active. Raises MirrorError."""
    found: dict[str, frozenset[str]] = {}
    for line in text.splitlines():
        fields = _fields(line)
        if fields.get("State") == "ACTIVE" and "ReservationName" in fields:
            found[fields["ReservationName"]] = _names(fields.get("Nodes", ""))
    return found


def steps_of(
    job: PendingJob, nodes: Sequence[SlurmNode], reservations: Mapping[str, Collection[str]],
    unfit: Mapping[str, str] | None = None,
) -> tuple[list[NodeFilter], list[str]]:  # fmt: skip
    """Return how many nodes are left after each thing, and their names. *unfit*: nodes below the health floor, with why."""
    left, steps = list(nodes), [NodeFilter("all nodes", len(nodes))]
    for name, reason_of in _conditions(job, reservations, unfit):
        reasons = {one.name: reason_of(one) for one in left}
        lost = tuple(node for node, why in reasons.items() if why)
        if lost:
            left = [one for one in left if not reasons[one.name]]
            why = Counter(reasons[node] for node in lost)
            steps.append(NodeFilter(name, len(left), lost, dict(why.most_common(REASONS_SHOWN))))
    return steps, [one.name for one in left]


def obstacle(
    job: PendingJob,
    nodes: Sequence[SlurmNode],
    reservations: Mapping[str, Collection[str]],
    lost: str,
    licenses: Mapping[str, int] | None = None,
) -> str:
    """Return why *job* could never run without the node *lost*; "" if no obstacle is known.

    *licenses*: how many there are of each; None: not known. Nodes in use, reserved by others or in maintenance become free; nodes that are drained or down may not.
    """
    if lost in job.named:
        return f"it asks for {lost} (--nodelist)"
    for name, count in job.licenses.items():
        if licenses is not None and (total := licenses.get(name, 0)) < count:
            return f"it needs {count} of license {name}, and Slurm has {total}"
    left = [one for one in nodes if one.name != lost]
    for name, reason_of in _conditions(job, reservations, None):
        if name in ("reservations", "in use"):
            continue
        if name == "state":
            left = [one for one in left if one.flags.isdisjoint(OUT_OF_SERVICE)]
        else:
            left = [one for one in left if not reason_of(one)]
        if len(left) < job.nodes:
            return f"without {lost}, {len(left)} nodes are left for the {job.nodes} that it needs ({name})"
    return ""


Condition = Callable[[SlurmNode], str]


def _conditions(
    job: PendingJob, reservations: Mapping[str, Collection[str]], unfit: Mapping[str, str] | None
) -> Iterator[tuple[str, Condition]]:
    """Yield each thing with what is missing of a node, "" if nothing is; what is the job's own wish first."""
    own = set(reservations.get(job.reservation, ()))
    reserved = {node: name for name, names in reservations.items() if name != job.reservation for node in names}  # fmt: skip
    partition = ",".join(sorted(job.partitions))
    yield "partition", lambda one: "" if one.partitions & job.partitions else f"not in {partition}"
    if job.features:
        wanted = job.features
        yield "features", lambda one: "&".join(sorted(wanted - one.features))
    yield "size", lambda one: _too_small(job, one)
    if job.left_out:
        yield "left out by the job", lambda one: "excluded" if one.name in job.left_out else ""
    if job.reservation:
        yield "its reservation", lambda one: "" if one.name in own else f"not in {job.reservation}"
    yield "state", _unavailable
    yield "reservations", lambda one: reserved.get(one.name, "")
    yield "in use", lambda one: _in_use(job, one)
    if unfit is not None:
        yield "health", lambda one: unfit.get(one.name, "")


def _too_small(job: PendingJob, one: SlurmNode) -> str:
    if one.gpus < job.gpus_per_node:
        return f"{one.gpus} GPUs of {job.gpus_per_node}"
    if one.cpus < job.cpus_per_node:
        return f"{one.cpus} CPUs of {job.cpus_per_node}"
    for name, count in job.gres.items():
        if (available := one.gres.get(name, 0)) < count:
            return f"{available} {name} of {count}"
    too_little = one.memory_mb < job.memory_mb_per_node
    return f"{one.memory_mb} MB of {job.memory_mb_per_node}" if too_little else ""


def _in_use(job: PendingJob, one: SlurmNode) -> str:
    if one.gpus - one.gpus_used < job.gpus_per_node:
        return "GPUs in use"
    if one.cpus - one.cpus_used < max(job.cpus_per_node, 1):
        return "CPUs in use"
    return "memory in use" if one.memory_mb - one.memory_mb_used < job.memory_mb_per_node else ""


def _unavailable(one: SlurmNode) -> str:
    flags = one.flags & UNAVAILABLE
    return "+".join(sorted(flags)) + (f": {one.reason}" if one.reason else "") if flags else ""


def verdict(job: PendingJob, steps: Sequence[NodeFilter]) -> str:
    """Return in a sentence what the job waits for."""
    if job.state != "PENDING":
        return f"job {job.number} is {job.state}: it does not wait"
    reason = job.reason.partition(",")[0]
    if reason in NOT_FOR_NODES:
        return f"Slurm: {reason}: {NOT_FOR_NODES[reason]}"
    short = next((step for step in steps if step.left < job.nodes), None)
    if short is None and reason == "Priority":
        return f"Slurm: Priority: jobs before it in the queue come first; {steps[-1].left} nodes are left for the {job.nodes} that it needs"
    if short is None:
        return f"{steps[-1].left} nodes are left for the {job.nodes} that it needs (Slurm: {job.reason})"
    return f"from {short.name!r} on too few nodes are left: {short.left} of the {job.nodes} that it needs (Slurm: {job.reason})"
