"""Which action a case calls for: the policies' own words (`fingerprints/policy.toml`, `xid.toml`, `sxid.toml`) as actions.

The tables say in words what to do; here these words become an action, what follows it, and a scope. Nothing is
decided anew: a row whose words mean nothing to this table is refused by a test.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from ...fingerprints.catalogue import BY_NAME
from ...fingerprints.policy import Row
from ...fingerprints.policy_table import builtin
from ...fingerprints.xid import Xid
from ...fingerprints.xid import policy as xid_rows
from ...fingerprints.xid import sxid_policy as sxid_rows
from ..judgement.rules import returned
from ..verdicts import Evidence, HostScore, Reason, State
from .advisory import Action, Basis, Scope
from .costs import Workload


class Advice(NamedTuple):
    """What a policy's words ask for. `action` None: nothing of a scheduler."""

    action: Action | None
    then: Action | None = None


class Asked(NamedTuple):
    """What is asked for one piece of evidence, and on what it stands."""

    rule: str
    action: Action
    then: Action | None
    scope: Scope
    basis: Basis
    words: str


#: The beginning of a policy's words -> what is asked. The first that fits counts.
FIRST: tuple[tuple[str, Action | None], ...] = (
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
    ("do what its text asks", None),  # `gpu.recovery_action_state` tells the same, and has its row
    ("as XID 48 beside it says", None),
    ("watch", None),
    ("restart the application", None),
    ("the job asked for", None),
    ("none", None),
)
#: Words behind it -> what follows once the host is drained. The first that fits counts.
THEN: tuple[tuple[str, Action], ...] = (
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
#: Reset at the end of the job, said after what is done now: the host is drained then.
AT_THE_END = ("reset the GPU at the end of the job", "reboot the host at the end of the job")


class UnknownWords(ValueError):
    """A policy says what this table has no action for."""


@cache
def advice_of(words: str) -> Advice:
    """Return what a policy's *words* ask for. Raises UnknownWords."""
    found = [action for start, action in FIRST if words.startswith(start)]
    if not found:
        raise UnknownWords(f"{words!r}: add its beginning to FIRST of aggregator/advice/policy.py")
    action = found[0]
    if action is None and any(late in words for late in AT_THE_END):
        action = Action.DRAIN_AFTER_JOB
    if action is None or action in (Action.INSPECT, Action.DRAIN_AND_RESET):
        return Advice(action)
    return Advice(action, next((then for said, then in THEN if said in words), None))


_SCOPES = {one.value: one for one in Scope}
#: Without words of a policy: what a state asks for, and by which right.
OTHERWISE = {
    State.UNHEALTHY: (Action.DRAIN_AFTER_JOB, Basis.DETERMINISTIC),
    State.SUSPECT: (Action.DRAIN_AFTER_JOB, Basis.STATISTICAL),
    State.DEGRADED: (Action.AVOID, Basis.STATISTICAL),
}
#: Of hosts in other states nothing is asked: they are well, or nobody looks at them.
ASKED_OF = (State.UNHEALTHY, State.SUSPECT, State.DEGRADED, State.WATCH, State.PROBATION)
#: Of a model, of outcomes, of a return: a forecast, which moves a score and calls for nothing by itself.
FORECASTS = ("hazard.", returned.RULE.name)
#: The signal of calls that do not return; `_named` says which row of `policy.toml` is theirs.
HUNG = "probe.hung_seconds"
#: What is told of calls that do not return. Of most that do not, the GPU goes on and they return within minutes (median
#: 4 min: assumed); what is behind the others has a code of its own (XID 119) before long.
HANGS = frozenset({HUNG, "collector.outcome_state"})
_CODE = re.compile(r"(?:gpu\.|nvswitch\.)?(s?xid|)\s*([0-9]{1,6})", re.ASCII | re.IGNORECASE)
#: So long a host is only avoided for such a call.
HUNG_SECONDS_MIN = 900.0


def asked(host: HostScore, evidence: Evidence, work: Workload) -> Asked | None:
    """Return what *evidence* of *host* calls for; None for nothing of a scheduler's."""
    costs = evidence.log_hazard_delta > 0 or evidence.relative_speed_factor < 1
    costs = costs and not evidence.signal.startswith(FORECASTS)
    if not costs or host.state not in ASKED_OF:
        return None
    row = _row(evidence)
    if row is None:
        return _by_state(host, evidence)
    said, certain = row.action, row.severity.value == "fatal" and host.state is State.UNHEALTHY
    advice = advice_of(said)
    if advice.action is None or (host.state is State.WATCH and advice.action is Action.INSPECT):
        return None
    dead = work.dead and certain
    basis = Basis.DEAD_JOB if dead else Basis.DETERMINISTIC if certain else Basis.STATISTICAL
    action = advice.action
    if action is Action.DRAIN_AT_CHECKPOINT and dead:
        action = Action.EVICT_NOW  # there is no checkpoint to come, and nothing to lose
    if action is Action.DRAIN_P2P:
        basis = Basis.DETERMINISTIC  # the driver asks for it
    rule = f"{evidence.signal} {evidence.value:.0f}" if isinstance(row, Xid) else row.name
    return Asked(rule, action, advice.then, _SCOPES.get(row.scope, Scope.HOST), basis, said)


def patient(one: Asked, evidence: Evidence, seconds: float) -> Asked:
    """Return *one*, which has stood for so long; of a call that hangs for less than a quarter of an hour, to avoid the host."""
    certain = one.basis is Basis.DETERMINISTIC and evidence.signal in HANGS
    if not certain or seconds >= HUNG_SECONDS_MIN:
        return one
    minutes = HUNG_SECONDS_MIN / 60
    words = f"{one.words}; such calls often return by themselves: so only if it lasts {minutes:.0f} min, until then AVOID"
    return one._replace(action=Action.AVOID, then=None, basis=Basis.STATISTICAL, words=words)


def _by_state(host: HostScore, evidence: Evidence) -> Asked | None:
    """Return what the state of *host* asks for, of the evidence that put it there alone: what is milder beside it has no such right."""
    if host.state not in OTHERWISE or evidence is not next(iter(host.evidence), evidence):
        return None
    action, basis = OTHERWISE[host.state]
    if evidence.reason in (Reason.POWER_CAP, Reason.THERMAL_THROTTLE, Reason.STALE_TELEMETRY):
        basis, action = Basis.STATISTICAL, Action.AVOID
    words = "no policy names it: its state asks for it"
    return Asked(evidence.signal, action, None, Scope.HOST, basis, words)


def as_told(rule: str) -> str:
    """Return *rule* as evidence bears it, where it is a code as people say it: XID 95, sxid 20009, or 95."""
    found = _CODE.fullmatch(rule.strip())
    if found is None:
        return rule
    return f"{'nvswitch.sxid' if found[1].lower() == 'sxid' else 'gpu.xid'} {int(found[2])}"


def unknown_rule(rule: str) -> str:
    """Return words on a *rule* that is none of ours, with what may have been meant; "" for one that is."""
    known = {*BY_NAME, *Reason.__members__, *(row.name for row in builtin().rows)}
    signal, _, code = rule.rpartition(" ")
    if rule in known or (signal in ("gpu.xid", "nvswitch.sxid") and code.isdecimal()):
        return ""
    near = difflib.get_close_matches(rule, sorted(known), n=3)
    meant = f"did you mean {' or '.join(near)}?" if near else "a code is 'gpu.xid 95'"
    return f"{rule!r}: no rule, reason or signal has this name, and no stored evidence; {meant}"


def evidence_of_rule(rule: str) -> tuple[list[str], list[str]]:
    """Return the signals and the reasons that evidence of *rule* may bear: a code, a row, a reason, a signal."""
    about = [row.about for row in builtin().rows if row.name == rule]
    hung = [HUNG] if rule.endswith("_hung") else []
    heat = [Reason.THERMAL_THROTTLE.name] if rule == "gpu_thermal" else []
    return [rule, rule.rpartition(" ")[0], *about, *hung], [rule, *heat]


def _row(evidence: Evidence) -> Row | Xid | None:
    """Return the policy's row for *evidence*, where it has one only."""
    tables = {"gpu.xid": xid_rows, "nvswitch.sxid": sxid_rows}
    if evidence.signal in tables:
        return tables[evidence.signal]().get(int(evidence.value))
    if name := _named(evidence):
        return next((row for row in builtin().rows if row.name == name), None)
    found = [row for row in _by_signal().get(evidence.signal, ()) if _fits(row, evidence.value)]
    return found[0] if len(found) == 1 else None


def _named(evidence: Evidence) -> str:
    """Return the row of what is told by no signal of its own; "" for the rest."""
    if evidence.reason is Reason.THERMAL_THROTTLE:
        return "gpu_thermal"
    if evidence.signal != HUNG:
        return ""
    if evidence.device.startswith("GPU-"):
        return "gpu_hung"
    return "driver_hung" if evidence.device.startswith("gpu") else "device_hung"


@cache
def _by_signal() -> dict[str, list[Row]]:
    rows: dict[str, list[Row]] = {}
    for row in builtin().rows:
        if row.action:
            rows.setdefault(row.about, []).append(row)
    return rows


def _fits(row: Row, value: float) -> bool:
    if not row.when:
        return not row.codes or int(value) in row.codes
    first = row.when[0]
    return first.compare not in ("==", "in") or bool(first.other) or first.holds(value, None)


def all_words() -> Iterator[str]:
    """Yield what every row of every policy says to do."""
    yield from (row.action for row in xid_rows().values())
    yield from (row.action for row in sxid_rows().values())
    yield from (row.action for row in builtin().rows if row.action)
