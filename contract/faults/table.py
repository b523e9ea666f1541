"""Reads the rows of faults: the findings of a host, and the threshold, counter and event rules of the fleet."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .policy import Condition, Policy, PolicyError, PolicyRow
from .policy_file import parse_condition, parse_row

VERSION = "1"
FOLDER = Path(__file__).parent
#: Keys of a row that only the fleet uses.
_FLEET_KEYS = ("counter", "minimum", "per_second", "peers_ratio", "fleet")
#: Keys of a counter's limit -> their type and default.
_LIMITS: Mapping[str, Any] = {"minimum": 1.0, "per_second": False, "peers_ratio": 0.0}


@dataclass(frozen=True, slots=True)
class FleetRule:
    """A rule of the fleet: what it watches, and its other keys of the row, as they are written.

    Exactly one is set: `event` with its `codes` (() for any code), `condition`, or `counter`. Without
    all of them a function of the aggregator detects the fault.
    """

    name: str
    message: str
    keys: Mapping[str, Any]
    event: str = ""
    codes: tuple[int, ...] = ()
    clears: str = ""
    clear_seconds: float = 0.0
    condition: Condition | None = None
    counter: str = ""
    minimum: float = 1.0
    per_second: bool = False
    peers_ratio: float = 0.0


@cache
def builtin() -> Policy:
    """Return the findings that a host makes by itself, in this version of Gangline."""
    return Policy(VERSION, 1.0, tuple(_findings()))


def fleet_rules() -> Iterator[FleetRule]:
    """Yield the fleet's rules. Raises PolicyError for an invalid row."""
    for entry in _entries():
        parts = entry.get("fleet", ())
        for part in [parts] if isinstance(parts, dict) else parts:
            try:
                yield _fleet_rule(entry, part)
            except PolicyError as error:
                raise PolicyError(f"fault {entry['name']!r}: {error}") from error
            except (KeyError, TypeError) as error:
                raise PolicyError(f"fault {entry.get('name')!r}: fleet: {error!r}") from error


def _entries() -> Iterator[dict[str, Any]]:
    for path in sorted(FOLDER.glob("*.toml")):
        yield from tomllib.loads(path.read_text(encoding="utf-8"))["fault"]


def _findings() -> Iterator[PolicyRow]:
    """Yield the rows with a severity on the host, or with their own table of codes."""
    for entry in _entries():
        if "severity" not in entry and "policy" not in entry:
            continue
        fields = {key: value for key, value in entry.items() if key not in _FLEET_KEYS}
        name = fields.pop("name")
        fields["name"] = fields.pop("finding", name.replace(".", "_"))
        try:
            yield parse_row(fields)
        except (PolicyError, TypeError) as error:
            raise PolicyError(f"fault {name!r}: {error}") from error


def _fleet_rule(entry: Mapping[str, Any], part: Mapping[str, Any]) -> FleetRule:
    keys = dict(part)
    name, message = keys.pop("name", entry["name"]), keys.pop("message", entry["message"])
    codes = (keys.pop("code"),) if "code" in keys else tuple(entry.get("codes", ()))
    if keys.pop("function", False):
        return FleetRule(name, message, keys)
    if "event" in entry:
        return FleetRule(
            name, message, keys, event=entry["event"], codes=codes,
            clears=entry["clears"], clear_seconds=entry.get("clear_seconds", 0.0),
        )  # fmt: skip
    if "counter" in entry:
        limits = {
            key: type(default)(entry[key]) for key, default in _LIMITS.items() if key in entry
        }
        return FleetRule(name, message, keys, counter=entry["counter"], **limits)
    if not isinstance(entry["when"], list):
        raise PolicyError('when: expected a list, such as ["signal == 1"]')
    conditions = [parse_condition(text) for text in entry["when"]]
    if len(conditions) != 1 or conditions[0].other or conditions[0].compare == "has":
        raise PolicyError(
            "when: the fleet's rule needs a single comparison with numbers; "
            "declare other rules with function = true"
        )
    return FleetRule(name, message, keys, condition=conditions[0])
