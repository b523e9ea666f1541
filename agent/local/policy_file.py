"""The operator's policy file: validated, applied to a share of hosts; the last valid one is kept.

Also the aggregator's permit to enforce findings.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...contract.faults.policy import Policy, PolicyError
from ...contract.faults.policy_file import POLICY_BYTES_MAX, overlay, parse
from ...contract.faults.table import builtin
from ...contract.wire.telemetry_pb2 import IngestAck, RegisterNodeResponse
from ..clock import Clock
from .check import PERMIT_SECONDS_MAX, SECOND_NS, printable

#: Period of checking the file.
CHECK_SECONDS = 10.0
#: Copy of the last valid file, in the state folder.
COPY_NAME = "policy.toml"
#: Identity of a file's content; None: no file; (): not checked yet.
Stamp = tuple[int, ...] | None
READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK

log = logging.getLogger(__name__)


class PolicyFile:
    """`policy` is in force. `note` is an error; `pending`: not for this host yet. Never raises."""

    def __init__(self, path: Path | None, state_folder: Path, host: str) -> None:
        """*path* None: use the built-in policy, even if a copy was kept."""
        self.policy = builtin()
        self.note = self.pending = ""
        self._path, self._copy, self._host = path, state_folder / COPY_NAME, host
        self._loaded_stamp: Stamp = ()
        self._last_stamp: Stamp = ()
        if path is not None:
            self._last_stamp = _stamp(path)
            self._load_copy()

    def _load_copy(self) -> None:
        with suppress(OSError, PolicyError):
            self.policy = overlay(parse(_read(self._copy)), builtin())

    def poll(self, dry_run: Callable[[Policy], object]) -> bool:
        """Load the file if it changed, is complete and is valid; return whether `policy` changed.

        A file is complete if it is as at the previous check. Half a file can be valid, with fewer
        or milder conditions. *dry_run* gets the policy before it takes effect, and may raise.
        """
        if self._path is None:
            return False
        stamp = _stamp(self._path)
        before, self._last_stamp = self._last_stamp, stamp
        if stamp == self._loaded_stamp or stamp != before:
            return False
        self._loaded_stamp = stamp
        try:
            text = _read(self._path)
            policy = overlay(parse(text), builtin())
            dry_run(policy)
        except OSError as error:
            return self._refuse(f"{error.strerror}")
        except PolicyError as error:
            return self._refuse(str(error))
        except Exception as error:  # noqa: BLE001 - a dry run may fail in any way
            return self._refuse(f"a dry run failed: {type(error).__name__}: {error}")
        self.note = self.pending = ""
        if not policy.applies_to(self._host):
            share = f"{100 * policy.rollout_share:g} %"
            self.pending = f"{policy.version} waits: this host is not among its {share}"
            return False
        changed, self.policy = policy != self.policy, policy
        self._store_copy(text)
        extra = {"cause": "policy.taken"}
        log.info("policy %s is in force, %d rows", policy.version, len(policy.rows), extra=extra)
        return changed

    def _refuse(self, reason: str) -> bool:
        self.note = (
            f"{self._path} is not used: {reason}; policy {self.policy.version} stays in force"
        )
        log.error("%s", self.note, extra={"cause": "policy.refused"})
        return False

    def _store_copy(self, text: str) -> None:
        new = self._copy.with_name(f"{COPY_NAME}.new")
        try:
            self._copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            new.write_text(text, encoding="utf-8")
            new.replace(self._copy)
        except OSError as error:
            self.note = f"{self._copy}: {error.strerror}: this policy will be lost at a restart"


def _stamp(path: Path) -> Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read(path: Path) -> str:
    """Return the file's text. Raises OSError, or PolicyError for a file that cannot be a policy."""
    file = os.open(path, READ_FLAGS)
    try:
        content = os.read(file, POLICY_BYTES_MAX + 1)
    finally:
        os.close(file)
    if len(content) > POLICY_BYTES_MAX:
        raise PolicyError(f"longer than {POLICY_BYTES_MAX} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise PolicyError(f"line {line}: not UTF-8") from error


class ActivePermit(NamedTuple):
    """The aggregator's permit to enforce; `until_ns` is boot time."""

    until_ns: int
    reason: str


class Permit:
    """The permit in the last message. `update` is for a single thread, `active` for any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._permit: ActivePermit | None = None

    def update(self, message: RegisterNodeResponse | IngestAck) -> None:
        """Renew the permit from *message*; a message without a permit revokes it."""
        seconds = (
            min(message.permit.seconds, PERMIT_SECONDS_MAX) if message.HasField("permit") else 0
        )
        if not seconds:
            self._permit = None
            return
        until_ns = self._clock.boottime_ns() + seconds * SECOND_NS
        self._permit = ActivePermit(until_ns, printable(message.permit.reason))

    def active(self, now_ns: int) -> ActivePermit | None:
        permit = self._permit
        return permit if permit is not None and now_ns < permit.until_ns else None
