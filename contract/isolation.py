"""Isolation of two jobs on one host: the facts that agents report, and a verdict on each boundary.

Facts are `key=value` pairs, separated by spaces, so that one attribute of an event has all of a process:

    cpus        cores of its control group (`cpuset.cpus.effective`)
    affinity    cores of the process itself, if `cpus` is unknown: the process may change them
    mems        memory nodes of its control group
    ipc         inode of its IPC namespace
    shm         device and root of the mount under /dev/shm: `0:45/`
    gpus        minor numbers of the GPUs whose device nodes it can open
    instances   GPU instances whose capabilities it can open: GPU's minor number, instance
    nodes       how `gpus`, `instances` and `rdma` are known: `list` (device list of its control group), `own` (a /dev of its
                own), `host` (the host's /dev: a BPF program may still deny a node)
    rdma        RDMA devices that it can open, with their adapters: `mlx5_0@0000:17:00`
    rdma_max    RDMA devices with limits of handles and objects in its control group
    io_max      disks with limits of reads and writes in its control group
    io          version of the control groups with these limits
    mps_threads, mps_memory    limits of MPS in its environment

An unreadable fact is left out; `-` is an empty set. A verdict never relies on a missing fact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

#: Attribute of `gpu.process` with the facts.
ATTRIBUTE = "isolation"
EMPTY = "-"
#: Key of the GPU that a process holds, among the facts of a `JobOnHost`. An attribute lacks this key.
HELD = "gpu"
#: Larger numbers and longer sets are refused.
NUMBER_MAX, SET_MAX = 1 << 20, 8192
#: Different texts of a fact among the processes of a job; with more the fact is unknown. Sets of 512 processes take seconds.
TEXTS_MAX = 64
#: Characters of the evidence of a verdict; longer evidence is cut.
EVIDENCE_CHARACTERS_MAX = 240
#: Items of a set that evidence lists.
LISTED_MAX = 8
#: Type of an IOMMU group whose devices reach all memory (drivers/iommu/iommu.c).
_IDENTITY = "identity"
#: A `nodes` that shows which nodes a process can open, not only see.
_CERTAIN = ("list", "own")
_NODES = (*_CERTAIN, "host")
#: Boundaries whose violation between tenants is reported without a request. Topology and missing limits of I/O are alike on
#: almost every shared host: PredictInterference prices them.
REPORTED = ("mig", "cpus", "memory_nodes", "shm", "devices")
Facts = Mapping[str, str]
T = TypeVar("T", int, str)


class BoundaryStatus(StrEnum):
    """Knowledge about a boundary."""

    VERIFIED = "verified"
    VIOLATED = "violated"
    NOT_VERIFIED = "not_verified"


class BoundaryVerdict(NamedTuple):
    """The verdict on one boundary. Never VERIFIED if a fact is missing."""

    boundary: str
    verdict: BoundaryStatus
    evidence: str


class HeldGpu(NamedTuple):
    """A GPU, or an instance of it, that a job holds."""

    gpu: str
    gpu_instance: int | None = None


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """A GPU in the host's inventory; None and "" if unknown."""

    address: str = ""
    minor: int | None = None
    mig_mode: bool | None = None  # None: unknown, or it cannot be divided
    numa_node: int | None = None
    parents: tuple[str, ...] = ()  # PCIe bridges, the nearest first
    iommu_group: str = ""
    iommu_type: str = ""
    nics: tuple[str, ...] = ()  # the nearest ones


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The inventory of a host. `disks`: device numbers; None: unknown. `nodes`: cores of each NUMA node."""

    gpus: Mapping[str, GpuFacts] = field(default_factory=dict)
    disks: frozenset[str] | None = None
    nodes: Mapping[int, frozenset[int]] = field(default_factory=dict)


class KnownItems(NamedTuple, Generic[T]):
    """Items of one fact of a job. `any`: some process has them; `each`: all do; `is_complete`: all processes show the fact."""

    any: frozenset[T]
    each: frozenset[T]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class JobOnHost:
    """A job on the host: the GPUs that it holds, and the facts of each of its processes."""

    name: str
    gpus: frozenset[HeldGpu]
    processes: tuple[Facts, ...]

    def numbers(self, key: str) -> KnownItems[int]:
        return _known([parse_numbers(text) for text in self._different(key)])

    def items(self, key: str) -> KnownItems[str]:
        return _known([parse_items(text) for text in self._different(key)])

    def _different(self, key: str) -> set[str]:
        """Return the texts of *key*, "" if unknown."""
        texts = {facts.get(key, "") for facts in self.processes}
        return texts if len(texts) <= TEXTS_MAX else {""}

    def texts(self, key: str) -> KnownItems[str]:
        """Return the values of *key* as they are."""
        return _known(
            [frozenset({facts[key]}) if key in facts else None for facts in self.processes]
        )


class _SharedGpus(NamedTuple):
    """GPUs that both jobs hold: in different GPU instances, without that, and with an unknown instance."""

    divided: tuple[str, ...]
    undivided: tuple[str, ...]
    unknown: tuple[str, ...]


def facts_text(facts: Facts) -> str:
    """Return *facts* as one text; values with white space are left out."""
    return " ".join(
        f"{key}={value}" for key, value in facts.items() if value and value.split() == [value]
    )


def parse_facts(text: str) -> dict[str, str]:
    """Return the facts in *text*; pairs of another form are ignored. Never raises."""
    pairs = (word.partition("=") for word in text.split(" "))
    return {key: value for key, _, value in pairs if key and value}


def parse_numbers(text: str) -> frozenset[int] | None:
    """Return the numbers of `0-3,8`, no numbers of EMPTY, and None for any other text."""
    if text == EMPTY:
        return frozenset()
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not (first.isascii() and first.isdigit() and len(first) <= 7):
            return None
        if dash and not (last.isascii() and last.isdigit() and len(last) <= 7):
            return None
        low, high = int(first), int(last if dash else first)
        if not low <= high <= NUMBER_MAX or high - low >= SET_MAX or len(numbers) > SET_MAX:
            return None
        numbers.update(range(low, high + 1))
    return frozenset(numbers)


def numbers_text(numbers: Iterable[int]) -> str:
    """Return numbers as `0-3,8`; EMPTY for none."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = (f"{low}-{high}" if high > low else str(low) for low, high in ranges)
    return ",".join(texts) or EMPTY


def parse_items(text: str) -> frozenset[str] | None:
    """Return the items of `a,b`; no items for EMPTY, None for no text."""
    if not text:
        return None
    return frozenset() if text == EMPTY else frozenset(text.split(","))


def verify(first: JobOnHost, second: JobOnHost, host: HostFacts) -> list[BoundaryVerdict]:
    """Return the verdict on each of BOUNDARIES, in their order."""
    verdicts = []
    for boundary, judge in _JUDGES.items():
        verdict, evidence = judge(first, second, host)
        verdicts.append(BoundaryVerdict(boundary, verdict, evidence[:EVIDENCE_CHARACTERS_MAX]))
    return verdicts


_Judged = tuple[BoundaryStatus, str]
_VERIFIED, _VIOLATED, _NOT_VERIFIED = BoundaryStatus


def _shared(first: JobOnHost, second: JobOnHost, host: HostFacts) -> _SharedGpus:
    divided, undivided, unknown = list[str](), list[str](), list[str]()
    for gpu in sorted({held.gpu for held in first.gpus} & {held.gpu for held in second.gpus}):
        own, other = (
            {held.gpu_instance for held in job.gpus if held.gpu == gpu} for job in (first, second)
        )
        if None in own | other:
            facts = host.gpus.get(gpu, GpuFacts())
            (unknown if facts.mig_mode else undivided).append(gpu)
        else:
            (undivided if own & other else divided).append(gpu)
    return _SharedGpus(tuple(divided), tuple(undivided), tuple(unknown))


def _holds_unknown(first: JobOnHost, second: JobOnHost) -> str:
    """Return the name of a job whose GPUs are unknown; "" for none."""
    return next((job.name for job in (first, second) if not job.gpus), "")


def _mig(first: JobOnHost, second: JobOnHost, host: HostFacts) -> _Judged:
    if name := _holds_unknown(first, second):
        return _NOT_VERIFIED, f"the GPUs of {name} are unknown"
    shared = _shared(first, second, host)
    if shared.undivided:
        gpu = shared.undivided[0]
        instances = sorted(
            {str(h.gpu_instance) for h in first.gpus & second.gpus if h.gpu == gpu} - {"None"}
        )
        inside = f"GPU instance {instances[0]} of " if instances else ""
        return _VIOLATED, f"both use {inside}{gpu}, whose memory and SMs they share"
    if shared.unknown:
        return _NOT_VERIFIED, f"both use {shared.unknown[0]}, in unknown instances"
    if shared.divided:
        return _VERIFIED, f"each has GPU instances of its own on {_list(shared.divided)}"
    return _VERIFIED, "they share no GPU"


def _mps(first: JobOnHost, second: JobOnHost, host: HostFacts) -> _Judged:
    """Judge limits of MPS. They hold for each process, so those of all processes add up."""
    if name := _holds_unknown(first, second):
        return _NOT_VERIFIED, f"the GPUs of {name} are unknown"
    shared = _shared(first, second, host)
    if not shared.undivided and not shared.unknown:
        return _VERIFIED, "they share no GPU outside of MIG"
    verdicts = [_mps_on(gpu, first, second) for gpu in (*shared.undivided, *shared.unknown)]
    for status in (_VIOLATED, _NOT_VERIFIED):
        if found := next((verdict for verdict in verdicts if verdict[0] is status), None):
            return found
    return verdicts[0]


def _mps_on(gpu: str, first: JobOnHost, second: JobOnHost) -> _Judged:
    processes = [f for job in (first, second) for f in job.processes if f.get(HELD, gpu) == gpu]
    threads = [_percentage(facts.get("mps_threads", "")) for facts in processes]
    total = sum(share for share in threads if share is not None)
    if total > 100.0:
        return _VIOLATED, f"thread percentages on {gpu} add up to {total:g} %"
    if None in threads or not all(job.processes for job in (first, second)):
        return (
            _NOT_VERIFIED,
            "a process shows no thread percentage; a default of the MPS server is not visible",
        )
    if any("mps_memory" not in facts for facts in processes):
        return _NOT_VERIFIED, "a process has no limit of pinned device memory"
    return _VERIFIED, f"thread percentages add up to {total:g} %, memory is limited"


def _percentage(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 < value <= 100.0 else None


def _cpus(first: JobOnHost, second: JobOnHost, host: HostFacts) -> _Judged:
    known = [(job.numbers("cpus"), job.numbers("affinity").any) for job in (first, second)]
    own, other = (cpus.any | affinity for cpus, affinity in known)
    if both := own & other:
        return _VIOLATED, f"both may run on cores {numbers_text(both)}"
    if name := _incomplete(first, second, [cpus for cpus, _ in known]):
        return _NOT_VERIFIED, f"the control group of {name} does not show its cores"
    return _VERIFIED, f"cores {numbers_text(own)} and {numbers_text(other)}"


def _memory_nodes(first: JobOnHost, second: JobOnHost, host: HostFacts) -> _Judged:
    own, other = first.numbers("mems"), second.numbers("mems")
    if both := own.any & other.any:
        return _VIOLATED, f"both may allocate on memory nodes {numbers_text(both)}"
    if name := _incomplete(first, second, [own, other]):
        return _NOT_VERIFIED, f"the memory nodes of {name} are unknown"
    return _VERIFIED, f"nodes {numbers_text(own.any)} and {numbers_text(other.any)}"


def _pcie_switch(first: JobOnHost, second: JobOnHost, host: HostFacts) -> _Judged:
    if name := _holds_unknown(first, second):
        return _NOT_VERIFIED, f"the GPUs of {name} are unknown"
    own, other = ({held.gpu for held in job.gpus} for job in (first, second))
    if both := own & other:
        return _VIOLATED, f"both use the PCIe link of {_list(both)}"
    missing = sorted(gpu for gpu in own | other if not host.gpus.get(gpu, GpuFacts()).parents)
    bridges = [
        {b for gpu in gpus if gpu not in missing for b in host.gpus[gpu].parents}
        for gpus in (own, other)
    ]
    if common := bridges[0] & bridges[1]:
        return _VIOLATED, f"GPUs of both are behind the bridge {_list(common)}"
    if missing:
        return _NOT_VERIFIED, f"the PCIe bridges above {missing[0]} are unknown"
    return _VERIFIED, "no PCIe bridge is above GPUs of both"


def _nic(first: JobOnHost, second: JobOnHost, host: HostFacts) -> _Judged:
    """Judge adapters by the device nodes of RDMA, because sysfs shows all adapters to each container."""
    known = [job.items("rdma") for job in (first, second)]
    own, other = ({_adapter(item) for item in items.any} for items in known)
    if both := own & other:
        if all(_opens_for_certain(job, both) for job in (first, second)):
            return _VIOLATED, f"both can open the adapter {_list(both)}"
        return _NOT_VERIFIED, f"both see the nodes of {_list(both)} in the host's /dev"
    if name := _incomplete(first, second, known):
        return _NOT_VERIFIED, f"the RDMA devices of {name} are unknown"
    for job, adapters in ((first, own), (second, other)):
        if not adapters:
            return _NOT_VERIFIED, f"{job.name} opens no RDMA device: its TCP interface is unknown"
    return _VERIFIED, f"adapters {_list(own)} and {_list(other)}; TCP is not covered"


def _adapter(item: str) -> str:
    return item.partition("@")[2] or item


def _opens_for_certain(job: JobOnHost, adapters: Iterable[str]) -> bool:
    """Return whether a process of *job* can open one of *adapters*, not only see its node."""
    return any(
        facts.get("nodes") in _CERTAIN
        and {_adapter(item) for item in parse_items(facts.get("rdma", "")) or ()} & set(adapters)
        for facts in job.processes
    )


def _iommu(first: JobOnHost, second: JobOnHost, host: HostFacts) -> _Judged:
    if name := _holds_unknown(first, second):
        return _NOT_VERIFIED, f"the GPUs of {name} are unknown"
    own, other = ({held.gpu for held in job.gpus} for job in (first, second))
    if both := own & other:
        return _VIOLATED, f"{_list(both)} is one device for both"
    facts = {gpu: host.gpus.get(gpu, GpuFacts()) for gpu in own | other}
    groups = [{facts[gpu].iommu_group for gpu in gpus} - {""} for gpus in (own, other)]
    if common := groups[0] & groups[1]:
        return _VIOLATED, f"GPUs of both are in the IOMMU group {_list(common)}"
    if through := sorted(gpu for gpu in facts if facts[gpu].iommu_type == _IDENTITY):
        return _VIOLATED, f"the IOMMU passes DMA of {through[0]} through to all memory"
    if unknown := sorted(
        gpu for gpu in facts if not facts[gpu].iommu_group or not facts[gpu].iommu_type
    ):
        return _NOT_VERIFIED, f"{unknown[0]} shows no IOMMU group: the IOMMU may be off"
    return _VERIFIED, f"groups {_list(groups[0])} and {_list(groups[1])}"


def _rdma_limits(first: JobOnHost, second: JobOnHost, host: HostFacts) -> _Judged:
    known = [job.items("rdma") for job in (first, second)]
    own, other = ({_adapter(item) for item in items.any} for items in known)
    common = own & other
    if common and not all(_opens_for_certain(job, common) for job in (first, second)):
        return _NOT_VERIFIED, f"both see the nodes of {_list(common)} in the host's /dev"
    for job, items in zip((first, second), known, strict=True):
        devices = {item.partition("@")[0] for item in items.any if _adapter(item) in common}
        limits = job.items("rdma_max")
        if limits.is_complete and (free := devices - limits.each):
            return _VIOLATED, f"{job.name} has no limit of handles and objects on {_list(free)}"
        if devices and not limits.is_complete:
            return _NOT_VERIFIED, f"the RDMA control group of {job.name} is not visible"
    if name := _incomplete(first, second, known):
        return _NOT_VERIFIED, f"the RDMA devices of {name} are unknown"
    if common:
        return _VERIFIED, f"both are limited on the adapter {_list(common)}"
    return _VERIFIED, "they can open no adapter in common"


def _block_io(first: JobOnHost, second: JobOnHost, host: HostFacts) -> _Judged:
    """Judge limits of block I/O. Both jobs need one on each disk: an unlimited job fills the queue of the other."""
    if host.disks is not None and not host.disks:
        return _VERIFIED, "the host has no disk"
    for job in (first, second):
        limits = job.items("io_max")
        free = host.disks - limits.each if host.disks is not None else frozenset[str]()
        above = limits.each - host.disks if host.disks is not None else frozenset[str]()
        if limits.is_complete and (not limits.each or (free and not above)):
            disks = f"on disk {_list(free)}" if free else "on any disk"
            return _VIOLATED, f"{job.name} has no limit of reads and writes {disks}"
    for job in (first, second):
        if not job.items("io_max").is_complete:
            return _NOT_VERIFIED, f"the limits of block I/O of {job.name} are not visible"
        versions = job.texts("io")
        if not versions.is_complete or versions.any != {"2"}:
            return (
                _NOT_VERIFIED,
                f"limits of {job.name} are not of version 2, so buffered writes are exempt",
            )
        if host.disks is None or host.disks - job.items("io_max").each:
            return (
                _NOT_VERIFIED,
                f"limits of {job.name} are on {_list(job.items('io_max').each)}, on unknown disks",
            )
    return _VERIFIED, f"both are limited on disk {_list(host.disks or ())}"


def _shm(first: JobOnHost, second: JobOnHost, host: HostFacts) -> _Judged:
    """Judge shared memory: files in /dev/shm, and segments of the IPC namespace."""
    own, other = first.texts("shm"), second.texts("shm")
    for mount in own.any:
        for seen in other.any:
            if _nested(mount, seen) or _nested(seen, mount):
                return _VIOLATED, f"both see /dev/shm of the mount {min(mount, seen, key=len)}"
    namespaces = [job.texts("ipc") for job in (first, second)]
    if both := namespaces[0].any & namespaces[1].any:
        return _VIOLATED, f"both are in the IPC namespace {_list(both)}"
    if name := _incomplete(first, second, [own, other]):
        return _NOT_VERIFIED, f"the mount under /dev/shm of {name} is unknown"
    if name := _incomplete(first, second, namespaces):
        return _NOT_VERIFIED, f"the IPC namespace of {name} is unknown"
    return _VERIFIED, f"mounts {_list(own.any)} and {_list(other.any)}"


def _nested(outer: str, inner: str) -> bool:
    """Return whether the mount *inner* is *outer* or a folder of it; both as `0:45/folder`."""
    return inner == outer or inner.startswith(f"{outer.removesuffix('/')}/")


def _devices(first: JobOnHost, second: JobOnHost, host: HostFacts) -> _Judged:
    if name := _holds_unknown(first, second):
        return _NOT_VERIFIED, f"the GPUs of {name} are unknown"
    uncertain: list[str] = []
    for job, other in ((first, second), (second, first)):
        foreign = _own_nodes(other, job, host)
        needs_instances = any(held.gpu_instance is not None for held in other.gpus)
        shown = {
            tuple(facts.get(key, "") for key in ("gpus", "instances", "nodes"))
            for facts in job.processes
        }
        if len(shown) > TEXTS_MAX:
            uncertain.append(f"the device nodes of {job.name} differ in over {TEXTS_MAX} ways")
        for gpus_text, instances_text, known in sorted(shown or {("", "", "")})[:TEXTS_MAX]:
            gpus, instances = parse_numbers(gpus_text), parse_items(instances_text)
            seen = {f"/dev/nvidia{minor}" for minor in gpus or ()} & foreign
            seen |= {f"instance {name}" for name in instances or ()} & foreign
            if seen and known in _CERTAIN:
                return _VIOLATED, f"{job.name} can open {_list(seen)} of {other.name}"
            if seen:
                uncertain.append(
                    f"{job.name} sees {_list(seen)} of {other.name} in the host's /dev"
                )
            is_hidden = gpus is None or (needs_instances and instances is None)
            if is_hidden or known not in _NODES:
                uncertain.append(f"the device nodes of {job.name} are not visible")
    shared = _shared(first, second, host)
    if shared.undivided:
        return _VIOLATED, f"both open {_list(shared.undivided)}"
    held = sorted({held.gpu for job in (first, second) for held in job.gpus})
    if unknown := [gpu for gpu in held if host.gpus.get(gpu, GpuFacts()).minor is None]:
        uncertain.append(f"the device node of {unknown[0]} is unknown")
    uncertain += [f"the instances of {gpu} are unknown" for gpu in shared.unknown]
    if uncertain:
        return _NOT_VERIFIED, uncertain[0]
    return _VERIFIED, "neither can open a GPU or instance of the other"


def _own_nodes(job: JobOnHost, other: JobOnHost, host: HostFacts) -> set[str]:
    """Return the nodes of GPUs and GPU instances that *job* holds and *other* does not."""
    nodes: set[str] = set()
    gpus = {held.gpu for held in other.gpus}
    for gpu, instance in job.gpus - other.gpus:
        minor = host.gpus.get(gpu, GpuFacts()).minor
        nodes |= {f"/dev/nvidia{minor}"} if gpu not in gpus else set()
        nodes |= {f"instance {minor}/{instance}"} if instance is not None else set()
    return nodes


def _known(sets: list[frozenset[T] | None]) -> KnownItems[T]:
    known = [items for items in sets if items is not None]
    each = known[0].intersection(*known) if known else frozenset[T]()
    return KnownItems(frozenset[T]().union(*known), each, bool(sets) and len(known) == len(sets))


def _incomplete(
    first: JobOnHost, second: JobOnHost, known: Iterable[KnownItems[int] | KnownItems[str]]
) -> str:
    """Return the name of the first job that does not show a fact completely; "" for none."""
    pairs = zip((first, second), known, strict=True)
    return next((job.name for job, items in pairs if not items.is_complete), "")


def _list(items: Iterable[str]) -> str:
    names = sorted(items)
    more = f" and {len(names) - LISTED_MAX} more" if len(names) > LISTED_MAX else ""
    return ", ".join(names[:LISTED_MAX]) + more


_JUDGES: Mapping[str, Callable[[JobOnHost, JobOnHost, HostFacts], _Judged]] = {
    "mig": _mig,
    "mps": _mps,
    "cpus": _cpus,
    "memory_nodes": _memory_nodes,
    "pcie_switch": _pcie_switch,
    "nic": _nic,
    "iommu": _iommu,
    "rdma_limits": _rdma_limits,
    "block_io": _block_io,
    "shm": _shm,
    "devices": _devices,
}
BOUNDARIES = tuple(_JUDGES)
