"""Which rules an override may name, and which never: one place says it, and a file that names another is refused."""

from __future__ import annotations

from collections.abc import Collection

from .fields import near
from .problems import shown
from .wildcards import fits

#: Rules that are made one by one, for each code, counter or event: this is the name of all of them.
FAMILIES = ("gpu.xid", "nvswitch.sxid", "counter.saturated", "folded")
#: What is never noise -> what to declare instead.
NEVER = {
    "host.silent": "that a host is silent is never noise: missing is not healthy; where it is meant to be off, declare [[maintenance]]",
    "host.returned": "that a host is on probation is never noise: it ends by itself, and says when",
}


def is_of(rule: str, name: str) -> bool:
    """Say whether the rule *rule* is meant by *name*: its own name, a pattern, or that of its family."""
    return fits(rule, name) or (name in FAMILIES and rule.startswith(f"{name}."))


def may_name(name: str, rules: Collection[str]) -> bool:
    """Say whether an override may name *name*. *rules*: those that it may; none: any, of what was good before."""
    return not rules or (name not in NEVER and any(fits(rule, name) for rule in rules))


def refusal(name: str, rules: Collection[str]) -> str:
    """Return why an override may not name *name*."""
    return NEVER.get(name) or f"{shown(name)}: no rule has this name; {near(name, sorted(rules))}"
