"""XIDs and SXIDs that still stand, under the policy of `contract/xid/xid.toml` and `sxid.toml`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ....contract.xid.incidents import RECOVERY, gravest
from ....contract.xid.policy import SCOPES, Settled, Severity, Xid
from ...counter_deltas import Indexes
from ...fleet.active_events import ADAPTER, LINK, REMOVED, Occurrence
from ...fleet.active_events import SXID as SXID_EVENT
from ...fleet.active_events import XID as XID_EVENT
from ...model import Reason, State
from .. import rule as reported
from ..rule import Rule, Symptom
from ..view import Present

# ----------------------------------------------------------------------
# What the kernel reported and that still stands: PCIe, memory, processors, disks, lockups, killed
# programs.
#
# No event here takes a host away by itself, but for a GPU that is gone: corrected errors, killed
# programs and hung tasks are WATCH at most, lost data and failed hardware SUSPECT. Factors are
# assumed (no public rates are given) until outcomes calibrate them.

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
        "pcie.aer.fatal", S, Reason.PCIE, 30.0,
        "PCIe link failed (AER, fatal), or its slot lost link or card",
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
    ("rdma.driver_error", 1): _kind(
        "rdma.low_power", H, Reason.FABRIC, 1.0, "its PCIe slot gives less power than it asks for"
    ),
    (ADAPTER, 0): _kind(
        "rdma.adapter_failed", S, Reason.RAIL_DOWN, 300.0,
        "the adapter's firmware does not answer, or its driver gave it up",
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
        yield _kernel_symptom(present, record, kind)


def _kind_of(record: Occurrence) -> Kind | None:
    """Return what is to be said of *record*; None of XIDs and SXIDs, and of codes that we do not know."""
    if record.folded:
        folded = FOLDED_CODES if record.name in (XID_EVENT, SXID_EVENT) else FOLDED
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


def _kernel_symptom(present: Present, record: Occurrence, kind: Kind) -> Symptom:
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


# ----------------------------------------------------------------------
# An XID 74 whose link came back: one that recovered is no fault, one whose counters go on rising
# is.

#: NVLINK_ERROR.
LINK_ERROR = 74
TABLE = "nvlink_10s_changes"
COUNTERS = (
    "crc_errors", "replay_errors", "recovery_errors", "link_recovery_events",
    "link_recovery_failed_events",
)  # fmt: skip
#: A counter's memory of ten minutes is below this when nothing counted for so long.
ONE_EVENT = 0.35
#: So long after its last line the link's counters have to stand still, and so long it is watched then (assumed).
QUIET_SECONDS, WATCHED_SECONDS = 600.0, 86_400.0
#: Its factor meanwhile, as that of a link that had to be trained again.
WATCH_FACTOR = 5.0
#: What travels on change is told anew within this time of an agent's first frame.
TOLD_SECONDS = 120.0
CLEARS = "its link stays up and counts no error for 24 hours, the GPU is reset, or the host boots"


def calmed(present: Present, record: Occurrence, row: Xid) -> Xid:
    """Return *row* of *record* as it weighs now: less where its link is up again and counts nothing."""
    age_seconds = (present.now_ns - record.last_time_ns) / 1e9
    is_ours = row.code == LINK_ERROR and row.severity is Severity.HAZARD
    if not is_ours or age_seconds < QUIET_SECONDS or not _is_well(present, record):
        return row
    if age_seconds < WATCHED_SECONDS:
        return replace(row, hazard_factor=WATCH_FACTOR, action="none")
    return replace(row, severity=Severity.IGNORE, hazard_factor=1.0, action="none")


def _is_well(present: Present, record: Occurrence) -> bool:
    """Say whether the link that *record* names, or where it names none each of its GPU's, is up and counts nothing."""
    rows = _links(present, record)
    heard_seconds = (present.now_ns - int(present.fleet.first_ns[record.host])) / 1e9
    if not rows.size or not present.fresh_at(TABLE, rows).all():
        return heard_seconds < TOLD_SECONDS  # nothing is known against it since our start
    table = present.fleet.tables[TABLE]
    if not (table.known("link_state")[rows] & (table.state("link_state")[rows] > 0)).all():
        return False
    known = [column for column in COUNTERS if table.known(column)[rows].all()]
    counting = (present.counting(TABLE, each, ONE_EVENT, slow=True)[0] for each in known)
    return bool(known) and not any(np.isin(rows, each).any() for each in counting)


def _links(present: Present, record: Occurrence) -> Indexes:
    devices = present.fleet.tables[TABLE].devices
    link = next((word for word in record.variant.split() if word.isdigit()), "")
    if link:
        row = devices.find(record.host, f"{record.device}/link{link}")
        return np.array([row] if row >= 0 else [], dtype=np.intp)
    of_gpu = f"{record.device}/link"
    rows = [row for row in devices.rows_of(record.host) if devices.names[row].startswith(of_gpu)]
    return np.array(rows, dtype=np.intp)


#: A host with a fatal code has, for a scheduler, no chance of eight hours.
FATAL_HAZARD_FACTOR = 20_000.0
#: From here a hazard is SUSPECT, below it WATCH.
SUSPECT_FACTOR = 20.0
#: XID 154 tells that `gpu.recovery_action_state` changed; that reading is of later, and so of more weight.
RECOVERY_COLUMN = "recovery_action_state"
RECHECK_SECONDS = 10.0

XID = Rule("gpu.xid", State.HEALTHY, Reason.NONE, "", leave_seconds=0.0)
SXID = Rule("nvswitch.sxid", State.HEALTHY, Reason.NONE, "", leave_seconds=0.0)


def standing_xids(present: Present) -> Iterator[Symptom]:
    """Every code of a GPU that was reported and not cleared; what it means is the policy's to say."""
    yield from _standing(present, XID_EVENT, XID, "XID")


def standing_sxids(present: Present) -> Iterator[Symptom]:
    """Every code of an NVSwitch that was reported and not cleared."""
    yield from _standing(present, SXID_EVENT, SXID, "SXID")


def _standing(present: Present, name: str, rule: Rule, label: str) -> Iterator[Symptom]:
    for record in present.fleet.occurrences.named(name):
        if record.row is not None:
            row = calmed(present, record, record.row)
            meaning = _meaning(present, record, row)
            one = _xid_symptom(present, record, row, meaning, (rule, label))
            yield one if row is record.row else replace(one, clears=CLEARS)


def _meaning(present: Present, record: Occurrence, row: Xid) -> Settled:
    """Return what *record* means beside the other codes of its device, and what is read of it now."""
    if record.name == XID_EVENT and row.code == RECOVERY and _asks_for_nothing(present, record):
        return Settled(Severity.IGNORE, words=("the driver asks for nothing any more",))
    return gravest(row, record.incidents.values(), present.now_ns)


def _asks_for_nothing(present: Present, record: Occurrence) -> bool:
    """Say whether the GPU's own reading, later than the event, knows of no recovery to be made."""
    row = present.fleet.devices["gpu"].find(record.host, record.device)
    if row < 0 or present.now_ns - record.last_time_ns < RECHECK_SECONDS * 1e9:
        return False
    known = present.known("gpu_1s", RECOVERY_COLUMN)[row]
    return bool(known and present.state("gpu_1s", RECOVERY_COLUMN)[row] == 0)


def _weight(row: Xid, severity: Severity) -> tuple[State, float]:
    """Return the state that a code puts its host in, and the factor on its hazard."""
    if severity is Severity.FATAL:
        return State.UNHEALTHY, FATAL_HAZARD_FACTOR
    if severity is Severity.HAZARD:
        suspect = row.hazard_factor >= SUSPECT_FACTOR
        return State.SUSPECT if suspect else State.WATCH, row.hazard_factor
    return State.HEALTHY, 1.0


def _xid_symptom(
    present: Present, record: Occurrence, row: Xid, meaning: Settled, kind: tuple[Rule, str]
) -> Symptom:
    rule, label = kind
    state, factor = _weight(row, meaning.severity)
    name = f"{label} {row.code}: {row.name}{reported.times(record)}"
    asked = meaning.severity is row.severity or meaning.waiting  # not of what a companion explains
    action = [row.action] if asked and row.action != "none" else []
    words = [name, *action, *record.words, *meaning.words]
    if meaning.waiting:
        words.append("waiting for the code that says how far it went")
    variant = f".{record.variant}" if record.variant else ""
    return reported.symptom(
        present,
        record,
        Rule(f"{rule.name}.{row.code}{variant}", State.HEALTHY, Reason.NONE, ""),
        "; ".join(words),
        state=state,
        hazard_factor=factor,
        reason=Reason.NONE if state is State.HEALTHY else _reason(row),
        precedence=_precedence(record, row, meaning),
    )


def _precedence(record: Occurrence, row: Xid, meaning: Settled) -> tuple[float, ...]:
    """Return which of several fatal codes is told first: the one whose remedy touches most, then one that no other
    explains, then the one that came last. By its first line: what is written again and again is no news.
    """
    touches = -1 if row.scope == "unknown" else SCOPES.index(row.scope)
    deciding = [one.words for one in row.companions if one.severity is not None]
    explained = row.code == RECOVERY or any(words in meaning.words for words in deciding)
    return touches, not explained, record.first_ns


def _reason(row: Xid) -> Reason:
    return Reason.__members__.get(row.reason, Reason.XID_FATAL)
