"""VerifyIsolation: two jobs on a host by name, the host's inventory, and the answer without its price."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Container, Mapping
from typing import NamedTuple

from ...contract.isolation import (
    BOUNDARIES,
    BoundaryStatus,
    BoundaryVerdict,
    GpuFacts,
    HeldGpu,
    HostFacts,
    JobOnHost,
    parse_numbers,
    verify,
)
from ...contract.wire import interference_pb2 as wire
from ...fingerprints.isolation_layout import propose
from ..errors import InvalidArgument, NotFound
from ..fleet.fleet import Fleet
from ..fleet.inventory_cache import Inventory
from ..fleet.jobs import Job, parse_count, parse_number
from ..runs.accumulator import run_key
from .validation import check_range, check_text, node_of

NAME_CHARACTERS_MAX = 512
#: Limits of a planned layout.
GPUS_MAX, LIST_CHARACTERS_MAX, GPU_CHARACTERS_MAX = 64, 256, 96
#: BoundaryStatus -> its value on the wire.
STATUSES = {
    BoundaryStatus.VERIFIED: wire.BOUNDARY_STATUS_VERIFIED,
    BoundaryStatus.VIOLATED: wire.BOUNDARY_STATUS_VIOLATED,
    BoundaryStatus.NOT_VERIFIED: wire.BOUNDARY_STATUS_NOT_VERIFIED,
}
PLANNED = "(planned)"
#: A path of an NVMe subsystem, which is hidden and has no number.
_PATH = re.compile(r"nvme\d+c\d+n\d+")
VisibleName = Callable[[str, Container[str]], str | None]


class CheckedIsolation(NamedTuple):
    """The answer without its price; the runs to price ("": no run), and how they share the host."""

    response: wire.VerifyIsolationResponse
    runs: tuple[str, str]
    sharing: wire.Sharing
    is_priced: bool


def check_isolation(
    request: wire.VerifyIsolationRequest, fleet: Fleet, visible: VisibleName
) -> CheckedIsolation:
    """Return the verdicts on two jobs. *visible*: the name that a caller may see. Raises InvalidArgument, NotFound."""
    accepted = _accepted(request)
    check_text("training", request.training, NAME_CHARACTERS_MAX)
    check_text("inference", request.inference, NAME_CHARACTERS_MAX)
    name = node_of(request.node, "node")
    host = fleet.index.get(name)
    if host is None:
        raise NotFound(f"no node {name!r}: no host of that name has ever registered")
    facts = host_facts(fleet.attributes[host])
    inference = _running("inference", request.inference, fleet, host, visible)
    if request.HasField("planned_training"):
        training = _planned(request, facts)
    else:
        training = _running("training", request.training, fleet, host, visible)
        if training == inference:
            raise InvalidArgument(
                "training", f"{request.training!r} is the same job as inference; name two jobs"
            )
    verdicts = verify(training, inference, facts)
    response = wire.VerifyIsolationResponse(
        boundaries=[_check(verdict, accepted) for verdict in verdicts]
    )
    response.passed = all(
        check.accepted or check.status == wire.BOUNDARY_STATUS_VERIFIED
        for check in response.boundaries
    )
    layouts, advice = propose(training, inference, facts, verdicts)
    response.advice.extend(advice)
    for layout in layouts:
        response.layouts.add(
            job=layout.job,
            gpus=layout.gpus,
            gpu_slices=layout.gpu_slices,
            cpus=layout.cpus,
            memory_nodes=layout.memory_nodes,
            nics=layout.nics,
        )
    is_priced = any(check.accepted for check in response.boundaries)
    runs = request.training, request.inference
    return CheckedIsolation(response, runs, _sharing(training, inference, verdicts), is_priced)


def host_facts(inventory: Inventory) -> HostFacts:
    """Return the facts about a host that boundaries and layouts need."""
    gpus: dict[str, GpuFacts] = {}
    disks: set[str] = set()
    nodes: dict[int, frozenset[int]] = {}
    for (kind, key), attributes in inventory.items():
        if kind == "gpu":
            gpus[key] = _gpu_facts(attributes, inventory)
        elif kind == "disk" and not _PATH.fullmatch(key):
            disks.add(attributes.get("device_number", ""))
        elif kind == "numa" and (node := parse_number(key.removeprefix("node"))) is not None:
            nodes[node] = parse_numbers(attributes.get("cpus", "")) or frozenset()
    # A disk without a number is unknown, and so are all disks of an agent that reports none
    return HostFacts(gpus, frozenset(disks) if disks and "" not in disks else None, nodes)


def _gpu_facts(attributes: Mapping[str, str], inventory: Inventory) -> GpuFacts:
    address = attributes.get("pci_address", "")
    function = inventory.get(("pcie", address), {})
    mode = attributes.get("mig_mode")
    return GpuFacts(
        address=address,
        minor=parse_number(attributes.get("minor_number")),
        mig_mode=None if mode is None else mode == "1",
        numa_node=parse_number(function.get("numa_node")),
        parents=tuple(function.get("parents", "").split()),
        iommu_group=function.get("iommu_group", ""),
        iommu_type=function.get("iommu_type", ""),
        nics=tuple(function.get("nearest_nics", "").split()),
    )


def _accepted(request: wire.VerifyIsolationRequest) -> dict[BoundaryStatus, frozenset[str]]:
    fields = {
        BoundaryStatus.NOT_VERIFIED: ("accept_not_verified", request.accept_not_verified),
        BoundaryStatus.VIOLATED: ("accept_violated", request.accept_violated),
    }
    for field, names in fields.values():
        check_range(field, len(names), 0, len(BOUNDARIES))
        for index, name in enumerate(names):
            if name not in BOUNDARIES:
                raise InvalidArgument(
                    f"{field}[{index}]", f"{name[:64]!r}, expected one of {', '.join(BOUNDARIES)}"
                )
        if len(set(names)) < len(names):
            raise InvalidArgument(field, "a boundary is named twice; name each once")
    return {verdict: frozenset(names) for verdict, (_, names) in fields.items()}


def _running(field: str, name: str, fleet: Fleet, host: int, visible: VisibleName) -> JobOnHost:
    """Return a job on *host* by its name, or by the id of its run. Raises InvalidArgument, NotFound."""
    if not name:
        raise InvalidArgument(field, "empty; name a job on the node, or its run")
    jobs = {job.name: job for job in fleet.jobs.holding(host) if job.name}
    keys = {run_key(job.key, fleet.names): job for job in jobs.values()}
    known: dict[str, Job] = {**keys, **jobs}
    shown = visible(name, known) or visible(name.rpartition("@")[0], known)
    if shown is None:
        own = sorted(job for job in jobs if visible(job, known))
        near = difflib.get_close_matches(name, own, 3, 0.6) or own[:3]
        hint = f"jobs there: {', '.join(near)}" if near else "no job holds a GPU there"
        raise NotFound(f"{field}: no job {name!r} runs on {fleet.names[host]}; {hint}")
    return fleet.jobs.isolation_of(host, known[shown])


def _planned(request: wire.VerifyIsolationRequest, facts: HostFacts) -> JobOnHost:
    """Return the planned job as if it ran with exactly what the plan states. Raises InvalidArgument, NotFound."""
    field, plan = "planned_training", request.planned_training
    check_range(f"{field}.gpus", len(plan.gpus), 1, GPUS_MAX)
    held: set[HeldGpu] = set()
    for index, text in enumerate(plan.gpus):
        check_text(f"{field}.gpus[{index}]", text, GPU_CHARACTERS_MAX)
        gpu, slash, instance = text.partition("/")
        if gpu not in facts.gpus:
            raise NotFound(
                f"{field}.gpus[{index}]: no GPU {gpu!r} on the node; it has {', '.join(sorted(facts.gpus)[:8]) or 'none'}"
            )
        if slash and not (instance.isascii() and instance.isdigit() and len(instance) <= 3):
            raise InvalidArgument(
                f"{field}.gpus[{index}]", f"{text!r}, expected UUID or UUID/INSTANCE, as GPU-.../1"
            )
        held.add(HeldGpu(gpu, parse_count(instance) if slash else None))
    planned: dict[str, str] = {}
    for key, name, text in (
        ("cpus", "cpus", plan.cpus),
        ("mems", "memory_nodes", plan.memory_nodes),
    ):
        check_text(f"{field}.{name}", text, LIST_CHARACTERS_MAX)
        if text and not parse_numbers(text):
            raise InvalidArgument(
                f"{field}.{name}", f"{text[:64]!r}, expected numbers and ranges, as 0-15,32"
            )
        planned |= {key: text} if text else {}
    return JobOnHost(request.training or PLANNED, frozenset(held), (planned,))


def _check(
    verdict: BoundaryVerdict, accepted: Mapping[BoundaryStatus, frozenset[str]]
) -> wire.BoundaryCheck:
    return wire.BoundaryCheck(
        boundary=verdict.boundary,
        status=STATUSES[verdict.verdict],
        evidence=verdict.evidence,
        accepted=verdict.boundary in accepted.get(verdict.verdict, frozenset()),
    )


def _sharing(
    training: JobOnHost, inference: JobOnHost, verdicts: list[BoundaryVerdict]
) -> wire.Sharing:
    """Return the form of sharing by which the two are priced."""
    if not {held.gpu for held in training.gpus} & {held.gpu for held in inference.gpus}:
        return wire.SHARING_HOST
    by_name = {verdict.boundary: verdict.verdict for verdict in verdicts}
    if by_name["mig"] is BoundaryStatus.VERIFIED:
        return wire.SHARING_MIG
    return (
        wire.SHARING_MPS if by_name["mps"] is BoundaryStatus.VERIFIED else wire.SHARING_TIME_SLICING
    )
