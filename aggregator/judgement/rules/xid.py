"""XIDs and SXIDs that still stand, under the policy of `fingerprints/xid.toml` and `sxid.toml`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ....fingerprints.xid import SCOPES, Settled, Severity, Xid
from ....fingerprints.xid_incidents import RECOVERY, gravest
from ...fleet.meanings import SXID as SXID_EVENT
from ...fleet.meanings import XID as XID_EVENT
from ...fleet.occurrences import Occurrence
from ...verdicts import Reason, State
from .. import reported
from ..present import Present
from ..recovered import CLEARS, calmed
from ..symptoms import Rule, Symptom

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
            one = _symptom(present, record, row, meaning, (rule, label))
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


def _symptom(
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
