"""Settings of a daemon: a frozen dataclass, filled from a TOML file and from `--set key=value`.

An error for a wrong key, type or range names the key, the value, and what would be right.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

#: Limit of a configuration file.
FILE_BYTES_MAX = 1 << 20

T = TypeVar("T")


class SettingsError(ValueError):
    """A setting is wrong; the message has its name and the expected value."""


def setting(
    default: Any,
    description: str,
    *,
    low: float | None = None,
    high: float | None = None,
    check: Callable[[Any], None] | None = None,
) -> Any:
    """Declare a field: its default, what it does (shown by `--help-settings`), and its range.

    *check* gets a value of the right type, and raises ValueError with the expected form.
    """
    metadata = {"low": low, "high": high, "check": check, "says": description}
    return dataclasses.field(default=default, metadata=metadata)


def load(kind: type[T], file: Path | None = None, assignments: Iterable[str] = ()) -> T:
    """Return settings of dataclass *kind*: defaults, then *file*, then `key=value` *assignments*.

    Fields are of type int, float, bool, str, Path or tuple[str, ...]. The last assignment of a key counts. Raises
    SettingsError.
    """
    fields = {f.name: f for f in dataclasses.fields(typing.cast(Any, kind))}
    hints = typing.get_type_hints(kind)
    values = _read_file(file) if file else {}
    origin = dict.fromkeys(values, str(file))
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key = key.strip()
        if not equals:
            raise SettingsError(f"--set {assignment}: expected key=value")
        values[key], origin[key] = _literal(text.strip(), hints.get(key)), "--set"
    for key, value in values.items():
        if key not in fields:
            raise SettingsError(f"{origin[key]}: unknown setting {key!r}{_suggestion(key, fields)}")
        where = f"{origin[key]}: {key} = {value!r}"
        values[key] = _checked(where, value, hints[key], fields[key].metadata)
    return kind(**values)


def describe(kind: type[Any]) -> str:
    """Return a line per setting: key, default, range, meaning."""
    lines = []
    for field in dataclasses.fields(kind):
        limits = _range(field.metadata)
        lines.append(f"{field.name} = {_toml(field.default)}{limits and f'  ({limits})'}")
        lines.append(f"    {field.metadata['says']}")
    return "\n".join(lines)


def _read_file(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise SettingsError(f"{file}: longer than {FILE_BYTES_MAX} bytes")
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, nested too deep
        raise SettingsError(f"{file}: not TOML: {error}") from error


def _literal(text: str, kind: Any) -> Any:
    """Parse *text* as TOML; if that fails, take it literally.

    A text needs no quotes, even if it looks like a number (a host named 1234). A list may be separated by commas:
    `gpu,rdma`.
    """
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text
    if kind in (str, Path) and not isinstance(value, str):
        return text
    if kind == tuple[str, ...] and not isinstance(value, list):
        return [part.strip() for part in str(value).split(",") if part.strip()]
    return value


def _toml(value: Any) -> str:
    """Return a default in the syntax of the file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_toml(one) for one in value)}]"
    return f'"{value}"' if isinstance(value, (str, Path)) else repr(value)


def _suggestion(key: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(key, list(known), 1)
    return f"; did you mean {matches[0]!r}?" if matches else f"; known: {', '.join(known)}"


def _checked(where: str, value: Any, kind: Any, metadata: Any) -> Any:
    value = _converted(value, kind)
    if not _is_of_type(value, kind):
        raise SettingsError(f"{where}: expected {_type_name(kind)}")
    low, high = metadata["low"], metadata["high"]
    # `not (low <= value)` also refuses NaN.
    if (low is not None and not low <= value) or (high is not None and not value <= high):
        raise SettingsError(f"{where}: expected {_range(metadata)}")
    if metadata["check"]:
        try:
            metadata["check"](value)
        except ValueError as error:
            raise SettingsError(f"{where}: expected {error}") from error
    return value


def _converted(value: Any, kind: Any) -> Any:
    """Return *value* as *kind*, for types that TOML lacks."""
    if kind is float and type(value) is int and abs(value) < 2**63:
        return float(value)
    if kind is Path and isinstance(value, str) and value:
        return Path(value)
    return tuple(value) if kind == tuple[str, ...] and isinstance(value, list) else value


def _is_of_type(value: Any, kind: Any) -> bool:
    if kind == tuple[str, ...]:
        return isinstance(value, tuple) and all(isinstance(one, str) for one in value)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _range(metadata: Any) -> str:
    low, high = metadata["low"], metadata["high"]
    if low is None:
        return "" if high is None else f"at most {high}"
    return f"at least {low}" if high is None else f"{low} to {high}"


def _type_name(kind: Any) -> str:
    names: dict[Any, str] = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        Path: "a path",
        tuple[str, ...]: 'a list of texts, as ["a", "b"]',
    }
    return names.get(kind, "a text")
