"""Checkpoint of tracked symptoms: stored with scores and every minute, restored at start.

A host's row is in the same commit as its score, so nothing needs replaying. A row older than the
last score belongs to another history (an earlier version wrote the score) and is ignored.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import fields, replace
from functools import partial
from typing import Any

from ...contract.signal import Kind
from ...contract.signals import BY_NAME
from ..dataclass_json import from_plain, to_plain
from ..fleet.fleet import Fleet, RestoredParts
from ..model import SIMULATED_SILENT_SECONDS_MAX
from ..rule_catalogue import RULES
from ..store.restored_state import LastScore
from ..store.rows import HostMemory
from .declared import without_maintenance
from .evaluate import Judgement
from .features import FaultHistory
from .hysteresis import RuleAndDevice, TrackedSymptom, TrackedSymptoms, freeze
from .missing_readings import SettlingHost
from .rule_rows import RECENT_SECONDS
from .score import HORIZON_HOURS
from .symptom import Symptom

log = logging.getLogger(__name__)

SECOND_NS = 1_000_000_000
#: Version of the row format, and the readable previous version, which stores whole rules. Rows of
#: other versions are ignored.
FORMAT, FORMAT_BEFORE = 2, 1
#: A host's row is written again after this, even if its score stays the same.
PERIOD_NS = 60 * SECOND_NS
#: Symptoms stored per host; those with the least weight are omitted.
SYMPTOMS_PER_HOST_MAX = 256
_TIMES = ("since_ns", "last_seen_ns", "worst_seen_ns", "active")
_SYMPTOM_FIELDS = tuple(f.name for f in fields(Symptom) if f.name not in ("rule", "shared_cause"))


class MemoryLog:
    """The time at which each host's row was written, by node index."""

    def __init__(self, restored: Judgement) -> None:
        # spread over the period, so that one turn does not write all rows
        self._written_ns = {
            host: restored.computed_ns - host * SECOND_NS % PERIOD_NS for host in restored.settling
        }

    def take_due(
        self, judgement: Judgement, fleet: Fleet, scored: Iterable[int]
    ) -> list[HostMemory]:
        """Return the rows to write with the scores of *scored*, and mark them as written."""
        now_ns, tracked = judgement.computed_ns, judgement.tracked_symptoms
        since_ns = {host: now_ns - self._written_ns.get(host, 0) for host in tracked}
        due = {
            *scored,
            *(host for host, elapsed_ns in since_ns.items() if not 0 <= elapsed_ns < PERIOD_NS),
        }
        rows: list[HostMemory] = []
        for host in due:
            if symptoms := tracked.get(host):
                self._written_ns[host] = now_ns
                parts = {(state.worst.device, state.worst.signal) for state in symptoms.values()}
                read = frozenset(part for part in parts if fleet.was_read(host, *part))
                body = partial(encode, symptoms, RestoredParts(fleet.boot_id(host), read), now_ns)
                rows.append(HostMemory(fleet.names[host], now_ns, body))
            elif self._written_ns.pop(host, None) is not None:
                rows.append(HostMemory(fleet.names[host], now_ns, None))
        return rows


def encode(symptoms: TrackedSymptoms, read: RestoredParts, now_ns: int) -> str:
    """Return the tracked symptoms of a host at *now_ns* as JSON."""
    stored = list(symptoms.values())
    if len(stored) > SYMPTOMS_PER_HOST_MAX:
        stored.sort(
            key=lambda tracked_symptom: (tracked_symptom.active, tracked_symptom.worst.weight),
            reverse=True,
        )
    content = {
        "format": FORMAT, "time_ns": now_ns, "boot_id": read.boot_id.hex(), "read_parts": sorted(read.parts),
        "symptoms": [_plain(one) for one in stored[:SYMPTOMS_PER_HOST_MAX]],
    }  # fmt: skip
    return json.dumps(content, separators=(",", ":"), default=float)  # for numpy


def _plain(one: TrackedSymptom) -> dict[str, Any]:
    latest = None if one.latest is one.worst else _plain_symptom(one.latest)
    times = {name: to_plain(getattr(one, name)) for name in _TIMES}
    return times | {"worst": _plain_symptom(one.worst), "latest": latest}


def _plain_symptom(symptom: Symptom) -> dict[str, Any]:
    """Return *symptom* as plain data, with its rule by name if the rule is as declared."""
    plain = {name: to_plain(getattr(symptom, name)) for name in _SYMPTOM_FIELDS}
    rule = symptom.rule
    return plain | {"rule": rule.name if RULES.get(rule.name) == rule else to_plain(rule)}


def decode(body: str, host: int, now_ns: int) -> tuple[TrackedSymptoms, RestoredParts]:
    """Return the symptoms of `encode` as they continue at *now_ns* on the node index *host*.

    The time in between counts for the end of a symptom, and not for its beginning. Raises
    ValueError, TypeError, KeyError, AttributeError.
    """
    content = json.loads(body)
    if content["format"] not in (FORMAT, FORMAT_BEFORE):
        raise ValueError(f"format {content['format']}, expected {FORMAT}")
    symptoms: dict[RuleAndDevice, TrackedSymptom] = {}
    for plain in content["symptoms"]:
        latest = plain["latest"] or plain["worst"]
        for symptom in (plain["worst"], latest):
            if isinstance(symptom["rule"], str):
                symptom["rule"] = RULES[symptom["rule"]]
        tracked_symptom: TrackedSymptom = from_plain(TrackedSymptom, {**plain, "latest": latest})
        worst = replace(_without_sums(tracked_symptom), host=host)
        symptoms[worst.key] = replace(
            tracked_symptom, worst=worst, latest=replace(tracked_symptom.latest, host=host)
        )
    elapsed_ns = now_ns - content["time_ns"]  # below 0: our clock was set back
    paused = {key: state for key, state in symptoms.items() if elapsed_ns < 0 or not state.active}
    parts = frozenset((device, signal) for device, signal in content["read_parts"])
    return symptoms | freeze(paused, elapsed_ns), RestoredParts(
        bytes.fromhex(content["boot_id"]), parts
    )


def _without_sums(one: TrackedSymptom) -> Symptom:
    """Return the worst symptom; a counter's ends later, since its sum restarts at zero."""
    signal = BY_NAME.get(one.worst.signal)
    if signal is None or signal.kind is not Kind.COUNTER:
        return one.worst
    # based on the latest symptom: two restarts must not add the time twice
    leave_seconds = one.latest.rule.leave_seconds + RECENT_SECONDS
    return replace(one.worst, rule=replace(one.worst.rule, leave_seconds=leave_seconds))


def restore(
    fleet: Fleet, last: Iterable[LastScore], now_ns: int, faults: FaultHistory | None = None
) -> Judgement:
    """Add the hosts of *last* to *fleet*; return the judgement before the first."""
    settling: dict[int, SettlingHost] = {}
    tracked: dict[int, TrackedSymptoms] = {}
    unused: list[str] = []
    for score, gpus, memory, is_outdated in last:
        silent_seconds = (now_ns - score.last_received_ns) / 1e9
        if score.simulated and silent_seconds > SIMULATED_SILENT_SECONDS_MAX:
            continue
        host = len(fleet)
        symptoms: TrackedSymptoms = {}
        parts: RestoredParts | None = None
        if memory is not None:
            try:
                if is_outdated:
                    raise ValueError("older than its last score")
                symptoms, parts = decode(memory, host, now_ns)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                unused.append(f"{score.host}: {type(error).__name__}: {error}")
        last_received_ns = min(score.last_received_ns, now_ns)  # our clock may have been set back
        fleet.restore(
            score.host,
            simulated=score.simulated,
            gpus=gpus,
            last_received_ns=last_received_ns,
            parts=parts,
        )
        score = replace(without_maintenance(score), node_index=host)
        settling[host] = SettlingHost(score, frozenset(symptoms))
        if symptoms:
            tracked[host] = symptoms
        signals = {(evidence.device, evidence.signal) for evidence in score.evidence}
        for device, signal in signals | {
            (tracked_symptom.worst.device, tracked_symptom.worst.signal)
            for tracked_symptom in symptoms.values()
        }:
            fleet.ever_up.restore(host, device, signal)
    if unused:
        log.warning(
            "the checkpoint of %d hosts is not used; their last score applies until they have "
            "reported for a minute. The first: %s", len(unused), unused[0],
        )  # fmt: skip
    fleet.restarted_ns = now_ns
    return Judgement(
        version=0, computed_ns=now_ns, horizon_seconds=HORIZON_HOURS * 3600.0, hosts=(), dictionary_version=fleet.epoch,
        tracked_symptoms=tracked, settling=settling, faults=faults or FaultHistory(),
    )  # fmt: skip
