"""What people declared, applied to what rules see: noise weighs nothing, hosts in maintenance are MAINTENANCE.

Nothing is hidden: noise stays in the evidence, with who said so, and a host in maintenance keeps its numbers.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from typing import Any

from ..declared.fields import told
from ..declared.model import FAMILIES, NEVER, Declared, Override, Window, coming
from ..fleet.fleet import Fleet
from ..model import HostScore, Reason, State
from .results import Hosts
from .rule import Hold, Key, Rule, Symptom

#: States that say nothing of a host worth telling beside its maintenance.
_QUIET = (State.HEALTHY, State.MAINTENANCE)
#: Where `_maintained` says what a host would be without its window: a stored score has it nowhere else.
_BENEATH = re.compile(r", until [-0-9: ]+ UTC; else ([A-Z]+): (.*)", re.DOTALL)
#: What ends a state that lay beneath: its own words were not stored.
_LOOKED_AT = "it is looked at again, and is gone"


def without_noise(
    fleet: Fleet, holds: Mapping[int, Mapping[Key, Hold]], now_ns: int
) -> Mapping[int, Mapping[Key, Hold]]:
    """Return *holds* by host, what somebody declared to be noise as evidence that weighs nothing.

    Also what only holds for a while longer: for an hour a slow host would be one that nobody may quiet.
    """
    if not fleet.declared.live_overrides(now_ns):
        return holds
    return {
        host: {
            key: replace(
                hold, worst=_weighed(fleet.declared, fleet.names[host], hold.worst, now_ns)
            )
            for key, hold in held.items()
        }
        for host, held in holds.items()
    }


def _weighed(declared: Declared, host: str, symptom: Symptom, now_ns: int) -> Symptom:
    about: dict[str, Any] = {
        "signal": symptom.signal, "code": symptom.value, "device": symptom.device,
    }  # fmt: skip
    override = declared.override(host, symptom.rule.name, now_ns, **about)
    if override is not None:
        return quiet(symptom, override)
    if later := declared.override(host, symptom.rule.name, now_ns, **about, coming=True):
        words = f"{symptom.words}; noise by an override {coming(later.rollout)}: {later.why}"
        return replace(symptom, words=words)
    return symptom


def quiet(symptom: Symptom, override: Override) -> Symptom:
    """Return *symptom* as something that is known and does not matter."""
    words = f"taken as noise until {told(override.until_ns)}: {override.why} ({override.who})"
    ends = f"the override ends at {told(override.until_ns)} ({override.where})"
    return symptom.without_weight(f"{symptom.words}; {words}", ends)


def in_maintenance(fleet: Fleet, hosts: Hosts, now_ns: int) -> Hosts:
    """Return *hosts*, those in a window as MAINTENANCE."""
    windows = fleet.declared.maintained(fleet.names, now_ns)
    return hosts.but({host: _maintained(hosts[host], one) for host, one in windows.items()})


def _maintained(host: HostScore, window: Window) -> HostScore:
    else_words = "" if host.state in _QUIET else f"; else {host.state.name}: {host.reason_words}"
    return replace(
        host,
        state=State.MAINTENANCE,
        reason=Reason.POLICY,
        reason_words=f"{window.why} ({window.who}), until {told(window.end_ns)}{else_words}",
        clears_when=f"the window ends at {told(window.end_ns)} ({window.where})",
    )


def without_maintenance(host: HostScore) -> HostScore:
    """Return *host*, a score that was stored, as it was but for its window: whether that still is, says who declares it."""
    if host.state is not State.MAINTENANCE:
        return host
    beneath = _BENEATH.search(host.reason_words)
    if beneath is None:
        return replace(
            host, state=State.HEALTHY, reason=Reason.NONE, reason_words="", clears_when=""
        )
    words = beneath[2]
    return replace(
        host,
        state=State.__members__.get(beneath[1], State.UNKNOWN),
        reason=next((one.reason for one in host.evidence if one.words == words), Reason.NONE),
        reason_words=words,
        clears_when=_LOOKED_AT,
    )


@lru_cache(maxsize=1)
def rule_names() -> frozenset[str]:
    """Return the names that an override may have."""
    from . import rules

    found: set[str] = set(FAMILIES)
    for module in pkgutil.iter_modules(rules.__path__):
        loaded = importlib.import_module(f".{module.name}", rules.__name__)
        found |= {rule.name for value in vars(loaded).values() for rule in _rules_in(value, 0)}
    return frozenset(found - NEVER.keys())


def _rules_in(value: object, depth: int) -> Iterator[Rule]:
    """Yield the rules that *value*, something of a module's, is or holds."""
    if isinstance(value, Rule):
        yield value
    elif depth < 4 and not isinstance(value, type):
        for part in _parts(value):
            yield from _rules_in(part, depth + 1)


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, tuple | list):
        return value
    if isinstance(value, dict):
        return value.values()
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, one.name) for one in fields(value)]
    return ()
