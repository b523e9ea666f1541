"""What an advisory says of the cases that it is made of, and when a case is news."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .advisory import Case, gravity

#: Devices and cases that an advisory names; of more it says how many.
NAMED_MAX = 16
#: A price that moved by less is the same.
PRICE_STEP_RATIO = 1.25


def material(before: Case, now: Case) -> bool:
    """Say whether *now* is news: not for a later reading of the same, nor for each line of a storm."""
    same = ("action", "then", "scope", "basis", "reason", "devices", "job", "place")
    return (
        any(getattr(before, name) != getattr(now, name) for name in same)
        or before.checkpoint_seconds != now.checkpoint_seconds
        or _decade(before.count) != _decade(now.count)
        or _moved(before.price.waiting_gpu_hours, now.price.waiting_gpu_hours)
        or _moved(before.price.acting_gpu_hours, now.price.acting_gpu_hours)
    )


def _decade(count: int) -> int:
    return int(math.log10(max(count, 1)))


def _moved(before: float, now: float) -> bool:
    low, high = sorted((max(before, 0.1), max(now, 0.1)))  # below 0.1 GPU-hours all is one
    return high > PRICE_STEP_RATIO * low


def lead(cases: Sequence[Case]) -> Case:
    """Return the gravest case, the oldest of as grave ones."""
    return min(cases, key=lambda one: (-gravity(one.action), one.since_ns, one.key))


def composed(cases: Sequence[Case]) -> dict[str, Any]:
    """Return what an advisory says of cases of one host: the gravest leads, the others stand beside."""
    first = lead(cases)
    others = len(cases) - 1
    devices = sorted({device for case in cases for device in case.devices})[:NAMED_MAX]
    return {
        "action": first.action, "then": first.then, "scope": first.scope, "basis": first.basis,
        "reason": first.reason,
        "words": f"{first.words}; {others} more beside it" if others else first.words,
        "devices": tuple(devices), "cases": tuple(sorted(case.key for case in cases)),
        "place": first.place, "job": first.job, "confidence": first.confidence,
        "count": sum(case.count for case in cases), "price": first.price,
        "checkpoint_seconds": first.checkpoint_seconds, "hazard_per_hour": first.hazard_per_hour,
    }  # fmt: skip
