"""What the kernel reported and that still stands: PCIe, memory, processors, disks, lockups, killed programs.

No event here takes a host away by itself, but for a GPU that is gone: corrected errors, killed programs
and hung tasks are WATCH at most, lost data and failed hardware SUSPECT. Factors are assumed (no public
rates are given) until outcomes calibrate them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...fleet.meanings import LINK, REMOVED, SXID, XID
from ...fleet.occurrences import Occurrence
from ...verdicts import Reason, State
from .. import reported
from ..present import Present
from ..symptoms import Rule, Symptom

#: So many repaired errors within their day are worth a look; a few are every machine's.
CORRECTED_MIN = 10
#: A crash of before this boot makes a host likelier to fail by no more than this.
BEFORE_BOOT_FACTOR_MAX = 3.0


class Kind(NamedTuple):
    """One (name, code): what it means, in words, and from how many lines on it counts."""

    rule: Rule
    words: str
    enough: int = 1


def _kind(
    name: str, state: State, reason: Reason, factor: float, words: str, *, enough: int = 1
) -> Kind:
    rule = Rule(name, state, reason, "", leave_seconds=0.0, hazard_factor=factor)
    return Kind(rule, words, enough)


H, W, S, U = State.HEALTHY, State.WATCH, State.SUSPECT, State.UNHEALTHY
MEMORY, HOST, STORAGE = Reason.ECC_TREND, Reason.HOST_CPU, Reason.STORAGE

KINDS: Mapping[tuple[str, int], Kind] = {
    ("gpu.lost", 0): _kind(
        "gpu.off_bus", U, Reason.XID_FATAL, 20_000.0, "has fallen off the bus, its driver says"
    ),
    ("gpu.driver_message", 0): _kind(
        "gpu.driver_message", H, Reason.NONE, 1.0, "its driver complained"
    ),
    ("pcie.aer", 0): _kind(
        "pcie.aer.corrected", H, Reason.PCIE, 1.0, "PCIe repaired an error (AER)"
    ),
    ("pcie.aer", 1): _kind(
        "pcie.aer.nonfatal", S, Reason.PCIE, 30.0, "PCIe lost a transaction (AER, non-fatal)"
    ),
    ("pcie.aer", 2): _kind(
        "pcie.aer.fatal", S, Reason.PCIE, 30.0, "PCIe link failed (AER, fatal)"
    ),
    ("host.hardware_error", 0): _kind(
        "host.hardware_error.recoverable", W, MEMORY, 3.0, "firmware reports a recoverable error"
    ),
    ("host.hardware_error", 1): _kind(
        "host.hardware_error.fatal", S, MEMORY, 30.0, "firmware reports a fatal hardware error"
    ),
    ("host.hardware_error", 2): _kind(
        "host.hardware_error.corrected", W, MEMORY, 1.5, "firmware reports corrected errors",
        enough=CORRECTED_MIN,
    ),
    ("host.hardware_error", 3): _kind(
        "host.hardware_error.info", H, MEMORY, 1.0, "firmware reports something to know"
    ),
    ("host.machine_check", 0): _kind(
        "host.machine_check.corrected", W, MEMORY, 1.5, "processor repaired errors (MCE)",
        enough=CORRECTED_MIN,
    ),
    ("host.machine_check", 1): _kind(
        "host.machine_check.uncorrected", S, MEMORY, 30.0,
        "processor met an error that it could not repair (MCE)",
    ),
    ("host.memory_error", 0): _kind(
        "host.memory_error.corrected", W, MEMORY, 2.0, "host memory repaired errors (EDAC)",
        enough=CORRECTED_MIN,
    ),
    ("host.memory_error", 1): _kind(
        "host.memory_error.uncorrected", S, MEMORY, 30.0,
        "host memory lost data: an error that ECC could not repair (EDAC)",
    ),
    ("rdma.driver_error", 0): _kind(
        "rdma.driver_error", W, Reason.FABRIC, 5.0, "its RDMA driver reports an error"
    ),
    ("host.out_of_memory", 0): _kind(
        "host.out_of_memory", W, HOST, 1.2, "the kernel killed a program for want of memory"
    ),
    ("host.hung_task", 0): _kind(
        "host.hung_task", W, HOST, 3.0, "a task hangs in the kernel"
    ),
    ("host.lockup", 0): _kind("host.lockup.soft", W, HOST, 3.0, "a core is stuck (soft lockup)"),
    ("host.lockup", 1): _kind("host.lockup.hard", S, HOST, 20.0, "a core is stuck (hard lockup)"),
    ("host.lockup", 2): _kind("host.lockup.rcu", W, HOST, 3.0, "a core is stuck (RCU stall)"),
    ("filesystem.error", 0): _kind(
        "filesystem.error", W, STORAGE, 3.0, "the file system met an error"
    ),
    ("filesystem.error", 1): _kind(
        "filesystem.error.read_only", W, STORAGE, 5.0, "the file system was made read-only"
    ),
    ("disk.error", 0): _kind("disk.error", W, STORAGE, 3.0, "the disk met an error"),
    ("host.kernel_fault", 0): _kind(
        "host.kernel_fault", W, HOST, 5.0, "the kernel met a fault of its own (BUG or Oops)"
    ),
    ("host.kernel_log_lost", 0): _kind(
        "host.kernel_log_lost", H, Reason.BLIND, 1.0,
        "kernel log was overrun: lines were lost before they were read, an XID may be among them",
    ),
    (LINK, REMOVED): _kind(
        "net.removed", W, Reason.RAIL_DOWN, 3.0, "the network interface was taken away"
    ),
}  # fmt: skip
#: NVML's own events: each says what a counter or an XID says as well.
DRIVER_EVENT = _kind("gpu.driver_event", H, Reason.NONE, 1.0, "its driver reported an event")
#: Events of one name that were too many to be told apart (`agent/kernel_log/incidents.py`).
FOLDED_WORDS = "more at once than are told apart; the kernel log names them (journalctl -k)"
FOLDED = _kind("folded", H, Reason.BLIND, 1.0, FOLDED_WORDS)
#: An XID of any kind may be among them.
FOLDED_CODES = _kind("folded", W, Reason.BLIND, 3.0, FOLDED_WORDS)
BEFORE_BOOT = "before this boot: "


def standing_events(present: Present) -> Iterator[Symptom]:
    """Every event of the kernel that is not over. Codes that we do not know are left to the store."""
    for record in present.fleet.occurrences:
        kind = _kind_of(record)
        if kind is None or (record.name == LINK and not _was_in_use(present, record)):
            continue
        yield _symptom(present, record, kind)


def _kind_of(record: Occurrence) -> Kind | None:
    """Return what is to be said of *record*; None of XIDs and SXIDs, and of codes that we do not know."""
    if record.folded:
        folded = FOLDED_CODES if record.name in (XID, SXID) else FOLDED
        rule = replace(folded.rule, name=f"{folded.rule.name}.{record.name}")
        return Kind(rule, f"{record.name}: {folded.words}")
    if record.name == "gpu.driver_event":
        return DRIVER_EVENT
    kind = KINDS.get((record.name, record.code))
    return _before_boot(kind) if kind is not None and record.before_boot else kind


def _before_boot(kind: Kind) -> Kind:
    """Return *kind* as the boot before met it: WATCH at most, and not in the present tense."""
    rule = replace(
        kind.rule,
        name=f"{kind.rule.name}.previous_boot",
        state=kind.rule.state if kind.rule.state is State.HEALTHY else State.WATCH,
        hazard_factor=min(kind.rule.hazard_factor, BEFORE_BOOT_FACTOR_MAX),
    )
    return Kind(rule, f"{BEFORE_BOOT}{kind.words}", kind.enough)


def _symptom(present: Present, record: Occurrence, kind: Kind) -> Symptom:
    counts = record.count >= kind.enough and not record.own_limit
    state = kind.rule.state if counts else State.HEALTHY
    rule = replace(kind.rule, name=f"{kind.rule.name}.own_limit") if record.own_limit else kind.rule
    said = f': "{record.message}"' if record.message else ""
    words = f"{kind.words}{reported.times(record)}{said}"
    return reported.symptom(
        present,
        record,
        rule,
        words,
        state=state,
        hazard_factor=kind.rule.hazard_factor if counts else 1.0,
        reason=kind.rule.reason if state is not State.HEALTHY else _noted(kind.rule.reason),
    )


def _noted(reason: Reason) -> Reason:
    """Return the reason of what costs nothing: only blindness is worth naming."""
    return reason if reason is Reason.BLIND else Reason.NONE


def _was_in_use(present: Present, record: Occurrence) -> bool:
    """Say whether a removed interface had a carrier: containers take theirs away all day."""
    seen = present.fleet.seen
    row = present.fleet.devices["net"].find(record.host, record.device)
    had_carrier = row >= 0 and bool(np.asarray(seen.carriers)[row])
    return had_carrier or (record.host, record.device) in seen.removed
