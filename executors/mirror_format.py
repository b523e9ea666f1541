"""Format of the mirror file: the health of all nodes for scheduler plugins.

Layout: docs/slurm_plugins.md. Pure functions: the aggregator's response and Slurm's state in, bytes
out, and back. Numbers are ASCII at fixed offsets, so that C, Lua and shell can read them. The
checksum needs no bit operations, which Slurm's Lua lacks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..contract.host_sets import fold_hosts

MAGIC, VERSION = "gangline-mirror", 1
BUCKETS = 4
CHECKSUM_PRIME = 2_654_435_761
#: The maximum that a Slurm host list expands to.
NODES_MAX = 65_536
NAME_CHARACTERS_MAX = 64
RECORD_BYTES = 128
#: Length of the first line before its lists.
FIXED_BYTES = 182
#: A longer list is written as UNLISTED, with its count; the records have its nodes.
LIST_BYTES_MAX = 48 << 10
UNLISTED = "*"
#: Maximum length of the first line with its seven lists.
LINE_BYTES_MAX = FIXED_BYTES + 7 * (LIST_BYTES_MAX + 16)
TAIL_BYTES = 22
FILE_BYTES_MAX = LINE_BYTES_MAX + 1 + NODES_MAX * RECORD_BYTES + TAIL_BYTES
#: Maximum validity; a file with a longer validity is rejected.
VALID_SECONDS_MAX = 60
#: Upper bounds of hazard and speed in a record.
HAZARD_MAX, SPEED_MAX = 9.99999e99, 9.9999
STATE_CHARACTERS, REASON_CHARACTERS = 11, 18
LISTS = (*(f"b{bucket}" for bucket in range(BUCKETS)), "out", "exclude", "prefer")

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_CHARACTERS_MAX - 1}}}")
_HEAD = re.compile(
    rf"{MAGIC} {VERSION} check=([0-9a-f]{{8}}) (line=(\d{{7}}) file=(\d{{8}}) computed=(\d{{10}}) valid_until=(\d{{10}})"
    rf" nodes=(\d{{5}}) record=(\d{{3}}) degraded=([01]) slurm=([01]) exclude_safe=(\d{{5}}) prefer_safe=(\d{{5}})"
    + "".join(rf" {name}=(\d+):(\S*)" for name in LISTS)
    + ")"
)
_RECORD = re.compile(
    r"(\S+) +([0-3]) ([01]) ([ 0-9.]{8}) (\S{11}) ( *[0-9.]+| *nan) (\S*) *(\S*) *"
)

#: Fields of `scontrol -o show node` that decide whether a job can ever run on a node.
KIND_FIELDS = (
    "Arch", "CoresPerSocket", "CPUEfctv", "CPUTot", "Gres", "Boards", "SocketsPerBoard", "Sockets", "ThreadsPerCore", "RealMemory",
    "TmpDisk", "MemSpecLimit", "CoreSpecCount", "Owner", "MCS_label", "Partitions",
)  # fmt: skip
FEATURE_FIELDS = ("AvailableFeatures", "ActiveFeatures")
#: Topology plugins under which equal nodes are interchangeable.
FLAT_TOPOLOGIES = ("topology/none", "topology/default", "topology/flat")


class MirrorError(ValueError):
    """The bytes are not a complete mirror; the message says why."""


class MirrorNode(NamedTuple):
    """A node. *ready*: a job may be placed there; *relative_speed* is NaN if unknown."""

    name: str
    bucket: int
    ready: bool
    score: float
    hazard_per_hour: float
    relative_speed: float
    state: str
    reason: str


class SlurmNodes(NamedTuple):
    """Slurm's nodes by name: properties that jobs can request; (available, active) features."""

    kinds: Mapping[str, tuple[str, ...]]
    features: Mapping[str, tuple[frozenset[str], frozenset[str]]]
    has_topology: bool = False


@dataclass(frozen=True, slots=True)
class Mirror:
    """The content of a file. Lists are Slurm host lists, or UNLISTED if too long."""

    computed_seconds: int
    valid_until_seconds: int
    degraded: bool
    by_slurm: bool
    exclude_safe_nodes: int
    prefer_safe_nodes: int
    counts: Mapping[str, int]
    lists: Mapping[str, str]
    nodes: Sequence[MirrorNode]


def checksum_of(content: bytes) -> str:
    """Return *content* as a big-endian number modulo a prime that is not near a power of two."""
    return f"{int.from_bytes(content) % CHECKSUM_PRIME:08x}"


def is_node_name(name: str) -> bool:
    """Return whether *name* is valid in a mirror: letters, digits, '.', '_', '-', at most 64."""
    return _NAME.fullmatch(name) is not None


def parse_slurm_nodes(node_text: str, config_text: str) -> SlurmNodes:
    """Return the nodes of `scontrol -o show node` and `scontrol show config`. Raises MirrorError."""
    kinds: dict[str, tuple[str, ...]] = {}
    features: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
    for line in node_text.splitlines():
        fields = dict(re.findall(r"(?:^| )(\w+)=(\S*)", line))
        name = fields.get("NodeName", "")
        if not is_node_name(name):
            continue
        if len(kinds) >= NODES_MAX:
            raise MirrorError(f"Slurm has more than {NODES_MAX} nodes")
        kinds[name] = tuple(fields.get(field, "") for field in KIND_FIELDS)
        available, active = (
            frozenset(fields.get(field, "").split(",")) - {"", "(null)"} for field in FEATURE_FIELDS
        )
        features[name] = available, active
    if not kinds:
        raise MirrorError("Slurm names no nodes: expected the text of scontrol -o show node")
    match = re.search(r"^TopologyPlugin\s*=\s*(\S+)", config_text, re.MULTILINE)
    return SlurmNodes(kinds, features, match is None or match[1] not in FLAT_TOPOLOGIES)


def excludable(faulty: Iterable[str], slurm: SlurmNodes) -> tuple[list[str], int]:
    """Return nodes that jobs may exclude, and the largest job, in nodes, that stays acceptable.

    Slurm rejects a job at submission if the remaining nodes could never run it, whatever their
    state. Nodes that are equal in everything a job can request are interchangeable: while as many
    of each kind remain as the job has nodes, another choice fits wherever a choice with excluded
    nodes did. Kinds with more than half of their nodes faulty are not excluded. Nodes of different
    switches are not interchangeable, so that with a topology this holds for jobs of a single node.
    """
    kinds = {name: (key, slurm.features[name]) for name, key in slurm.kinds.items()}
    return _substitutes(kinds, set(faulty), 0.5, slurm.has_topology)


def preferable(feature: str, slurm: SlurmNodes) -> int:
    """Return the largest job, in nodes, that may prefer nodes with *feature*.

    0: any could be rejected. Slurm rejects a job that the preferred nodes alone could never run:
    all others count as excluded.
    """
    kinds = {
        name: (key, *(feature_set - {feature} for feature_set in slurm.features[name]))
        for name, key in slurm.kinds.items()
    }
    others = {name for name, (_, active) in slurm.features.items() if feature not in active}
    if not others:
        return 1 if slurm.has_topology else len(kinds)
    named, safe_nodes = _substitutes(kinds, others, 0.0, slurm.has_topology)
    # Otherwise a kind would have no nodes left.
    return safe_nodes if len(named) == len(others) else 0


def _substitutes(
    kinds: Mapping[str, Hashable], left_out: set[str], left_share_min: float, has_topology: bool
) -> tuple[list[str], int]:
    """Return nodes of *left_out* whose kind keeps enough others, and the minimum left per kind."""
    members: dict[Hashable, list[str]] = defaultdict(list)
    for name, key in kinds.items():
        members[key].append(name)
    names, safe_nodes = list[str](), NODES_MAX
    for alike in members.values():
        gone = [name for name in alike if name in left_out]
        left = len(alike) - len(gone)
        if gone and left and left >= left_share_min * len(alike):
            names += gone
            safe_nodes = min(safe_nodes, left)
    if not names:
        return [], 0
    return sorted(names), min(safe_nodes, 1) if has_topology else safe_nodes


def render(
    nodes: Iterable[MirrorNode], *, computed_seconds: int, valid_until_seconds: int, degraded: bool = False,
    slurm: SlurmNodes | None = None, feature: str = "",
) -> bytes:  # fmt: skip
    """Return the file's bytes. Raises MirrorError.

    *slurm*: only its nodes, with the list of excludable nodes.
    """
    chosen = sorted(
        node
        for node in nodes
        if is_node_name(node.name) and (slurm is None or node.name in slurm.kinds)
    )
    if len(chosen) > NODES_MAX:
        raise MirrorError(f"{len(chosen)} nodes, expected at most {NODES_MAX}")
    members: dict[str, list[str]] = {name: [] for name in LISTS}
    for node in chosen:
        members[f"b{node.bucket}" if node.ready else "out"].append(node.name)
    exclude_safe = prefer_safe = 0
    if slurm is not None and not degraded:
        faulty = [node.name for node in chosen if node.state == "UNHEALTHY" and not node.ready]
        members["exclude"], exclude_safe = excludable(faulty, slurm)
        if feature:
            members["prefer"], prefer_safe = [feature], preferable(feature, slurm)
    records = "".join(map(_record, chosen)).encode()
    lists = " ".join(f"{name}={len(names)}:{_list(names)}" for name, names in members.items())
    rest = (
        f"computed={computed_seconds:010d} valid_until={valid_until_seconds:010d} nodes={len(chosen):05d}"
        f" record={RECORD_BYTES:03d} degraded={int(degraded)} slurm={int(slurm is not None)}"
        f" exclude_safe={min(exclude_safe, 99_999):05d} prefer_safe={min(prefer_safe, 99_999):05d} {lists}"
    )
    head = f"{MAGIC} {VERSION} check=00000000 "
    line_bytes = len(head) + len("line=0000000 file=00000000 ") + len(rest)
    file_bytes = line_bytes + 1 + len(records) + TAIL_BYTES
    summed = f"line={line_bytes:07d} file={file_bytes:08d} {rest}"
    checksum = checksum_of(summed.encode())
    line = f"{MAGIC} {VERSION} check={checksum} {summed}\n".encode()
    return line + records + f"end {checksum} {checksum_of(records)}\n".encode()


def _list(names: Sequence[str]) -> str:
    folded = fold_hosts(names)
    return folded if len(folded) <= LIST_BYTES_MAX else UNLISTED


def _record(node: MirrorNode) -> str:
    known = node.relative_speed == node.relative_speed
    speed = f"{min(max(node.relative_speed, 0.0), SPEED_MAX):6.4f}" if known else "   nan"
    score, hazard = min(max(node.score, 0.0), 1.0), min(max(node.hazard_per_hour, 0.0), HAZARD_MAX)
    return (
        f"{node.name:<{NAME_CHARACTERS_MAX}} {node.bucket} {int(node.ready)} {score:8.6f} {hazard:11.5e} {speed}"
        f" {node.state[:STATE_CHARACTERS]:<{STATE_CHARACTERS}} {node.reason[:REASON_CHARACTERS]:<{REASON_CHARACTERS}}\n"
    )


def parse(content: bytes) -> Mirror:
    """Return the content of a file, after checking all of it. Raises MirrorError."""
    if len(content) > FILE_BYTES_MAX:
        raise MirrorError(f"it is longer than {FILE_BYTES_MAX} bytes")
    line, newline, rest = content.partition(b"\n")
    match = _HEAD.fullmatch(line.decode("ascii", "replace"))
    if match is None or not newline:
        raise MirrorError(f"its first line is not a complete first line of {MAGIC} {VERSION}")
    checksum, summed, line_bytes, file_bytes, computed, valid_until, count, record, *others = (
        match.groups()
    )
    if int(line_bytes) != len(line) or int(file_bytes) != len(content):
        raise MirrorError(
            f"it is torn: {len(content)} bytes, its first line says {int(file_bytes)}"
        )
    records, tail = rest[:-TAIL_BYTES], rest[-TAIL_BYTES:]
    sums = f"end {checksum_of(summed.encode())} {checksum_of(records)}\n"
    if int(record) != RECORD_BYTES or len(records) != int(count) * RECORD_BYTES:
        raise MirrorError("it is torn: its records are not as many as its first line says")
    if not sums.startswith(f"end {checksum} ") or tail != sums.encode():
        raise MirrorError("it is torn: a checksum does not match")
    degraded, by_slurm, exclude_safe, prefer_safe, *lists = others
    return Mirror(
        int(computed), int(valid_until), degraded == "1", by_slurm == "1", int(exclude_safe), int(prefer_safe),
        {name: int(lists[2 * index]) for index, name in enumerate(LISTS)},
        {name: lists[2 * index + 1] for index, name in enumerate(LISTS)},
        [
            _parse_record(records[offset : offset + RECORD_BYTES].decode("ascii", "replace"))
            for offset in range(0, len(records), RECORD_BYTES)
        ],
    )  # fmt: skip


def _parse_record(record: str) -> MirrorNode:
    match = _RECORD.fullmatch(record[:-1])
    if match is None:
        raise MirrorError(f"malformed record: {record[:40]!r}")
    name, bucket, ready, score, hazard, speed, state, reason = match.groups()
    try:
        numbers = float(score), float(hazard), float(speed)
    except ValueError:
        raise MirrorError(f"a number of {name[:64]} is invalid") from None
    return MirrorNode(name, int(bucket), ready == "1", *numbers, state, reason)


def stale_reason(mirror: Mirror, now_seconds: float) -> str:
    """Return why *mirror* is not current (expired, or valid for too long); "" if it is."""
    left = mirror.valid_until_seconds - now_seconds
    if left <= 0:
        return f"it was valid until {-left:.0f} s ago"
    return f"it would be valid for {left:.0f} s" if left > VALID_SECONDS_MAX else ""
