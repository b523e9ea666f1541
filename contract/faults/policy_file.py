"""Parses rows of findings: those of the built-in table, and an operator's file that overrides it.

Parsing is strict: a table with any invalid line is refused completely, and the error names the line.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from ..signal import PERIOD_SECONDS, Kind
from ..signals import BY_NAME
from ..xid.policy import SCOPES
from .policy import (
    CODE_NAME,
    COMPARE,
    LOCAL_EVENTS,
    ClearedBy,
    Condition,
    FindingSeverity,
    Policy,
    PolicyError,
    PolicyRow,
)

#: A longer policy is not a Gangline policy.
POLICY_BYTES_MAX = 256 << 10
ROWS_MAX = 256
CONDITIONS_MAX = 8
CODES_MAX = 64
TEXT_CHARACTERS_MAX = 200
VERSION_CHARACTERS_MAX = 64
#: Limit of the time for which a row may wait or stay active.
SECONDS_MAX = 30 * 86_400.0
#: Longest sampling period of an enforced reading: only readings of the last 30 s are enforced, so a slower signal would
#: be enforced on and off by turns.
ENFORCEABLE_SECONDS_MAX = 10
_NAME = re.compile(r"[a-z][a-z0-9_]{1,39}")
_RULE = re.compile(r"[a-z][a-z0-9_.]{1,59}")

#: Keys by the type of their value.
_TEXTS = (
    "name", "source", "device", "hidden_by", "judged", "event", "policy", "ends_with", "severity", "message",
    "action", "scope", "clears",
)  # fmt: skip
_SECONDS = ("clear_seconds", "for_seconds", "leave_seconds", "after_boot_seconds")
_FLAGS = ("once_otherwise", "enforceable")
_LISTS = {"when": str, "unless": str, "codes": int, "contains": str}
#: Keys of commits before the first release -> their names.
_FORMER_KEYS = {"words": "message", "says": "contains"}
#: Keys that the table of codes sets instead of the row.
_SET_BY_CODE_TABLE = (
    "severity", "message", "action", "scope", "clears", "clear_seconds", "codes", "contains",
    "ends_with",
)  # fmt: skip


def overlay(policy: Policy, base: Policy) -> Policy:
    """Return *base* with the rows of *policy* added, which replace rows of the same name.

    Raises PolicyError if `off` or `hidden_by` names no row.
    """
    rows = {row.name: row for row in base.rows} | {row.name: row for row in policy.rows}
    if unknown := policy.off - rows.keys():
        raise PolicyError(f"off: no row is called {_printable(min(unknown))!r}")
    for row in policy.rows:
        if row.hidden_by and row.hidden_by not in rows:
            raise PolicyError(
                f"row {row.name!r}: hidden_by: no row is called {_printable(row.hidden_by)!r}"
            )
    remaining = tuple(row for name, row in rows.items() if name not in policy.off)
    return Policy(f"{policy.version} over {base.version}", policy.rollout_share, remaining)


def parse(text: str) -> Policy:
    """Return the policy in *text*. Raises PolicyError for any invalid text."""
    if len(text.encode(errors="replace")) > POLICY_BYTES_MAX:
        raise PolicyError(f"longer than {POLICY_BYTES_MAX} bytes")
    try:
        fields = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"not TOML: {_printable(str(error))}") from error
    try:
        return _policy(fields, text)
    except (TypeError, KeyError, OverflowError) as error:
        raise PolicyError(f"not a policy: {_printable(str(error))}") from error


def _policy(fields: dict[str, Any], text: str) -> Policy:
    if unknown := fields.keys() - {"version", "rollout_share", "off", "row"}:
        raise PolicyError(f"{_line_of(text, min(unknown))}unknown key {_printable(min(unknown))!r}")
    version = fields.get("version")
    if not isinstance(version, str) or not _is_one_line(version, VERSION_CHARACTERS_MAX):
        raise PolicyError('version: expected a short text, as "2026-11-20"')
    share = fields.get("rollout_share", -1.0)
    if not _is_number(share) or not 0 <= share <= 1:
        where = _line_of(text, "rollout_share")
        raise PolicyError(f"{where}rollout_share: expected a share of the hosts, 0 to 1, as 0.01")
    entries, off = fields.get("row", []), fields.get("off", [])
    if not _all(entries, dict) or len(entries) > ROWS_MAX:
        raise PolicyError(f"row: expected at most {ROWS_MAX} tables [[row]]")
    if not _all(off, str) or len(off) > ROWS_MAX:
        raise PolicyError('off: expected a list of names, as ["nvlink_down"]')
    rows = tuple(_rows(entries, text))
    return Policy(version, float(share), rows, frozenset(off))


def _rows(entries: list[dict[str, Any]], text: str) -> Iterator[PolicyRow]:
    names: set[str] = set()
    for number, entry in enumerate(entries):
        try:
            row = parse_row(entry)
            if row.name in names:
                raise PolicyError("is in the table twice")
        except (PolicyError, TypeError, KeyError, OverflowError) as error:
            where = f"{_line_of(text, '[[row]]', number)}row {_printable(str(entry.get('name')))!r}"
            raise PolicyError(f"{where}: {_printable(str(error))}") from error
        names.add(row.name)
        yield row


def _line_of(text: str, start: str, number: int = 0) -> str:
    """Return `line 14: ` for the *number*-th line that begins with *start*, counted from 0; "" if there is none."""
    at = [i for i, line in enumerate(text.split("\n"), 1) if line.lstrip().startswith(start)]
    return f"line {at[number]}: " if number < len(at) else ""


def parse_row(entry: dict[str, Any]) -> PolicyRow:
    """Return the row of these TOML keys. Raises PolicyError and TypeError."""
    for key, value in entry.items():
        _check_type(key, value)
    name = entry.get("name", "")
    if not _NAME.fullmatch(name) or CODE_NAME.fullmatch(name):
        raise PolicyError(
            "name: expected 2 to 40 small letters, digits and _, and no XID's, as gpu_lost"
        )
    if "hidden_by" in entry and not _NAME.fullmatch(entry["hidden_by"]):
        raise PolicyError("hidden_by: expected a row's name, as driver_hung")
    if not entry.get("source"):
        raise PolicyError('source: state the source of the limit, or "assumed"')
    values = dict(entry)
    for key in ("when", "unless"):
        values[key] = tuple(parse_condition(one) for one in entry.get(key, ()))
    values |= {key: tuple(entry.get(key, ())) for key in ("codes", "contains")}
    for key, kind in (("severity", FindingSeverity), ("clears", ClearedBy)):
        if key in entry:
            values[key] = _enum_value(key, entry[key], kind)
    row = PolicyRow(**values)
    if fault := _contradiction(row, entry):
        raise PolicyError(fault)
    return row


def _check_type(key: str, value: Any) -> None:
    if key in _TEXTS:
        good, wanted = isinstance(value, str) and _is_one_line(value), "one line of text"
    elif key in _SECONDS:
        good = _is_number(value) and 0 <= value <= SECONDS_MAX
        wanted = f"0 to {SECONDS_MAX:.0f} seconds"
    elif key in _FLAGS:
        good, wanted = isinstance(value, bool), "true or false"
    elif key in _LISTS:
        limit = CODES_MAX if key == "codes" else CONDITIONS_MAX
        good = _all(value, _LISTS[key]) and len(value) <= limit
        wanted = f"a list of at most {limit}"
    else:
        known = (*_TEXTS, *_SECONDS, *_FLAGS, *_LISTS)
        near = difflib.get_close_matches(key, known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        if key in _FORMER_KEYS:
            hint = f"; it is {_FORMER_KEYS[key]!r} since 0.1.0"
        raise PolicyError(f"unknown key {_printable(key)!r}{hint}")
    if not good:
        raise PolicyError(f"{key}: expected {wanted}")


def _enum_value(key: str, value: str, kind: type[StrEnum]) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        raise PolicyError(f"{key}: expected one of {', '.join(kind)}") from None


def _contradiction(row: PolicyRow, entry: Mapping[str, Any]) -> str:
    if [bool(row.when), bool(row.event), bool(row.judged)].count(True) != 1:
        return "expected either when, of readings, or event, or judged"
    if row.policy:
        return _contradiction_of_coded(row, entry)
    if not (row.message and row.action and "severity" in entry and "clears" in entry):
        return "expected severity, message, action and clears"
    if row.scope not in SCOPES:
        return f"scope: expected one of {', '.join(SCOPES)}"
    if (row.clears is ClearedBy.TIME) != (row.clear_seconds > 0):
        return "clear_seconds goes with clears = 'time', and only with it"
    if (row.clears is ClearedBy.READING) == bool(row.event):
        return "clears = 'reading' goes with when and judged, and only with them"
    if row.enforceable and row.severity is not FindingSeverity.FATAL:
        return "enforceable goes with severity = 'fatal', and only with it"
    if row.judged:
        return _contradiction_of_judged(row)
    return _contradiction_of_readings(row) if row.when else _contradiction_of_event(row)


def _contradiction_of_judged(row: PolicyRow) -> str:
    if not _RULE.fullmatch(row.judged):
        return "judged: expected the name of a rule of judgement, as gang.slow_host"
    if row.enforceable:
        return "enforceable: a host cannot hold to what only others can tell of it"
    if row.codes or row.contains or row.ends_with:
        return "codes, contains and ends_with go with event"
    return _contradiction_of_extent(row)


def _contradiction_of_extent(row: PolicyRow) -> str:
    if row.device or row.unless or row.for_seconds or row.once_otherwise or row.after_boot_seconds:
        return "device, unless, for_seconds, once_otherwise and after_boot_seconds go with when"
    return ""


def _contradiction_of_coded(row: PolicyRow, entry: Mapping[str, Any]) -> str:
    if row.policy not in ("xid", "sxid") or row.name != row.policy:
        return "policy: expected xid or sxid, and the row of that name"
    if duplicated := [key for key in _SET_BY_CODE_TABLE if key in entry]:
        return f"{duplicated[0]}: the table of codes says that"
    return _contradiction_of_event(row)


def _contradiction_of_event(row: PolicyRow) -> str:
    signal = BY_NAME.get(row.event)
    is_known = signal is not None and signal.kind is Kind.EVENT
    if not is_known and row.event not in LOCAL_EVENTS:
        return f"event: no event is called {_printable(row.event)!r}"
    if fault := _contradiction_of_extent(row):
        return fault
    if not all(_is_one_line(one) for one in row.contains):
        return "contains: expected text, as CONSTRAINT_MEMCG"
    if row.ends_with and row.ends_with.count("=") != 1:
        return "ends_with: expected attribute=value, as state=back"
    return ""


def _contradiction_of_readings(row: PolicyRow) -> str:
    if row.codes or row.contains or row.ends_with:
        return "codes, contains and ends_with go with event"
    for condition in row.when:
        if not condition.signal.startswith(f"{row.device_kind}."):
            return f"when: {condition.signal} is not of the same kind of device as the first"
    first = row.when[0].signal
    seconds = PERIOD_SECONDS[BY_NAME[first].pace]
    if row.enforceable and seconds > ENFORCEABLE_SECONDS_MAX:
        return f"enforceable: {first} is read every {seconds} s only, at most {ENFORCEABLE_SECONDS_MAX}"
    return ""


def parse_condition(text: str) -> Condition:
    """Parse a condition, as `gpu.lost_state == 1`. Raises PolicyError."""
    tokens = text.split()
    if len(tokens) != 3 or tokens[1] not in (*COMPARE, "in", "has"):
        raise PolicyError(f'{_printable(text)!r}: expected "signal == 1"; or != < <= > >= in has')
    signal, compare, right = tokens
    _check_signal(signal)
    if compare in COMPARE and right in BY_NAME:
        _check_signal(right)
        if right.partition(".")[0] != signal.partition(".")[0]:
            raise PolicyError(f"{right}: is not of the same kind of device as {signal}")
        return Condition(signal, compare, other=right)
    parts = right.split(",")
    if len(parts) > CODES_MAX or (compare != "in" and len(parts) > 1):
        raise PolicyError(
            f"{_printable(text)!r}: expected one number, or with `in` at most {CODES_MAX}"
        )
    values = tuple(_number(part) for part in parts)
    if compare == "has" and not all(0 < bits < 2**53 and bits == int(bits) for bits in values):
        raise PolicyError(f"{_printable(text)!r}: expected bits, as 0x40")
    if compare == "has" and BY_NAME[signal].kind is Kind.GAUGE:
        raise PolicyError(f"{signal}: a gauge has no bits")
    return Condition(signal, compare, values)


def _check_signal(name: str) -> None:
    signal = BY_NAME.get(name)
    if signal is not None and signal.kind is not Kind.EVENT:
        return
    near = difflib.get_close_matches(name[:80], list(BY_NAME), 1)
    hint = f"; did you mean {near[0]!r}?" if near else "; docs/signals.md lists them"
    raise PolicyError(f"no signal is called {_printable(name)!r}{hint}")


def _number(text: str) -> float:
    try:
        value = float(int(text, 0)) if text[:2] in ("0x", "0X") else float(text)
    except (ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value) or not text.isascii():
        near = difflib.get_close_matches(text[:80], list(BY_NAME), 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise PolicyError(f"{_printable(text)!r}: expected a number or a signal{hint}")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_one_line(value: str, characters_max: int = TEXT_CHARACTERS_MAX) -> bool:
    return 0 < len(value) <= characters_max and value.isprintable()


def _all(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(type(one) is kind for one in value)


def _printable(text: str) -> str:
    """Return *text* as one printable line of at most 300 characters."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text[:300])
    return shown if len(text) <= 300 else f"{shown[:299]}…"
