"""Why a Slurm job is pending: how many nodes remain after each constraint. Pure functions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...contract.host_sets import HostSetError, expand_hosts
from ...contract.text import counted
from ..mirror_format import NODES_MAX, MirrorError, is_node_name
from .text import BUSY, DOWN, DRAINED, OUT, gpus_of, gres_of, parse_reason, state_names

#: Slurm's flags of nodes that start no job.
UNAVAILABLE = OUT | DOWN | BUSY | {"NOT_RESPONDING"}
OUT_OF_SERVICE = DRAINED | DOWN | {"NOT_RESPONDING"}
#: Slurm's reasons that no node can resolve -> explanation.
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
    """A job's request. *features*: None for an expression other than a conjunction of names."""

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
    #: Other generic resources per node, and GPUs of a type: count by `name` or `name:type`.
    gres: Mapping[str, int] = field(default_factory=dict)
    #: Required licenses, by name.
    licenses: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node from scontrol's output."""

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
    """A condition: the remaining nodes, the nodes that it removes, and the reasons."""

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
    """Return the job of `scontrol -o show job`, the first of an array. Raises MirrorError."""
    line = next((line for line in text.splitlines() if "JobId=" in line), "")
    fields = _fields(line)
    if "JobState" not in fields or "JobId" not in fields:
        raise MirrorError("expected the text of scontrol -o show job")
    nodes = max(_number(fields.get("NumNodes", "")), 1)
    gpus = gpus_of(fields.get("TresPerNode", ""))
    if not gpus:  # a total, in equal shares; TRES has GPUs only if Slurm accounts for them
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
    """Return the licenses of `ansys@db:2,tool`; none for alternatives (`a:1|b:1`)."""
    if "|" in text or text in ("", "(null)"):
        return {}
    matches = (re.fullmatch(r"([^:,]+)(?::([0-9]{1,9}))?", item) for item in re.split("[,;]", text))
    return {match[1]: int(match[2] or 1) for match in matches if match}


def parse_licenses(text: str) -> dict[str, int]:
    """Return the total of each license of `scontrol -o show license`."""
    totals: Counter[str] = Counter()  # a hierarchical resource has a row for each layer
    for line in text.splitlines():
        fields = _fields(line)
        if "LicenseName" in fields:
            totals[fields["LicenseName"]] += _number(fields.get("Total", ""))
    return dict(totals)


def _megabytes(text: str) -> int:
    match = re.fullmatch(r"(\d{1,12})(?:\.\d+)?([KMGT]?)", text)
    if match is None:
        return 0
    units = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}
    return int(int(match[1]) * units[match[2]])


def parse_nodes(text: str) -> list[SlurmNode]:
    """Return the nodes of `scontrol -d -o show node` (-d: with used GPUs). Raises MirrorError."""
    nodes = list[SlurmNode]()
    for line in text.splitlines():
        head, _, reason = line.partition(" Reason=")
        fields = _fields(head)
        name = fields.get("NodeName", "")
        if not is_node_name(name):
            continue
        if len(nodes) >= NODES_MAX:
            raise MirrorError(f"Slurm has more than {NODES_MAX} nodes")
        state = fields.get("State", "UNKNOWN")
        nodes.append(
            SlurmNode(
                name, state_names(state), parse_reason(reason)[0], _words(fields.get("Partitions", "")),
                _words(fields.get("ActiveFeatures", "")), gpus_of(fields.get("Gres", "")),
                gpus_of(fields.get("GresUsed", "")), _number(fields.get("CPUTot", "")),
                _number(fields.get("CPUAlloc", "")), _number(fields.get("RealMemory", "")), _number(fields.get("AllocMem", "")),
                _gres_of_node(fields.get("Gres", "")),
            )
        )  # fmt: skip
    if not nodes:
        raise MirrorError("Slurm names no nodes: expected the text of scontrol -o show node")
    return nodes


def _gres_of_node(text: str) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for name, kind, count in gres_of(text):
        counts[name] += count
        if kind:
            counts[f"{name}:{kind}"] += count
    return dict(counts)


def parse_reservations(text: str) -> dict[str, frozenset[str]]:
    """Return the nodes of each active reservation.

    *text*: from `scontrol -o show reservation`. Raises MirrorError.
    """
    nodes_by_name: dict[str, frozenset[str]] = {}
    for line in text.splitlines():
        fields = _fields(line)
        if fields.get("State") == "ACTIVE" and "ReservationName" in fields:
            nodes_by_name[fields["ReservationName"]] = _names(fields.get("Nodes", ""))
    return nodes_by_name


def steps_of(
    job: PendingJob, nodes: Sequence[SlurmNode], reservations: Mapping[str, Collection[str]],
    unfit: Mapping[str, str] | None = None,
) -> tuple[list[NodeFilter], list[str]]:  # fmt: skip
    """Return the nodes left after each condition, and their names. *unfit*: node -> reason."""
    left, steps = list(nodes), [NodeFilter("all nodes", len(nodes))]
    for name, reason_of in _conditions(job, reservations, unfit):
        reasons = {node.name: reason_of(node) for node in left}
        lost = tuple(node for node, why in reasons.items() if why)
        if lost:
            left = [node for node in left if not reasons[node.name]]
            why = Counter(reasons[node] for node in lost)
            steps.append(NodeFilter(name, len(left), lost, dict(why.most_common(REASONS_SHOWN))))
    return steps, [node.name for node in left]


def obstacle(
    job: PendingJob,
    nodes: Sequence[SlurmNode],
    reservations: Mapping[str, Collection[str]],
    lost: str,
    licenses: Mapping[str, int] | None = None,
) -> str:
    """Return why *job* could never run without the node *lost*; "" if no obstacle is known.

    *licenses*: total of each; None: unknown. Nodes in use, reserved or in maintenance become free;
    drained and down nodes may not.
    """
    if lost in job.named:
        return f"it asks for {lost} (--nodelist)"
    for name, count in job.licenses.items():
        if licenses is not None and (total := licenses.get(name, 0)) < count:
            return f"it needs {count} of license {name}, and Slurm has {total}"
    left = [node for node in nodes if node.name != lost]
    for name, reason_of in _conditions(job, reservations, None):
        if name in ("reservations", "in use"):
            continue
        if name == "state":
            left = [node for node in left if node.flags.isdisjoint(OUT_OF_SERVICE)]
        else:
            left = [node for node in left if not reason_of(node)]
        if len(left) < job.nodes:
            return f"without {lost}, {counted(len(left), 'node')} left for the {job.nodes} that it needs ({name})"
    return ""


Condition = Callable[[SlurmNode], str]


def _conditions(
    job: PendingJob, reservations: Mapping[str, Collection[str]], unfit: Mapping[str, str] | None
) -> Iterator[tuple[str, Condition]]:
    """Yield (name, function from a node to its deficiency or ""), own conditions first."""
    own = set(reservations.get(job.reservation, ()))
    reserved = {node: name for name, names in reservations.items() if name != job.reservation for node in names}  # fmt: skip
    partition = ",".join(sorted(job.partitions))
    yield (
        "partition",
        lambda node: "" if node.partitions & job.partitions else f"not in {partition}",
    )
    if job.features:
        wanted = job.features
        yield "features", lambda node: "&".join(sorted(wanted - node.features))
    yield "size", lambda node: _too_small(job, node)
    if job.left_out:
        yield "left out by the job", lambda node: "excluded" if node.name in job.left_out else ""
    if job.reservation:
        yield (
            "its reservation",
            lambda node: "" if node.name in own else f"not in {job.reservation}",
        )
    yield "state", _unavailable
    yield "reservations", lambda node: reserved.get(node.name, "")
    yield "in use", lambda node: _in_use(job, node)
    if unfit is not None:
        yield "health", lambda node: unfit.get(node.name, "")


def _too_small(job: PendingJob, one: SlurmNode) -> str:
    if one.gpus < job.gpus_per_node:
        return f"{counted(one.gpus, 'GPU')} of {job.gpus_per_node}"
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
    """Return a sentence on the reason that the job waits."""
    if job.state != "PENDING":
        return f"job {job.number} is {job.state}: it does not wait"
    reason = job.reason.partition(",")[0]
    if reason in NOT_FOR_NODES:
        return f"Slurm: {reason}: {NOT_FOR_NODES[reason]}"
    short = next((step for step in steps if step.left < job.nodes), None)
    if short is None and reason == "Priority":
        return f"Slurm: Priority: jobs before it in the queue come first; {counted(steps[-1].left, 'node')} left for the {job.nodes} that it needs"
    if short is None:
        return f"{counted(steps[-1].left, 'node')} left for the {job.nodes} that it needs (Slurm: {job.reason})"
    return f"from {short.name!r} on too few nodes are left: {short.left} of the {job.nodes} that it needs (Slurm: {job.reason})"
