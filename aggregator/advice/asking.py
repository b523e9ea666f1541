"""What is not asked for, whoever has room: what was answered lately, what costs more than waiting, and of whom others took out."""

from __future__ import annotations

from datetime import UTC, datetime

from .advisory import Action, Basis, Case, gravity
from .desk import SILENT, Desk
from .limits import SECOND_NS

WAITING_COSTS_LESS = "waiting costs less than acting"


def unasked(desk: Desk, subject: str, first: Case) -> str:
    """Return why nothing is asked of *subject* for *first*, the gravest of its cases; "" if it may be."""
    return _muted(desk, subject, first) or _priced_out(first)


def out_already(desk: Desk, host: str) -> str:
    """Return who has *host* out, so that nothing is advised for it; "" where nobody has. Of a silent one something may be."""
    taken = desk.memory.taken.get(host)
    if taken is not None and taken.by != SILENT:
        return f"the host is out already: {taken.by}"
    if host in desk.memory.absent and host not in desk.memory.holds:
        return f"the host is out already: {', '.join(desk.memory.absent[host])}"
    return ""


def _muted(desk: Desk, subject: str, first: Case) -> str:
    until_ns = desk.muted_until_ns(subject, first.action)
    if not until_ns:
        return ""
    until = f"{datetime.fromtimestamp(until_ns // SECOND_NS, UTC):%Y-%m-%d %H:%M} UTC"
    return (
        f"the same was rejected, withdrawn, done or expired: not again before {until} "
        "(`gangline advise list --all` has it)"
    )


def _priced_out(first: Case) -> str:
    price = first.price
    wait = (
        first.basis is Basis.STATISTICAL and 0 < price.waiting_gpu_hours <= price.acting_gpu_hours
    )
    return WAITING_COSTS_LESS if wait else ""


def news(before: Action, now: Action, words: str) -> str:
    """Return why an advisory that asked for *before*, and asks for *now*, is told again."""
    if gravity(now) > gravity(before):
        return f"more is wrong with it: {words}"
    if gravity(now) < gravity(before):
        return f"less is asked of it than before: {words}"
    return f"it is not as it was: {words}"
