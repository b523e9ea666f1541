"""Settings of a daemon: a frozen dataclass, filled from a TOML file and from `--set key=value`.

A wrong key, type or range names the key, the value, and what would be right.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

#: A configuration file longer than this is no configuration file.
FILE_BYTES_MAX = 1 << 20

T = TypeVar("T")


class SettingsError(ValueError):
    """A setting is wrong; the words name it and say what would be right."""


def setting(default: Any, *, low: float | None = None, high: float | None = None, says: str) -> Any:
    """Declare a field: its default, its range, and what it does (shown by `--help-settings`)."""
    return dataclasses.field(default=default, metadata={"low": low, "high": high, "says": says})


def load(kind: type[T], file: Path | None = None, assignments: Iterable[str] = ()) -> T:
    """Return settings of dataclass *kind*: defaults, then *file*, then `key=value` *assignments*."""
    values = _read(file) if file else {}
    origin = dict.fromkeys(values, str(file))
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise SettingsError(f"--set {assignment}: expected key=value")
        values[key], origin[key] = _literal(text), "--set"
    fields = {f.name: f for f in dataclasses.fields(typing.cast(Any, kind))}
    hints = typing.get_type_hints(kind)
    for key, value in values.items():
        if key not in fields:
            raise SettingsError(f"{origin[key]}: unknown setting {key!r}{_near(key, fields)}")
        where = f"{origin[key]}: {key} = {value!r}"
        values[key] = _checked(where, value, hints[key], fields[key].metadata)
    return kind(**values)


def describe(kind: type[Any]) -> str:
    """Return a line per setting: key, default, range, meaning."""
    lines = []
    for field in dataclasses.fields(kind):
        limits = _range(field.metadata)
        lines.append(f"{field.name} = {field.default!r}{limits and f'  ({limits})'}")
        lines.append(f"    {field.metadata['says']}")
    return "\n".join(lines)


def _read(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise SettingsError(f"{file}: longer than {FILE_BYTES_MAX} bytes")
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: not TOML: {error}") from error


def _literal(text: str) -> Any:
    """Take *text* as TOML if it is (numbers, booleans, lists), else as a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _near(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"


def _checked(where: str, value: Any, kind: type, metadata: Any) -> Any:
    if kind is float and type(value) is int:
        value = float(value)
    if kind is Path and isinstance(value, str):
        value = Path(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise SettingsError(f"{where}: expected {_words(kind)}")
    low, high = metadata["low"], metadata["high"]
    # `not (low <= value)` also refuses NaN.
    if (low is not None and not low <= value) or (high is not None and not value <= high):
        raise SettingsError(f"{where}: expected {_range(metadata)}")
    return value


def _range(metadata: Any) -> str:
    low, high = metadata["low"], metadata["high"]
    if low is None:
        return "" if high is None else f"at most {high}"
    return f"at least {low}" if high is None else f"{low} to {high}"


def _words(kind: type) -> str:
    names: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false"}
    return names.get(kind, "a text" if kind in (str, Path) else kind.__name__)
