"""The action for a case by the policies (`contract/faults/`, `xid.toml`, `sxid.toml`).

This module translates the texts of the policy tables into an action, its follow-up and a scope. It
makes no decision of its own: a test fails for a row with an unknown text.
"""

from __future__ import annotations

import difflib
import re
from functools import cache
from typing import NamedTuple

from ...contract.faults.policy import PolicyRow
from ...contract.faults.table import builtin
from ...contract.signals import BY_NAME
from ...contract.xid.policy import Xid
from ...contract.xid.policy import policy as xid_rows
from ...contract.xid.policy import sxid_policy as sxid_rows
from ..model import Evidence, HealthState, HostScore, Reason
from ..rule_catalogue.agent import HOST_RETURNED
from .advisory import Action, Basis, Scope
from .costs import Fault, Workload, acting_cost, waiting_cost

#: Beginning of a policy's text -> action. The first match counts.
ACTION_BY_PREFIX: tuple[tuple[str, Action | None], ...] = (
    ("drain now", Action.EVICT_NOW),
    ("let the jobs end, start none", Action.DRAIN_AND_RESET),
    ("end its peer-to-peer work", Action.DRAIN_P2P),
    ("recover the IMEX domain", Action.RECOVER_IMEX_DOMAIN),
    ("drain after the job", Action.DRAIN_AFTER_JOB),
    ("drain", Action.DRAIN_AT_CHECKPOINT),
    ("reset the GPU at the end of the job", Action.DRAIN_AFTER_JOB),
    ("reboot the host after the job", Action.DRAIN_AFTER_JOB),
    ("unmount and check it, after the job", Action.DRAIN_AFTER_JOB),
    ("enable ECC and reboot the host after the job", Action.DRAIN_AFTER_JOB),
    ("replace the drive", Action.DRAIN_AFTER_JOB),
    ("look at", Action.INSPECT),
    ("look for", Action.INSPECT),
    ("check", Action.INSPECT),
    ("replace", Action.INSPECT),
    ("plan to replace", Action.INSPECT),
    ("update the driver", Action.INSPECT),
    # `gpu.recovery_action_state` reports the same, and has its own row
    ("do what its text asks", None),
    ("as XID 48 beside it says", None),
    ("watch", None),
    ("restart the application", None),
    ("the job asked for", None),
    ("none", None),
)
#: Phrase in the text -> next action after the drain. The first match counts.
FOLLOW_UP_BY_PHRASE: tuple[tuple[str, Action], ...] = (
    ("reset all GPUs", Action.REBOOT),
    ("reset the GPU", Action.RESET_GPU),
    ("reboot", Action.REBOOT),
    ("recover the IMEX domain", Action.RECOVER_IMEX_DOMAIN),
    ("diagnostic", Action.RUN_DIAGNOSTIC),
    ("replace", Action.INSPECT),
    ("reseat", Action.INSPECT),
    ("look at", Action.INSPECT),
    ("read ", Action.INSPECT),
    ("check", Action.INSPECT),
    ("restart the", Action.REBOOT),
)
#: These phrases may follow an action for now; the host is then drained as well.
END_OF_JOB_PHRASES = (
    "reset the GPU at the end of the job",
    "reboot the host at the end of the job",
)
_SCOPES = {scope.value: scope for scope in Scope}
#: Without a policy text: state -> action and basis.
DEFAULT_BY_STATE = {
    HealthState.UNHEALTHY: (Action.DRAIN_AT_CHECKPOINT, Basis.DETERMINISTIC),
    HealthState.SUSPECT: (Action.DRAIN_AFTER_JOB, Basis.STATISTICAL),
    HealthState.DEGRADED: (Action.AVOID, Basis.STATISTICAL),
}
#: Hosts in other states are healthy or not judged, and get no action.
ACTIONABLE_STATES = (
    HealthState.UNHEALTHY,
    HealthState.SUSPECT,
    HealthState.DEGRADED,
    HealthState.WATCH,
    HealthState.PROBATION,
)
#: Signals of forecasts (models, outcomes, returns): they change a score but request no action.
FORECASTS = ("hazard.", HOST_RETURNED.name)
#: The signal of hung calls; `_policy_row_name` selects their row of `contract/faults/`.
HUNG_SIGNAL = "probe.hung_seconds"
#: Signals of hung calls. Most return within minutes while the GPU continues (median 4 min:
#: assumed); the cause of the others soon reports a code of its own (XID 119).
HUNG_CALL_SIGNALS = frozenset({HUNG_SIGNAL, "collector.outcome_state"})
_CODE = re.compile(r"(?:gpu\.|nvswitch\.)?(s?xid|)\s*([0-9]{1,6})", re.ASCII | re.IGNORECASE)
#: A host with a hung call is only avoided until the hang is this long.
HUNG_SECONDS_MIN = 900.0


class PolicyAction(NamedTuple):
    """The actions of a policy's text. `action` None: nothing for a scheduler."""

    action: Action | None
    then: Action | None = None


class RequestedAction(NamedTuple):
    """The action for one piece of evidence, and its basis."""

    rule: str
    action: Action
    then: Action | None
    scope: Scope
    basis: Basis
    reason: str


class UnknownPolicyText(ValueError):
    """A policy's text without an entry in the tables."""


@cache
def parse_policy_text(text: str) -> PolicyAction:
    """Return the actions of a policy's *text*. Raises UnknownPolicyText."""
    matches = [action for start, action in ACTION_BY_PREFIX if text.startswith(start)]
    if not matches:
        raise UnknownPolicyText(
            f"{text!r}: add its beginning to ACTION_BY_PREFIX of aggregator/advisories/policy.py"
        )
    action = matches[0]
    if action is None and any(phrase in text for phrase in END_OF_JOB_PHRASES):
        action = Action.DRAIN_AFTER_JOB
    if action is None or action in (Action.INSPECT, Action.DRAIN_AND_RESET):
        return PolicyAction(action)
    return PolicyAction(
        action, next((then for phrase, then in FOLLOW_UP_BY_PHRASE if phrase in text), None)
    )


def requested_action(host: HostScore, evidence: Evidence, work: Workload) -> RequestedAction | None:
    """Return the action for *evidence* of *host*; None if a scheduler has nothing to do."""
    costs = evidence.log_hazard_delta > 0 or evidence.relative_speed_factor < 1
    costs = costs and not evidence.signal.startswith(FORECASTS)
    if not costs or host.state not in ACTIONABLE_STATES:
        return None
    row = _row(evidence)
    if row is None:
        return _action_by_state(host, evidence)
    policy_text = row.action
    certain = row.severity.value == "fatal" and host.state is HealthState.UNHEALTHY
    advice = parse_policy_text(policy_text)
    if advice.action is None or (
        host.state is HealthState.WATCH and advice.action is Action.INSPECT
    ):
        return None
    dead = work.dead and certain
    basis = Basis.DEAD_JOB if dead else Basis.DETERMINISTIC if certain else Basis.STATISTICAL
    action = advice.action
    if action is Action.DRAIN_AT_CHECKPOINT and dead:
        action = Action.EVICT_NOW  # no checkpoint will come, and nothing can be lost
    if action is Action.DRAIN_P2P:
        basis = Basis.DETERMINISTIC  # the driver requests it
    rule = f"{evidence.signal} {evidence.value:.0f}" if isinstance(row, Xid) else row.name
    return RequestedAction(
        rule, action, advice.then, _SCOPES.get(row.scope, Scope.HOST), basis, policy_text
    )


def avoid_while_hung(
    requested: RequestedAction, evidence: Evidence, seconds: float
) -> RequestedAction:
    """Return *requested*; AVOID for a call that hangs for under HUNG_SECONDS_MIN."""
    certain = requested.basis is Basis.DETERMINISTIC and evidence.signal in HUNG_CALL_SIGNALS
    if not certain or seconds >= HUNG_SECONDS_MIN:
        return requested
    minutes = HUNG_SECONDS_MIN / 60
    reason = f"{requested.reason}; such calls often return on their own, so only if it lasts {minutes:.0f} min, until then AVOID"
    return requested._replace(
        action=Action.AVOID, then=None, basis=Basis.STATISTICAL, reason=reason
    )


def evict_without_checkpoint(
    requested: RequestedAction, fault: Fault, work: Workload
) -> RequestedAction:
    """Return *requested*; EVICT_NOW if continuing with a certain fault costs more.

    This applies if the job's checkpoints are unknown: nothing shows when such a job ends, so "after
    the job" would have no end.
    """
    certain = (
        requested.basis is Basis.DETERMINISTIC and requested.action is Action.DRAIN_AT_CHECKPOINT
    )
    if not certain or not work.gang_gpus or work.checkpoint_seconds > 0:
        return requested
    if (
        waiting_cost(fault, work)[0]
        <= acting_cost(Action.EVICT_NOW, requested.then, fault, work)[0]
    ):
        return requested
    reason = f"{requested.reason}; the checkpoint times of its job are unknown, and continuing costs the job more than a restart"
    return requested._replace(action=Action.EVICT_NOW, reason=reason)


def _action_by_state(host: HostScore, evidence: Evidence) -> RequestedAction | None:
    """Return the default action of the host's state for its first evidence, else None."""
    if host.state not in DEFAULT_BY_STATE or evidence is not next(iter(host.evidence), evidence):
        return None
    action, basis = DEFAULT_BY_STATE[host.state]
    if evidence.reason in (Reason.POWER_CAP, Reason.THERMAL_THROTTLE, Reason.STALE_TELEMETRY):
        basis, action = Basis.STATISTICAL, Action.AVOID
    reason = f"no row for this fault, so the default for a host that is {host.state.name}"
    return RequestedAction(evidence.signal, action, None, Scope.HOST, basis, reason)


def normalize_rule(rule: str) -> str:
    """Return *rule* as in stored evidence; people write XID 95, sxid 20009, or 95."""
    match = _CODE.fullmatch(rule.strip())
    if match is None:
        return rule
    return f"{'nvswitch.sxid' if match[1].lower() == 'sxid' else 'gpu.xid'} {int(match[2])}"


def unknown_rule(rule: str) -> str:
    """Return a message with suggestions if *rule* is unknown; "" if it is known."""
    known = {*BY_NAME, *Reason.__members__, *(row.name for row in builtin().rows)}
    signal, _, code = rule.rpartition(" ")
    if rule in known or (signal in ("gpu.xid", "nvswitch.sxid") and code.isdecimal()):
        return ""
    close_names = difflib.get_close_matches(rule, sorted(known), n=3)
    suggestion = (
        f"did you mean {' or '.join(close_names)}?" if close_names else "a code is 'gpu.xid 95'"
    )
    return (
        f"{rule!r}: no rule, reason or signal has this name, and no stored evidence; {suggestion}"
    )


def evidence_of_rule(rule: str) -> tuple[list[str], list[str]]:
    """Return the signals and reasons of evidence of *rule*: a code, row, reason, or signal."""
    signals = [row.evidence_signal for row in builtin().rows if row.name == rule]
    hung = [HUNG_SIGNAL] if rule.endswith("_hung") else []
    heat = [Reason.THERMAL_THROTTLE.name] if rule == "gpu_thermal" else []
    return [rule, rule.rpartition(" ")[0], *signals, *hung], [rule, *heat]


def _row(evidence: Evidence) -> PolicyRow | Xid | None:
    """Return the policy's row for *evidence*; None unless exactly one matches."""
    tables = {"gpu.xid": xid_rows, "nvswitch.sxid": sxid_rows}
    if evidence.signal in tables:
        return tables[evidence.signal]().get(int(evidence.value))
    if name := _policy_row_name(evidence):
        return next((row for row in builtin().rows if row.name == name), None)
    matches = [
        row for row in _by_signal().get(evidence.signal, ()) if _row_matches(row, evidence.value)
    ]
    return matches[0] if len(matches) == 1 else None


def _policy_row_name(evidence: Evidence) -> str:
    """Return the row's name for evidence without a signal of its own; "" for other evidence."""
    if evidence.reason is Reason.THERMAL_THROTTLE:
        return "gpu_thermal"
    if evidence.signal != HUNG_SIGNAL:
        return ""
    if evidence.device.startswith("GPU-"):
        return "gpu_hung"
    return "driver_hung" if evidence.device.startswith("gpu") else "device_hung"


@cache
def _by_signal() -> dict[str, list[PolicyRow]]:
    rows: dict[str, list[PolicyRow]] = {}
    for row in builtin().rows:
        if row.action:
            rows.setdefault(row.evidence_signal, []).append(row)
    return rows


def _row_matches(row: PolicyRow, value: float) -> bool:
    if not row.when:
        return not row.codes or int(value) in row.codes
    first = row.when[0]
    return first.compare not in ("==", "in") or bool(first.other) or first.holds(value, None)
