"""The host's status as a JSON document, and the file that holds it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..sampler.quarantine import DeviceState
from .check import FORMAT, NAMES_MAX, STATUS_BYTES_MAX, printable
from .policy_rules import ClearedFinding, HostFinding

#: Period in which the file is renewed. Readers take the agent of an older file for dead.
RENEW_SECONDS = 10.0
_MODE = 0o644


def finding_fields(finding: HostFinding, address: str) -> dict[str, Any]:
    """Return a finding's fields in the document. *address*: a GPU's PCI address."""
    return {
        "name": finding.name,
        "device": printable(finding.device),
        "address": address,
        "severity": str(finding.severity),
        "problem": "user" if finding.severity == "application" else "node",
        "message": printable(finding.message),
        "action": finding.action,
        "scope": finding.scope,
        "clears_when": finding.clears_when,
        "since_ns": finding.since_ns,
        "confirmed_ns": finding.confirmed_ns,
        "count": finding.count,
        "enforceable": finding.enforceable,
    }


def cleared_fields(cleared: ClearedFinding) -> dict[str, Any]:
    finding = cleared.finding
    return {
        "name": finding.name,
        "device": printable(finding.device),
        "message": printable(finding.message),
        "since_ns": finding.since_ns,
        "cleared_ns": cleared.cleared_ns,
        "why": cleared.reason,
    }


def device_fields(device: DeviceState) -> dict[str, Any]:
    """Return the document's fields of a device that is hung, or was up to a minute ago."""
    return {
        "lane": device.group,
        "device": printable(device.device),
        "state": device.state.name.lower(),
        "call": printable(device.call),
        "hung_seconds": round(device.hung_seconds, 1),
        "message": printable(device.message),
    }


def document(
    constant_fields: Mapping[str, Any],
    now_ns: int,
    *,
    findings: Sequence[dict[str, Any]],
    left_out: int,
    notes: Iterable[str],
    **fields: Any,
) -> dict[str, Any]:
    """Return the document. *constant_fields* never change; *fields*: enforcing, permit, devices."""
    return {
        "format": FORMAT,
        **constant_fields,
        "boottime_ns": now_ns,
        "findings": list(findings),
        "left_out": left_out,
        "notes": [printable(note) for note in notes][:NAMES_MAX],
        **fields,
    }


def encode(fields: dict[str, Any]) -> bytes:
    """Return the file's content, at most STATUS_BYTES_MAX; the mildest findings are left out."""
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
    """The file at *path*. Never raises; `last_error` has the last failure."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last_error = ""
        self.writes = 0
        self._new = path.with_name(f".{path.name}.new")

    def write(self, content: bytes) -> bool:
        """Replace the file; return success. Never synced: a later boot does not read it."""
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
            os.fchmod(file, _MODE)  # despite the umask: every user may read the host's status
            written = 0
            while written < len(content):
                written += os.write(file, content[written:])
        finally:
            os.close(file)
        os.replace(self._new, self.path)

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            return os.open(self._new, flags, _MODE)
        except FileNotFoundError:  # the folder does not exist yet, or was removed
            self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            return os.open(self._new, flags, _MODE)

    def remove(self) -> None:
        """Remove the file at an orderly end: readers then see that no agent runs."""
        with suppress(OSError):
            self.path.unlink()
