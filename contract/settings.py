"""Settings of a daemon: a frozen dataclass, filled from a TOML file and from `--set key=value`.

An error for a wrong key, type or range names the key, the value, and what would be right.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

log = logging.getLogger(__name__)

#: Columns of the text of `--help-settings`.
HELP_COLUMNS = 80
HELP_INDENT: Any = {
    "initial_indent": "    ",
    "subsequent_indent": "    ",
    "break_on_hyphens": False,
}
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


def constant(default: Any, reason: str, since: str = "0.1.0") -> Any:
    """Declare a field that was a setting until version *since*: only a constructor, as in tests, takes another value.

    `load` ignores the key with a warning; *reason*: why Gangline chooses the value.
    """
    metadata = {"constant": f"{{}} is not a setting since {since}: {reason}; remove it"}
    return dataclasses.field(default=default, metadata=metadata)


def settings_of(kind: type[Any]) -> list[dataclasses.Field[Any]]:
    """Return the fields of dataclass *kind* that are settings."""
    return [f for f in dataclasses.fields(kind) if "constant" not in f.metadata]


def load(kind: type[T], file: Path | None = None, assignments: Iterable[str] = ()) -> T:
    """Return settings of dataclass *kind*: defaults, then *file*, then `key=value` *assignments*.

    Fields are of type int, float, bool, str, Path or tuple[str, ...]. The last assignment of a key counts. A `constant` is
    ignored with a warning. Raises SettingsError.
    """
    fields = {f.name: f for f in settings_of(typing.cast(Any, kind))}
    constants = {f.name: f for f in dataclasses.fields(typing.cast(Any, kind))}
    hints = typing.get_type_hints(kind)
    values = _read_file(file) if file else {}
    origin = dict.fromkeys(values, str(file))
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key = key.strip()
        if not equals:
            raise SettingsError(f"--set {assignment}: expected key=value")
        values[key], origin[key] = _literal(text.strip(), hints.get(key)), "--set"
    for key in [key for key in values if key in constants and key not in fields]:
        log.warning("%s: %s", origin[key], constants[key].metadata["constant"].format(key))
        del values[key]
    for key, value in values.items():
        if key not in fields:
            raise SettingsError(f"{origin[key]}: unknown setting {key!r}{_suggestion(key, fields)}")
        where = f"{origin[key]}: {key} = {value!r}"
        values[key] = _checked(where, value, hints[key], fields[key].metadata)
    return kind(**values)


def describe(kind: type[Any], tasks: Mapping[str, Sequence[str]] | None = None) -> str:
    """Return two lines per setting: key, default and range, then its meaning. *tasks*: heading -> keys, in this order."""
    import textwrap  # only --help-settings needs it

    fields = {field.name: field for field in settings_of(kind)}
    lines: list[str] = []
    for task, names in (tasks or {"": tuple(fields)}).items():
        lines += [*([""] if lines else []), *([f"# {task}"] if task else [])]
        for name in names:
            lines.append(f"{name} = {default_and_range(fields[name])}")
            lines += textwrap.wrap(fields[name].metadata["says"], HELP_COLUMNS, **HELP_INDENT)
    return "\n".join(lines)


def default_and_range(field: dataclasses.Field[Any]) -> str:
    """Return a setting's default in TOML, and its range in parentheses."""
    limits = _range(field.metadata)
    return f"{toml(field.default)}{limits and f'  ({limits})'}"


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


def toml(value: Any) -> str:
    """Return a default in the syntax of the file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(toml(one) for one in value)}]"
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
