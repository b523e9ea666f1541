"""When a symptom begins to count, and when it is over: enter fast, leave slowly.

A pure state machine over the symptoms of one host: the same symptoms at the same times give the same
holds. A symptom counts once it was there for its rule's `enter_seconds` on end. It then counts, at the
worst level it had, until it was away (or milder) for `leave_seconds`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace

from .symptoms import Symptom

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Hold:
    """One symptom over time."""

    worst: Symptom  # what counts
    latest: Symptom
    since_ns: int  # there without a break since
    seen_ns: int  # last there
    worst_ns: int  # last there at its worst
    active: bool  # it counts


Holds = Mapping[Key, Hold]


def step(
    holds: Holds, symptoms: Iterable[Symptom], now_ns: int, over: Container[str] = ()
) -> dict[Key, Hold]:
    """Return the holds after the host showed *symptoms*, and no others, at *now_ns*.

    *over*: rules of which it was looked at long enough, and is not so: what they held ends at once.
    """
    result: dict[Key, Hold] = {}
    for symptom in symptoms:
        held = result.get(symptom.key) or holds.get(symptom.key)
        result[symptom.key] = _seen(held, symptom, now_ns)
    for key, held in holds.items():
        if key in result or key[0] in over:
            continue
        if held.active and not _over(held.worst, held.seen_ns, now_ns):
            result[key] = _eased(held, now_ns)
    return result


def paused(holds: Holds, elapsed_ns: int) -> dict[Key, Hold]:
    """Return the holds of a host that was not heard for *elapsed_ns*: its clock stood still."""
    return {
        key: replace(
            held,
            since_ns=held.since_ns + elapsed_ns,
            seen_ns=held.seen_ns + elapsed_ns,
            worst_ns=held.worst_ns + elapsed_ns,
        )
        for key, held in holds.items()
    }


def _seen(held: Hold | None, symptom: Symptom, now_ns: int) -> Hold:
    if held is None:
        active = symptom.rule.enter_seconds <= 0
        return Hold(symptom, symptom, now_ns, now_ns, now_ns, active)
    active = held.active or now_ns - held.since_ns >= symptom.rule.enter_seconds * 1e9
    if held.active and symptom.severity < held.worst.severity:
        milder = replace(held, latest=symptom, seen_ns=now_ns)
        return _eased(milder, now_ns)
    return Hold(symptom, symptom, held.since_ns, now_ns, now_ns, active)


def _eased(held: Hold, now_ns: int) -> Hold:
    """Return *held* at its latest level once the worst was away long enough."""
    if not _over(held.worst, held.worst_ns, now_ns):
        return held
    return replace(held, worst=held.latest, worst_ns=held.seen_ns)


def _over(symptom: Symptom, last_ns: int, now_ns: int) -> bool:
    return now_ns - last_ns >= symptom.rule.leave_seconds * 1e9
