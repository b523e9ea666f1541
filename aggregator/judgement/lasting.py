"""What counts for a while after it was last there, made anew from the score of before: a restart of ours ends it no sooner.

A host is slow for an hour after its job, a port flaps for ten minutes: windows and sums that tell it begin at nothing with us.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ...fingerprints.catalogue import TABLES
from ..verdicts import Evidence, HostScore
from .hysteresis import Hold, Key
from .readings import LATELY_SECONDS, Counted
from .rules import agent, fabric, gang, nvlink, parts, pcie
from .symptoms import Rule, Symptom

_TABLES = (
    *pcie.GPU_ERRORS, *nvlink.COUNTS, *parts.MEMORY_COUNTS, *parts.DRIVE_COUNTS, *parts.NETWORK_COUNTS,
)  # fmt: skip


def _of_ten_minutes(rule: Rule) -> Rule:
    """Return *rule*, of what is seen for LATELY_SECONDS after it happened: the score says when it was seen, not when it was."""
    return replace(rule, leave_seconds=rule.leave_seconds + LATELY_SECONDS)


def _counted(entry: Counted) -> tuple[str, Rule]:
    rule = entry.rule if entry.per_second else _of_ten_minutes(entry.rule)
    return f"{TABLES[entry.table][0].device_kind}.{entry.column}", rule


#: Signal -> the rule that its evidence is of. Not of bursts of corrected errors of a GPU, which may be of two states.
_RULES: Mapping[str, Rule] = {
    gang.SLOW.name: gang.SLOW,
    "rdma.link_downed_events": _of_ten_minutes(fabric.PORT_FLAPS),
    **{f"pcie.{column}": _of_ten_minutes(fabric.AER_LOST) for column in fabric.LOST},
    f"pcie.{fabric.CORRECTED}": fabric.AER_CORRECTED,
    "agent.spool_dropped_frames": _of_ten_minutes(agent.FRAMES_LOST),
    **dict(map(_counted, _TABLES)),
}


def lasting(score: HostScore, host: int, now_ns: int) -> dict[Key, Hold]:
    """Return the holds of *host*, by its node index now, that its last score tells of, as old as they were then."""
    held: dict[Key, Hold] = {}
    for symptom, evidence in _symptoms(score, host):
        seen_ns = min(evidence.observed_ns, now_ns)  # our clock may have been set back
        held[symptom.key] = Hold(symptom, symptom, seen_ns, seen_ns, seen_ns, active=True)
    return held


def _symptoms(score: HostScore, host: int) -> Iterator[tuple[Symptom, Evidence]]:
    for one in score.evidence:
        rule = _RULES.get(one.signal)
        # By another reason it is of another rule, or what somebody takes as noise.
        if rule is not None and rule.reason is one.reason:
            yield (
                Symptom(
                    rule, host, one.device, one.signal, one.value, one.normal, one.words, one.sql,
                    one.unit, one.relative_speed_factor,
                ),
                one,
            )  # fmt: skip
