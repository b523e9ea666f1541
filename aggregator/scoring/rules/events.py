"""Active kernel events, XIDs and SXIDs.

`contract/xid/xid.toml` and `sxid.toml` are the policy of XIDs and SXIDs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ....contract.xid.incidents import RECOVERY_XID, gravest
from ....contract.xid.policy import SCOPES, Xid, XidAssessment, XidSeverity
from ...arrays import Indexes
from ...fleet.active_events import EventRecord
from ...fleet.event_interpretation import ISOLATION, LINK
from ...model import HealthState, Reason
from ...rule_catalogue import events as rules
from ...rule_catalogue import faults
from ...rule_declaration import EventKind, Rule
from .. import event_symptom
from ..detectors import detects
from ..symptom import Symptom
from ..view import FleetView

#: Maximum hazard factor of an event from before this boot.
BEFORE_BOOT_FACTOR_MAX = 3.0
#: System of DCGM's health watches -> reason; for other systems only DCGM's report is known.
DCGM_REASONS = {
    "PCIe": Reason.PCIE, "NVLink": Reason.NVLINK_ERRORS, "NVSwitch fatal": Reason.FABRIC,
    "NVSwitch non-fatal": Reason.FABRIC, "ConnectX": Reason.FABRIC, "memory": Reason.ECC_TREND,
    "thermal": Reason.THERMAL_THROTTLE, "power": Reason.POWER_CAP,
}  # fmt: skip
BEFORE_BOOT_PREFIX = "before this boot: "
#: The folded codes may include any XID.
FOLDED_CODES = replace(rules.FOLDED.rule, state=HealthState.WATCH, hazard_factor=3.0)

#: NVLINK_ERROR.
LINK_ERROR = 74
TABLE = "nvlink_10s_changes"
COUNTERS = (
    "crc_errors", "replay_errors", "recovery_errors", "link_recovery_events",
    "link_recovery_failed_events",
)  # fmt: skip
#: A counter's sum of ten minutes is below this after QUIET_SECONDS without events.
ONE_EVENT = 0.35
#: After its last XID 74 the link's counters must not rise for QUIET_SECONDS; it is then watched
#: until WATCH_SECONDS (assumed).
QUIET_SECONDS, WATCH_SECONDS = 600.0, 86_400.0
#: Hazard factor meanwhile, as for a link that had to be retrained.
WATCH_FACTOR = 5.0
#: An on-change signal is reported again within this time after an agent's first frame.
REPORT_SECONDS = 120.0
CLEARS = "its link stays up and counts no error for 24 hours, the GPU is reset, or the host boots"
#: A host with a fatal code has practically no chance of eight hours without an interruption.
FATAL_HAZARD_FACTOR = 20_000.0
#: Hazards from this factor on are SUSPECT, below it WATCH.
SUSPECT_FACTOR = 20.0
#: XID 154 reports a change of `gpu.recovery_action_state`; that reading is later, and so has more
#: weight.
RECOVERY_COLUMN = "recovery_action_state"
RECHECK_SECONDS = 10.0


@detects(
    *(kind.rule for kind in (*faults.EVENT_KINDS.values(), *faults.ANY_CODE.values(), rules.FOLDED))
)
def active_events(view: FleetView) -> Iterator[Symptom]:
    """Yield a symptom of each kernel event that is not over. Unknown codes are only stored."""
    for record in view.fleet.active_events:
        kind = _kind_of(record)
        if kind is None or (record.name == LINK and not _was_in_use(view, record)):
            continue
        symptom = _kernel_symptom(view, record, kind)
        # One finding for all pairs of jobs on a host, which may be many.
        yield replace(symptom, device="host") if record.name == ISOLATION else symptom


def _kind_of(record: EventRecord) -> EventKind | None:
    """Return the kind of *record*; None for XIDs, SXIDs and unknown codes."""
    if record.folded:
        is_code = record.name in (rules.XID.name, rules.SXID.name)
        rule = FOLDED_CODES if is_code else rules.FOLDED.rule
        rule = replace(rule, name=f"{rule.name}.{record.name}")
        return EventKind(rule, f"{record.name}: {rules.FOLDED.message}")
    if record.name in faults.ANY_CODE:
        return _about_system(faults.ANY_CODE[record.name], record)
    kind = faults.EVENT_KINDS.get((record.name, record.code))
    return _as_previous_boot(kind) if kind is not None and record.from_previous_boot else kind


def _about_system(kind: EventKind, record: EventRecord) -> EventKind:
    """Return *kind* with the reason of the system that DCGM names, if DCGM_REASONS has it."""
    reason = DCGM_REASONS.get(record.details[0]) if record.details else None
    return kind._replace(rule=replace(kind.rule, reason=reason)) if reason else kind


def _as_previous_boot(kind: EventKind) -> EventKind:
    """Return *kind* for an earlier boot: WATCH at most, with BEFORE_BOOT_PREFIX."""
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
    if record.hit_cgroup_limit:
        rule = replace(kind.rule, name=f"{kind.rule.name}.own_limit")
    else:
        rule = kind.rule
    quoted_message = f': "{record.message}"' if record.message else ""
    message = f"{kind.message}{event_symptom.times_text(record)}{quoted_message}"
    return event_symptom.event_symptom(
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
    """Return the reason of an event without weight: only blindness is worth naming."""
    return reason if reason is Reason.BLIND else Reason.NONE


def _was_in_use(view: FleetView, record: EventRecord) -> bool:
    """Return whether a removed interface had a carrier: containers remove theirs all day."""
    ever_up = view.fleet.ever_up
    row = view.fleet.devices["net"].find(record.host, record.device)
    had_carrier = row >= 0 and bool(np.asarray(ever_up.carriers)[row])
    return had_carrier or (record.host, record.device) in ever_up.removed


def without_recovered_link(view: FleetView, record: EventRecord, policy: Xid) -> Xid:
    """Return *policy* of *record* with less weight if its link is up again and counts nothing.

    An XID 74 whose link recovered is not a fault; with counters that continue to rise, it is.
    """
    age_seconds = (view.now_ns - record.last_time_ns) / 1e9
    is_link_hazard = policy.code == LINK_ERROR and policy.severity is XidSeverity.HAZARD
    if not is_link_hazard or age_seconds < QUIET_SECONDS or not _is_link_healthy(view, record):
        return policy
    if age_seconds < WATCH_SECONDS:
        return replace(policy, hazard_factor=WATCH_FACTOR, action="none")
    return replace(policy, severity=XidSeverity.IGNORE, hazard_factor=1.0, action="none")


def _is_link_healthy(view: FleetView, record: EventRecord) -> bool:
    """Return whether the link of *record*, or each link of its GPU, is up without errors."""
    rows = _links(view, record)
    received_seconds = (view.now_ns - int(view.fleet.first_received_ns[record.host])) / 1e9
    if not rows.size or not view.fresh_at(TABLE, rows).all():
        return received_seconds < REPORT_SECONDS  # no evidence against the link since our start
    table = view.fleet.tables[TABLE]
    if not (table.known("link_state")[rows] & (table.state("link_state")[rows] > 0)).all():
        return False
    known = [column for column in COUNTERS if table.known(column)[rows].all()]
    counting = (view.counting(TABLE, column, ONE_EVENT, slow=True)[0] for column in known)
    return bool(known) and not any(np.isin(rows, counted).any() for counted in counting)


def _links(view: FleetView, record: EventRecord) -> Indexes:
    devices = view.fleet.tables[TABLE].devices
    link = next((word for word in record.variant.split() if word.isdigit()), "")
    if link:
        row = devices.find(record.host, f"{record.device}/link{link}")
        return np.array([row] if row >= 0 else [], dtype=np.intp)
    of_gpu = f"{record.device}/link"
    rows = [row for row in devices.rows_of(record.host) if devices.names[row].startswith(of_gpu)]
    return np.array(rows, dtype=np.intp)


@detects(rules.XID)
def active_xids(view: FleetView) -> Iterator[Symptom]:
    """Yield a symptom of each GPU code that is reported and not cleared, weighed by its policy."""
    yield from _active_codes(view, rules.XID, "XID")


@detects(rules.SXID)
def active_sxids(view: FleetView) -> Iterator[Symptom]:
    """Yield a symptom of each NVSwitch code that is reported and not cleared."""
    yield from _active_codes(view, rules.SXID, "SXID")


def _active_codes(view: FleetView, rule: Rule, label: str) -> Iterator[Symptom]:
    for record in view.fleet.active_events.by_name(rule.name):
        if record.policy is not None:
            policy = without_recovered_link(view, record, record.policy)
            meaning = _settle(view, record, policy)
            symptom = _xid_symptom(view, record, policy, meaning, (rule, label))
            yield symptom if policy is record.policy else replace(symptom, clears=CLEARS)


def _settle(view: FleetView, record: EventRecord, policy: Xid) -> XidAssessment:
    """Return the meaning of *record* given its device's other codes and current readings."""
    if (
        record.name == rules.XID.name
        and policy.code == RECOVERY_XID
        and _needs_no_recovery(view, record)
    ):
        return XidAssessment(
            XidSeverity.IGNORE, details=("the driver no longer asks for a recovery action",)
        )
    return gravest(policy, record.incidents.values(), view.now_ns)


def _needs_no_recovery(view: FleetView, record: EventRecord) -> bool:
    """Return whether the GPU's own reading, later than the event, requests no recovery."""
    row = view.fleet.devices["gpu"].find(record.host, record.device)
    if row < 0 or view.now_ns - record.last_time_ns < RECHECK_SECONDS * 1e9:
        return False
    known = view.known("gpu_1s", RECOVERY_COLUMN)[row]
    return bool(known and view.state("gpu_1s", RECOVERY_COLUMN)[row] == 0)


def _weight(policy: Xid, severity: XidSeverity) -> tuple[HealthState, float]:
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
    name = f"{label} {policy.code}: {policy.name}{event_symptom.times_text(record)}"
    is_decisive = (
        meaning.severity is policy.severity or meaning.waiting
    )  # False if a companion explains the code
    action = [policy.action] if is_decisive and policy.action != "none" else []
    parts = [name, *action, *record.details, *meaning.details]
    if meaning.waiting:
        parts.append("waiting for the code that shows its extent")
    variant = f".{record.variant}" if record.variant else ""
    return event_symptom.event_symptom(
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
    """Return the sort key of fatal codes: widest remedy, then unexplained, then latest.

    By the first line of a code, since repetitions add no information.
    """
    touches = -1 if policy.scope == "unknown" else SCOPES.index(policy.scope)
    deciding = [
        companion.message for companion in policy.companions if companion.severity is not None
    ]
    explained = policy.code == RECOVERY_XID or any(reason in meaning.details for reason in deciding)
    return touches, not explained, record.first_ns


def _reason(policy: Xid) -> Reason:
    return Reason.__members__.get(policy.reason, Reason.XID_FATAL)
