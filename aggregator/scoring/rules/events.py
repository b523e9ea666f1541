"""XIDs and SXIDs that still stand, under the policy of `contract/xid/xid.toml` and `sxid.toml`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ....contract.xid.incidents import RECOVERY_XID, gravest
from ....contract.xid.policy import SCOPES, Xid, XidAssessment, XidSeverity
from ...counter_deltas import Indexes
from ...fleet.active_events import ADAPTER, DIAGNOSTIC, LINK, REMOVED, EventRecord
from ...fleet.active_events import SXID as SXID_EVENT
from ...fleet.active_events import XID as XID_EVENT
from ...model import HealthState, Reason
from .. import rule as reported
from ..rule import Rule, Symptom
from ..view import FleetView

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


class EventKind(NamedTuple):
    """One (name, code): what it means, in words, and from how many lines on it counts."""

    rule: Rule
    message: str
    count_min: int = 1


def _event_kind(
    name: str,
    state: HealthState,
    reason: Reason,
    factor: float,
    message: str,
    *,
    count_min: int = 1,
) -> EventKind:
    rule = Rule(name, state, reason, "", leave_seconds=0.0, hazard_factor=factor)
    return EventKind(rule, message, count_min)


H, W, S, U = HealthState.HEALTHY, HealthState.WATCH, HealthState.SUSPECT, HealthState.UNHEALTHY
MEMORY, HOST, STORAGE = Reason.ECC_TREND, Reason.HOST_CPU, Reason.STORAGE

EVENT_KINDS: Mapping[tuple[str, int], EventKind] = {
    ("gpu.lost", 0): _event_kind(
        "gpu.off_bus", U, Reason.XID_FATAL, 20_000.0, "has fallen off the bus, its driver says"
    ),
    ("gpu.driver_message", 0): _event_kind(
        "gpu.driver_message", H, Reason.NONE, 1.0, "its driver complained"
    ),
    ("gpu.ras_error", 0): _event_kind(
        "gpu.ras_error.corrected", W, MEMORY, 1.5, "it repaired errors (RAS)", count_min=CORRECTED_MIN
    ),
    ("gpu.ras_error", 1): _event_kind(
        "gpu.ras_error.uncorrected", S, MEMORY, 100.0, "it met errors that it could not repair (RAS)"
    ),
    ("gpu.ras_error", 2): _event_kind(
        "gpu.ras_error.deferred", W, MEMORY, 10.0, "it lost data that nobody has read yet (RAS)"
    ),
    ("gpu.ras_error", 3): _event_kind(
        "gpu.ras_error.replace", S, Reason.HBM_REMAP, 50.0,
        "more of its memory is bad than its driver lets pass: AMD's service guide says whether to replace it",
    ),
    ("gpu.hang", 0): _event_kind(
        "gpu.hang", W, Reason.XID_FATAL, 5.0, "a queue of it hung, and its driver resets it"
    ),
    ("gpu.hang", 1): _event_kind(
        "gpu.hang.recovered", H, Reason.NONE, 1.0, "a queue of it hung, and came back by itself"
    ),
    ("gpu.reset", 0): _event_kind(
        "gpu.reset", H, Reason.NONE, 1.0, "its driver resets it"
    ),
    ("gpu.reset", 1): _event_kind(
        "gpu.reset_failed", U, Reason.XID_FATAL, 1000.0,
        "its driver could not reset it; only a reboot brings it back",
    ),
    ("pcie.aer", 0): _event_kind(
        "pcie.aer.corrected", H, Reason.PCIE, 1.0, "PCIe repaired an error (AER)"
    ),
    ("pcie.aer", 1): _event_kind(
        "pcie.aer.nonfatal", S, Reason.PCIE, 30.0, "PCIe lost a transaction (AER, non-fatal)"
    ),
    ("pcie.aer", 2): _event_kind(
        "pcie.aer.fatal", S, Reason.PCIE, 30.0,
        "PCIe link failed (AER, fatal), or its slot lost link or card",
    ),
    ("host.hardware_error", 0): _event_kind(
        "host.hardware_error.recoverable", W, MEMORY, 3.0, "firmware reports a recoverable error"
    ),
    ("host.hardware_error", 1): _event_kind(
        "host.hardware_error.fatal", S, MEMORY, 30.0, "firmware reports a fatal hardware error"
    ),
    ("host.hardware_error", 2): _event_kind(
        "host.hardware_error.corrected", W, MEMORY, 1.5, "firmware reports corrected errors",
        count_min=CORRECTED_MIN,
    ),
    ("host.hardware_error", 3): _event_kind(
        "host.hardware_error.info", H, MEMORY, 1.0, "firmware reports something to know"
    ),
    ("host.machine_check", 0): _event_kind(
        "host.machine_check.corrected", W, MEMORY, 1.5, "processor repaired errors (MCE)",
        count_min=CORRECTED_MIN,
    ),
    ("host.machine_check", 1): _event_kind(
        "host.machine_check.uncorrected", S, MEMORY, 30.0,
        "processor met an error that it could not repair (MCE)",
    ),
    ("host.memory_error", 0): _event_kind(
        "host.memory_error.corrected", W, MEMORY, 2.0, "host memory repaired errors (EDAC)",
        count_min=CORRECTED_MIN,
    ),
    ("host.memory_error", 1): _event_kind(
        "host.memory_error.uncorrected", S, MEMORY, 30.0,
        "host memory lost data: an error that ECC could not repair (EDAC)",
    ),
    ("rdma.driver_error", 0): _event_kind(
        "rdma.driver_error", W, Reason.FABRIC, 5.0, "its RDMA driver reports an error"
    ),
    ("rdma.driver_error", 1): _event_kind(
        "rdma.low_power", H, Reason.FABRIC, 1.0, "its PCIe slot gives less power than it asks for"
    ),
    (ADAPTER, 0): _event_kind(
        "rdma.adapter_failed", S, Reason.RAIL_DOWN, 300.0,
        "the adapter's firmware does not answer, or its driver gave it up",
    ),
    ("host.out_of_memory", 0): _event_kind(
        "host.out_of_memory", W, HOST, 1.2, "the kernel killed a program for want of memory"
    ),
    ("host.hung_task", 0): _event_kind(
        "host.hung_task", W, HOST, 3.0, "a task hangs in the kernel"
    ),
    ("host.lockup", 0): _event_kind("host.lockup.soft", W, HOST, 3.0, "a core is stuck (soft lockup)"),
    ("host.lockup", 1): _event_kind("host.lockup.hard", S, HOST, 20.0, "a core is stuck (hard lockup)"),
    ("host.lockup", 2): _event_kind("host.lockup.rcu", W, HOST, 3.0, "a core is stuck (RCU stall)"),
    ("filesystem.error", 0): _event_kind(
        "filesystem.error", W, STORAGE, 3.0, "the file system met an error"
    ),
    ("filesystem.error", 1): _event_kind(
        "filesystem.error.read_only", W, STORAGE, 5.0, "the file system was made read-only"
    ),
    ("disk.error", 0): _event_kind("disk.error", W, STORAGE, 3.0, "the disk met an error"),
    ("host.kernel_fault", 0): _event_kind(
        "host.kernel_fault", W, HOST, 5.0, "the kernel met a fault of its own (BUG or Oops)"
    ),
    ("host.kernel_log_lost", 0): _event_kind(
        "host.kernel_log_lost", H, Reason.BLIND, 1.0,
        "kernel log was overrun: lines were lost before they were read, an XID may be among them",
    ),
    (DIAGNOSTIC, 1): _event_kind(
        "gpu.diagnostic.warning", W, Reason.NONE, 2.0, "a diagnostic that somebody ran of it warned"
    ),
    (DIAGNOSTIC, 2): _event_kind(
        "gpu.diagnostic.failed", S, Reason.NONE, 30.0, "a diagnostic that somebody ran of it failed"
    ),
    (LINK, REMOVED): _event_kind(
        "net.removed", W, Reason.RAIL_DOWN, 3.0, "the network interface was taken away"
    ),
}  # fmt: skip
#: NVML's own events: each says what a counter or an XID says as well.
DRIVER_EVENT = _event_kind("gpu.driver_event", H, Reason.NONE, 1.0, "its driver reported an event")
#: Events whose code is of another's table: name -> what it means, whatever the code.
ANY_CODE: Mapping[str, EventKind] = {
    "gpu.driver_event": DRIVER_EVENT,
    "gpu.dcgm_failure": _event_kind(
        "gpu.dcgm_failure", S, Reason.NONE, 30.0, "DCGM's health watch reports a failure"
    ),
    "gpu.dcgm_warning": _event_kind(
        "gpu.dcgm_warning", W, Reason.NONE, 3.0, "DCGM's health watch warns"
    ),
    "gpu.dcgm_policy": _event_kind(
        "gpu.dcgm_policy", W, Reason.NONE, 2.0, "a policy that somebody set in DCGM was violated"
    ),
}
#: What a system of DCGM's health watches is about; of others it is only known that DCGM says so.
DCGM_REASONS = {
    "PCIe": Reason.PCIE, "NVLink": Reason.NVLINK_ERRORS, "NVSwitch fatal": Reason.FABRIC,
    "NVSwitch non-fatal": Reason.FABRIC, "ConnectX": Reason.FABRIC, "memory": MEMORY,
    "thermal": Reason.THERMAL_THROTTLE, "power": Reason.POWER_CAP,
}  # fmt: skip
#: Events of one name that were too many to be told apart (`agent/kernel_log/incidents.py`).
FOLDED_MESSAGE = "more at once than are told apart; the kernel log names them (journalctl -k)"
FOLDED = _event_kind("folded", H, Reason.BLIND, 1.0, FOLDED_MESSAGE)
#: An XID of any kind may be among them.
FOLDED_CODES = _event_kind("folded", W, Reason.BLIND, 3.0, FOLDED_MESSAGE)
BEFORE_BOOT_PREFIX = "before this boot: "


def active_events(view: FleetView) -> Iterator[Symptom]:
    """Every event of the kernel that is not over. Codes that we do not know are left to the store."""
    for record in view.fleet.active_events:
        kind = _kind_of(record)
        if kind is None or (record.name == LINK and not _was_in_use(view, record)):
            continue
        yield _kernel_symptom(view, record, kind)


def _kind_of(record: EventRecord) -> EventKind | None:
    """Return what is to be said of *record*; None of XIDs and SXIDs, and of codes that we do not know."""
    if record.folded:
        folded = FOLDED_CODES if record.name in (XID_EVENT, SXID_EVENT) else FOLDED
        rule = replace(folded.rule, name=f"{folded.rule.name}.{record.name}")
        return EventKind(rule, f"{record.name}: {folded.message}")
    if record.name in ANY_CODE:
        return _about_system(ANY_CODE[record.name], record)
    kind = EVENT_KINDS.get((record.name, record.code))
    return _as_previous_boot(kind) if kind is not None and record.from_previous_boot else kind


def _about_system(kind: EventKind, record: EventRecord) -> EventKind:
    """Return *kind* with the reason of the system that DCGM names, where it names one that has a reason of ours."""
    reason = DCGM_REASONS.get(record.details[0]) if record.details else None
    return kind._replace(rule=replace(kind.rule, reason=reason)) if reason else kind


def _as_previous_boot(kind: EventKind) -> EventKind:
    """Return *kind* as the boot before met it: WATCH at most, and not in the present tense."""
    rule = replace(
        kind.rule,
        name=f"{kind.rule.name}.previous_boot",
        state=kind.rule.state if kind.rule.state is HealthState.HEALTHY else HealthState.WATCH,
        hazard_factor=min(kind.rule.hazard_factor, BEFORE_BOOT_FACTOR_MAX),
    )
    return EventKind(rule, f"{BEFORE_BOOT_PREFIX}{kind.message}", kind.count_min)


def _kernel_symptom(view: FleetView, record: EventRecord, kind: EventKind) -> Symptom:
    counts = record.count >= kind.count_min and not record.hit_cgroup_limit
    state = kind.rule.state if counts else HealthState.HEALTHY
    rule = (
        replace(kind.rule, name=f"{kind.rule.name}.own_limit")
        if record.hit_cgroup_limit
        else kind.rule
    )
    quoted_message = f': "{record.message}"' if record.message else ""
    message = f"{kind.message}{reported.times_text(record)}{quoted_message}"
    return reported.event_symptom(
        view,
        record,
        rule,
        message,
        state=state,
        hazard_factor=kind.rule.hazard_factor if counts else 1.0,
        reason=kind.rule.reason
        if state is not HealthState.HEALTHY
        else _weightless_reason(kind.rule.reason),
    )


def _weightless_reason(reason: Reason) -> Reason:
    """Return the reason of what costs nothing: only blindness is worth naming."""
    return reason if reason is Reason.BLIND else Reason.NONE


def _was_in_use(view: FleetView, record: EventRecord) -> bool:
    """Say whether a removed interface had a carrier: containers take theirs away all day."""
    ever_up = view.fleet.ever_up
    row = view.fleet.devices["net"].find(record.host, record.device)
    had_carrier = row >= 0 and bool(np.asarray(ever_up.carriers)[row])
    return had_carrier or (record.host, record.device) in ever_up.removed


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
QUIET_SECONDS, WATCH_SECONDS = 600.0, 86_400.0
#: Its factor meanwhile, as that of a link that had to be trained again.
WATCH_FACTOR = 5.0
#: What travels on change is told anew within this time of an agent's first frame.
REPORT_SECONDS = 120.0
CLEARS = "its link stays up and counts no error for 24 hours, the GPU is reset, or the host boots"


def without_recovered_link(view: FleetView, record: EventRecord, policy: Xid) -> Xid:
    """Return *policy* of *record* as it weighs now: less where its link is up again and counts nothing."""
    age_seconds = (view.now_ns - record.last_time_ns) / 1e9
    is_link_hazard = policy.code == LINK_ERROR and policy.severity is XidSeverity.HAZARD
    if not is_link_hazard or age_seconds < QUIET_SECONDS or not _is_link_healthy(view, record):
        return policy
    if age_seconds < WATCH_SECONDS:
        return replace(policy, hazard_factor=WATCH_FACTOR, action="none")
    return replace(policy, severity=XidSeverity.IGNORE, hazard_factor=1.0, action="none")


def _is_link_healthy(view: FleetView, record: EventRecord) -> bool:
    """Say whether the link that *record* names, or where it names none each of its GPU's, is up and counts nothing."""
    rows = _links(view, record)
    received_seconds = (view.now_ns - int(view.fleet.first_received_ns[record.host])) / 1e9
    if not rows.size or not view.fresh_at(TABLE, rows).all():
        return received_seconds < REPORT_SECONDS  # nothing is known against it since our start
    table = view.fleet.tables[TABLE]
    if not (table.known("link_state")[rows] & (table.state("link_state")[rows] > 0)).all():
        return False
    known = [column for column in COUNTERS if table.known(column)[rows].all()]
    counting = (view.counting(TABLE, each, ONE_EVENT, slow=True)[0] for each in known)
    return bool(known) and not any(np.isin(rows, each).any() for each in counting)


def _links(view: FleetView, record: EventRecord) -> Indexes:
    devices = view.fleet.tables[TABLE].devices
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

XID = Rule("gpu.xid", HealthState.HEALTHY, Reason.NONE, "", leave_seconds=0.0)
SXID = Rule("nvswitch.sxid", HealthState.HEALTHY, Reason.NONE, "", leave_seconds=0.0)


def active_xids(view: FleetView) -> Iterator[Symptom]:
    """Every code of a GPU that was reported and not cleared; what it means is the policy's to say."""
    yield from _active_codes(view, XID_EVENT, XID, "XID")


def active_sxids(view: FleetView) -> Iterator[Symptom]:
    """Every code of an NVSwitch that was reported and not cleared."""
    yield from _active_codes(view, SXID_EVENT, SXID, "SXID")


def _active_codes(view: FleetView, name: str, rule: Rule, label: str) -> Iterator[Symptom]:
    for record in view.fleet.active_events.by_name(name):
        if record.policy is not None:
            policy = without_recovered_link(view, record, record.policy)
            meaning = _settle(view, record, policy)
            one = _xid_symptom(view, record, policy, meaning, (rule, label))
            yield one if policy is record.policy else replace(one, clears=CLEARS)


def _settle(view: FleetView, record: EventRecord, policy: Xid) -> XidAssessment:
    """Return what *record* means beside the other codes of its device, and what is read of it now."""
    if (
        record.name == XID_EVENT
        and policy.code == RECOVERY_XID
        and _needs_no_recovery(view, record)
    ):
        return XidAssessment(XidSeverity.IGNORE, details=("the driver asks for nothing any more",))
    return gravest(policy, record.incidents.values(), view.now_ns)


def _needs_no_recovery(view: FleetView, record: EventRecord) -> bool:
    """Say whether the GPU's own reading, later than the event, knows of no recovery to be made."""
    row = view.fleet.devices["gpu"].find(record.host, record.device)
    if row < 0 or view.now_ns - record.last_time_ns < RECHECK_SECONDS * 1e9:
        return False
    known = view.known("gpu_1s", RECOVERY_COLUMN)[row]
    return bool(known and view.state("gpu_1s", RECOVERY_COLUMN)[row] == 0)


def _weight(policy: Xid, severity: XidSeverity) -> tuple[HealthState, float]:
    """Return the state that a code puts its host in, and the factor on its hazard."""
    if severity is XidSeverity.FATAL:
        return HealthState.UNHEALTHY, FATAL_HAZARD_FACTOR
    if severity is XidSeverity.HAZARD:
        suspect = policy.hazard_factor >= SUSPECT_FACTOR
        return HealthState.SUSPECT if suspect else HealthState.WATCH, policy.hazard_factor
    return HealthState.HEALTHY, 1.0


def _xid_symptom(
    view: FleetView,
    record: EventRecord,
    policy: Xid,
    meaning: XidAssessment,
    kind: tuple[Rule, str],
) -> Symptom:
    rule, label = kind
    state, factor = _weight(policy, meaning.severity)
    name = f"{label} {policy.code}: {policy.name}{reported.times_text(record)}"
    is_decisive = (
        meaning.severity is policy.severity or meaning.waiting
    )  # not of what a companion explains
    action = [policy.action] if is_decisive and policy.action != "none" else []
    parts = [name, *action, *record.details, *meaning.details]
    if meaning.waiting:
        parts.append("waiting for the code that says how far it went")
    variant = f".{record.variant}" if record.variant else ""
    return reported.event_symptom(
        view,
        record,
        Rule(f"{rule.name}.{policy.code}{variant}", HealthState.HEALTHY, Reason.NONE, ""),
        "; ".join(parts),
        state=state,
        hazard_factor=factor,
        reason=Reason.NONE if state is HealthState.HEALTHY else _reason(policy),
        precedence=_precedence(record, policy, meaning),
    )


def _precedence(record: EventRecord, policy: Xid, meaning: XidAssessment) -> tuple[float, ...]:
    """Return which of several fatal codes is told first: the one whose remedy touches most, then one that no other
    explains, then the one that came last. By its first line: what is written again and again is no news.
    """
    touches = -1 if policy.scope == "unknown" else SCOPES.index(policy.scope)
    deciding = [one.words for one in policy.companions if one.severity is not None]
    explained = policy.code == RECOVERY_XID or any(reason in meaning.details for reason in deciding)
    return touches, not explained, record.first_ns


def _reason(policy: Xid) -> Reason:
    return Reason.__members__.get(policy.reason, Reason.XID_FATAL)
