"""Findings state of this boot, kept across agent restarts in a file that is replaced atomically.

The file has no meaning after a power cut, so it is never synced.
"""

from __future__ import annotations

import binascii
import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from ...contract.wire.telemetry_pb2 import HealthEvent
from ..spool.lockdir import open_regular, write_regular

FILE_NAME = "findings.json"
#: A larger file was not written by Gangline: it is cut, and then refused.
FILE_BYTES_MAX = 8 << 20
_TIMES = ("watched_since_ns", "watched_until_ns")
EVENTS_MAX, DEVICES_MAX, NAME_CHARACTERS_MAX = 1024, 4096, 200


@dataclass(frozen=True, slots=True)
class FindingsState:
    """State of a boot: span of the watch for resets, events, resets, energies, once-well devices.

    *resets_ns*: GPU -> boot time. *once_well*: policy row -> devices.
    """

    boot_id: bytes
    watched_since_ns: int = 0
    watched_until_ns: int = 0
    events: tuple[HealthEvent, ...] = ()
    resets_ns: Mapping[str, int] = field(default_factory=dict[str, int])
    energy_joules: Mapping[str, float] = field(default_factory=dict[str, float])
    once_well: Mapping[str, list[str]] = field(default_factory=dict[str, list[str]])


def format_state(state: FindingsState) -> bytes:
    events = [_text(event) for event in state.events]
    fields = {
        "boot_id": state.boot_id.hex(),
        "watched_since_ns": state.watched_since_ns,
        "watched_until_ns": state.watched_until_ns,
        "events": events,
        "resets_ns": dict(state.resets_ns),
        "energy_joules": dict(state.energy_joules),
        "once_well": dict(state.once_well),
    }
    return json.dumps(fields).encode()


def parse_state(content: bytes) -> FindingsState:
    """Return the state that `format_state` wrote. Raises ValueError for other content."""
    try:
        fields = json.loads(content)
        return FindingsState(
            bytes.fromhex(fields["boot_id"]),
            events=tuple(_event(text) for text in fields["events"][:EVENTS_MAX]),
            resets_ns=_checked(fields["resets_ns"], _is_time),
            energy_joules=_checked(fields["energy_joules"], _is_energy),
            once_well=_checked(fields["once_well"], _is_names),
            **_checked({name: fields[name] for name in _TIMES}, _is_time),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, DecodeError) as error:
        raise ValueError(f"does not contain findings: {str(error)[:200]}") from error


def _text(event: HealthEvent) -> str:
    return binascii.b2a_base64(event.SerializeToString(), newline=False).decode()


def _event(text: str) -> HealthEvent:
    return HealthEvent.FromString(binascii.a2b_base64(text))


def _checked(fields: Any, is_valid: Callable[[Any], bool]) -> dict[str, Any]:
    if not isinstance(fields, dict) or len(fields) > DEVICES_MAX:
        raise ValueError("a table is not a table, or is too long")
    for name, value in fields.items():
        if len(name) > NAME_CHARACTERS_MAX or isinstance(value, bool) or not is_valid(value):
            raise ValueError(f"{name[:40]!r} has a wrong value")
    return fields


def _is_time(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 63


def _is_energy(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _is_names(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= DEVICES_MAX
        and all(isinstance(name, str) and len(name) <= NAME_CHARACTERS_MAX for name in value)
    )


class FindingsStateFile:
    """The state file in *folder*. Never raises; `last_error` has the last failure."""

    def __init__(self, folder: Path) -> None:
        self.last_error = ""
        self._folder = folder

    def load(self, boot_id: bytes) -> FindingsState:
        """Return the state of this boot; an empty state if it is absent or unreadable."""
        path = self._folder / FILE_NAME
        try:
            with open(path, "rb", opener=open_regular) as file:
                state = parse_state(file.read(FILE_BYTES_MAX))
        except FileNotFoundError:
            return FindingsState(boot_id)
        except OSError as error:
            self.last_error = f"{path}: {error.strerror}"
        except ValueError as error:
            self.last_error = f"{path}: {error}"
        else:
            return state if state.boot_id == boot_id else FindingsState(boot_id)
        return FindingsState(boot_id)

    def save(self, state: FindingsState) -> bool:
        """Replace the file; return whether it was replaced."""
        path = self._folder / FILE_NAME
        new = self._folder / f"{FILE_NAME}.new"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_regular(new, format_state(state))
            new.replace(path)
        except OSError as error:
            self.last_error = f"{path}: {error.strerror}"
            with suppress(OSError):
                new.unlink()
            return False
        self.last_error = ""
        return True
