"""The status document of this host, and the file that shows it: replaced whole, so that no reader waits."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol

from .finding import Cleared, Finding
from .verdict import FORMAT, NAMES_MAX, STATUS_BYTES_MAX, text

#: The file is renewed at least this often, or readers take the agent for dead.
RENEW_SECONDS = 10.0
_MODE = 0o644


def finding_fields(finding: Finding, address: str) -> dict[str, Any]:
    """Return a finding as the document shows it. *address*: of a GPU, its PCI address."""
    return {
        "name": finding.name,
        "device": text(finding.device),
        "address": address,
        "severity": str(finding.severity),
        "problem": "user" if finding.severity == "application" else "node",
        "words": text(finding.words),
        "action": finding.action,
        "scope": finding.scope,
        "clears_when": finding.clears_when,
        "since_ns": finding.since_ns,
        "confirmed_ns": finding.confirmed_ns,
        "count": finding.count,
        "enforceable": finding.enforceable,
    }


def cleared_fields(cleared: Cleared) -> dict[str, Any]:
    """Return what is over as the document shows it."""
    found = cleared.finding
    return {
        "name": found.name,
        "device": text(found.device),
        "words": text(found.words),
        "since_ns": found.since_ns,
        "cleared_ns": cleared.cleared_ns,
        "why": cleared.why,
    }


class Device(Protocol):
    """What is shown of `agent.sampler.ward.DeviceState`."""

    @property
    def lane(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def state(self) -> IntEnum: ...
    @property
    def call(self) -> str: ...
    @property
    def hung_seconds(self) -> float: ...
    @property
    def words(self) -> str: ...


def device_fields(device: Device) -> dict[str, Any]:
    """Return a device that does not answer, or did not a minute ago, as the document shows it."""
    return {
        "lane": device.lane,
        "device": text(device.device),
        "state": device.state.name.lower(),
        "call": text(device.call),
        "hung_seconds": round(device.hung_seconds, 1),
        "words": text(device.words),
    }


def document(
    about: Mapping[str, Any],
    now_ns: int,
    *,
    findings: Sequence[dict[str, Any]],
    left_out: int,
    notes: Iterable[str],
    **more: Any,
) -> dict[str, Any]:
    """Return the document of now. *about*: what does not change; *more*: enforcing, permit, devices."""
    return {
        "format": FORMAT,
        **about,
        "boottime_ns": now_ns,
        "findings": list(findings),
        "left_out": left_out,
        "notes": [text(note) for note in notes][:NAMES_MAX],
        **more,
    }


def encode(fields: dict[str, Any]) -> bytes:
    """Return the file's content, of at most STATUS_BYTES_MAX: beyond, the mildest findings are left out."""
    content = json.dumps(fields).encode()
    while len(content) > STATUS_BYTES_MAX:
        half = len(fields["findings"]) // 2
        dropped = len(fields["findings"]) - half
        fields = {**fields, "findings": fields["findings"][:half], "cleared": [], "devices": []}
        fields["left_out"] += dropped
        content = json.dumps(fields).encode()
        if not half and len(content) > STATUS_BYTES_MAX:
            fields["notes"] = []
            content = json.dumps(fields).encode()
            break
    return content


class StatusFile:
    """The file at *path*. Never raises; `last_error` says what failed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last_error = ""
        self.writes = 0
        self._new = path.with_name(f".{path.name}.new")

    def write(self, content: bytes) -> bool:
        """Replace the file. Not synced: after a boot nobody wants it. Say whether it was written."""
        try:
            self._replace(content)
        except OSError as error:
            self.last_error = f"{self.path}: {error.strerror}"
            with suppress(OSError):
                self._new.unlink()
            return False
        self.last_error = ""
        self.writes += 1
        return True

    def _replace(self, content: bytes) -> None:
        file = self._open()
        try:
            os.fchmod(file, _MODE)  # whatever the umask is: everybody may ask how the host is
            at = 0
            while at < len(content):
                at += os.write(file, content[at:])
        finally:
            os.close(file)
        os.replace(self._new, self.path)

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            return os.open(self._new, flags, _MODE)
        except FileNotFoundError:  # the folder is not there yet, or was removed
            self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            return os.open(self._new, flags, _MODE)

    def remove(self) -> None:
        """Take the file away, as at an orderly end: who asks then is told that no agent runs."""
        with suppress(OSError):
            self.path.unlink()
