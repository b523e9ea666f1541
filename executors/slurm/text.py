"""Parses Slurm's output: states of nodes, reasons with their authors, requests for GPUs.

Slurm's commands and versions name the same state differently: MAINTENANCE, MAINT, maint, `IDLE$`.
The parser accepts every name, in any combination. Pure functions.
"""

from __future__ import annotations

import re

#: Suffix of a state -> long name.
MARKS = {
    "*": "NOT_RESPONDING", "~": "POWERED_DOWN", "#": "POWERING_UP", "!": "POWER_DOWN", "%": "POWERING_DOWN",
    "$": "MAINT", "@": "REBOOT_REQUESTED", "^": "REBOOT_ISSUED", "-": "PLANNED",
}  # fmt: skip
#: Short name -> long name.
LONG_NAMES = {
    "DRNG": "DRAINING", "FAILG": "FAILING", "ERR": "ERROR", "UNK": "UNKNOWN", "FUTR": "FUTURE",
    "POW_DN": "POWER_DOWN", "POW_UP": "POWER_UP", "BOOT": "REBOOT_ISSUED", "NO_RESP": "NOT_RESPONDING", "NO_RESPOND": "NOT_RESPONDING",
    "COMP": "COMPLETING", "BLOCK": "BLOCKED", "NPC": "PERFCTRS", "PLND": "PLANNED", "RESV": "RESERVED", "MIX": "MIXED", "ALLOC": "ALLOCATED",
}  # fmt: skip
#: Drains, by a person or by the controller.
DRAINED = frozenset({"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING"})
#: States in which a person keeps work off the node.
OUT = DRAINED | {"MAINT", "MAINTENANCE"}
#: States in which the controller keeps work off the node, or the node lacks something.
DOWN = frozenset(
    {
        "DOWN", "ERROR", "FUTURE", "UNKNOWN", "INVAL", "INVALID_REG", "POWER_DOWN", "POWERED_DOWN", "POWERING_DOWN",
        "POWER_DRAIN", "REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED",
    }
)  # fmt: skip
#: States of a node in service that can start no job now.
BUSY = frozenset({"BLOCKED", "COMPLETING", "PERFCTRS", "POWER_UP", "POWERING_UP"})
#: The author, after the first line of the reason.
AUTHOR = re.compile(r" \[([^\[\]@\s]+)@[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\]")
#: Fields that newer versions print after the reason.
NEXT_FIELD = re.compile(
    r"\s(?:Comment|Extra|InstanceId|InstanceType|ReservationName|Topology|ResumeAfterTime)="
)
#: A generic resource: gpu, gpu:8, gpu:h100:8, gres:gpu:8, gres/gpu:h100:8, gres/gpu=8.
GENERIC_RESOURCE = re.compile(
    r"(?:gres[:/])?(?P<name>[A-Za-z_][\w-]{0,63})(?::(?P<type>[A-Za-z_][\w.-]{0,63}))?(?:[:=](?P<count>[0-9]{1,12})(?P<unit>[KMGT]?))?",
    re.ASCII,
)
GRES_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
GPU_REQUEST = re.compile(
    r"(?:gres[:/])?gpu(?::(?P<type>[^:=]*[^:=0-9][^:=]*))?(?P<sign>[:=])?(?P<count>[0-9]{1,5})?",
    re.ASCII,
)


def state_names(state: str) -> frozenset[str]:
    """Return the long names in a state such as `IDLE+DRAIN`, `DOWN*` or `mix$`."""
    names = set[str]()
    for part in state.split("+"):
        word = part.rstrip("".join(MARKS))
        names |= {MARKS[mark] for mark in part[len(word) :]}
        word = word.upper()
        names.add(LONG_NAMES.get(word, word))
    return frozenset(names - {""})


def parse_reason(text: str) -> tuple[str, str]:
    """Return (reason, author) of the text after `Reason=`; the author follows its first line."""
    author = AUTHOR.search(text)
    first, rest = (text[: author.start()], text[author.end() :]) if author else ("", text)
    field = NEXT_FIELD.search(rest)
    reason = f"{first} {rest[: field.start()] if field else rest}"
    return " ".join(reason.split()), author[1] if author else ""


def gpus_of(text: str) -> int:
    """Return the GPUs of `gpu:h100:8`, `gres/gpu:4` or `gres:gpu:a100:2,gres:nvme:1`; else 0."""
    requests = [
        match
        for item in re.sub(r"\([^()]*\)", "", text).split(",")
        if (match := GPU_REQUEST.fullmatch(item.strip()))
    ]
    # `gres/gpu=8,gres/gpu:h100=8`: with equals signs, the first is the total of the typed requests.
    totals = [match for match in requests if match["sign"] == "=" and not match["type"]]
    return sum(int(match["count"] or 1) for match in totals or requests)


def gres_of(text: str) -> list[tuple[str, str, int]]:
    """Return (name, type, count) per resource of `gpu:h100:8(S:0-1),lic:1` or `gres/lic=2`."""
    resources = []
    for item in re.sub(r"\([^()]*\)", "", text).split(","):
        match = GENERIC_RESOURCE.fullmatch(item.strip())
        if match and match["name"] not in ("", "null", "none"):
            count = int(match["count"] or 1) * GRES_UNITS[match["unit"] or ""]
            resources.append((match["name"], match["type"] or "", count))
    return resources
