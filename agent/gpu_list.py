"""The GPUs that this host has ever had, kept across boots, and which of them are missing.

The list is a small file in the state folder, replaced atomically. If you remove a GPU permanently,
delete the file: the list then restarts with the GPUs present.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..contract.gpu_set import GPUS_MAX, is_uuid, missing, update_expected
from ..contract.wire.telemetry_pb2 import HealthEvent
from .spool.lockdir import open_regular

FILE_NAME = "gpus.json"
#: A larger file was not written by Gangline.
FILE_BYTES_MAX = 64 << 10
NAME_CHARACTERS_MAX = 128
SECOND_NS = 1_000_000_000
#: A GPU counts as missing after this time: reloading the driver takes less (assumed).
SETTLING_SECONDS = 120.0
#: Time after boot before a GPU can count as missing: the driver is built, loaded, and starts the
#: GPUs (assumed; equal to the time for ports).
BOOTING_SECONDS = 300.0
#: Event of a GPU that is missing, or back.
EVENT_NAME = "gpu.missing"

log = logging.getLogger(__name__)


class GpuInventory(NamedTuple):
    """GPUs that responded (UUID -> PCI address), and addresses of GPUs that could not be queried.

    The latter are excluded, not permitted, or belong to a virtual machine.
    """

    found: Mapping[str, str]
    unqueried: frozenset[str] = frozenset()


class GpuList:
    """The list of GPUs. For a single thread. Never raises; `last_error` has the last failure."""

    def __init__(self, folder: Path) -> None:
        self.last_error = ""
        self._path = folder / FILE_NAME
        #: UUID -> PCI address.
        self.expected: Mapping[str, str] = self._load()
        self._is_stored = bool(self.expected)
        self._inventory: GpuInventory | None = None
        self._since_ns: dict[str, int] = {}

    def check(
        self, inventory: GpuInventory | None, reported_missing: Collection[str], now_ns: int
    ) -> Iterator[HealthEvent]:
        """Yield events of GPUs that are missing or back.

        *inventory*: None if no inventory could be made. *reported_missing*: GPUs reported as
        missing and not yet as back.
        """
        if inventory is None:
            return
        if self._is_stored and not self._path.exists():
            self._reset(inventory)
        if inventory is not self._inventory:
            self._inventory = inventory
            self._store(update_expected(self.expected, inventory.found))
        absent = missing(self.expected, inventory.found)
        absent = {
            key: address for key, address in absent.items() if address not in inventory.unqueried
        }
        self._since_ns = {key: self._since_ns.get(key, now_ns) for key in absent}
        for key in [key for key in reported_missing if key not in absent]:
            yield _event(key, "", "back", now_ns)
        if now_ns < BOOTING_SECONDS * SECOND_NS:
            return
        for key, since_ns in self._since_ns.items():
            if key not in reported_missing and now_ns - since_ns >= SETTLING_SECONDS * SECOND_NS:
                yield _event(key, absent[key], "missing", now_ns)

    def _reset(self, inventory: GpuInventory) -> None:
        log.info(
            "%s was deleted: %d GPUs are expected from now on",
            self._path,
            len(inventory.found),
            extra={"cause": "gpu.list"},
        )
        self.expected, self._is_stored, self._inventory = {}, False, None

    def _load(self) -> dict[str, str]:
        try:
            with open(self._path, "rb", opener=open_regular) as file:
                return parse_gpus(file.read(FILE_BYTES_MAX))
        except FileNotFoundError:
            pass
        except OSError as error:
            self.last_error = f"{self._path}: {error.strerror}"
        except ValueError as error:
            self.last_error = f"{self._path}: {error}; the agent creates a new list"
        return {}

    def _store(self, expected: dict[str, str]) -> None:
        if self._is_stored and expected == self.expected:
            return
        self.expected = expected
        new = self._path.with_name(f"{FILE_NAME}.new")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(new, "wb", opener=open_regular) as file:
                file.write(json.dumps({"gpus": expected}).encode())
                file.flush()
                os.fsync(file.fileno())  # the next boot needs it, even after a power cut
            new.replace(self._path)
            self._is_stored, self.last_error = True, ""
        except OSError as error:
            self._is_stored, self.last_error = False, f"{self._path}: {error.strerror}"
            with suppress(OSError):
                new.unlink()


def parse_gpus(content: bytes) -> dict[str, str]:
    """Return UUID -> PCI address in the file. Raises ValueError for an invalid file."""
    try:
        gpus = json.loads(content)["gpus"]
        items = list(gpus.items())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"does not contain a list of GPUs: {str(error)[:200]}") from error
    if len(items) > GPUS_MAX:
        raise ValueError(f"{len(items)} GPUs, at most {GPUS_MAX}")
    for key, address in items:
        if (
            not isinstance(address, str)
            or not is_uuid(key)
            or max(len(key), len(address)) > NAME_CHARACTERS_MAX
        ):
            raise ValueError(f"{key[:40]!r} is not a GPU with its PCI address")
    return dict(items)


def _event(key: str, address: str, state: str, now_ns: int) -> HealthEvent:
    return HealthEvent(
        event_id=f"{EVENT_NAME}/{key}/{now_ns}",
        device_kind="gpu",
        device=key,
        name=EVENT_NAME,
        message=f"GPU {key} is {state}" + (f"; it was at {address}" if address else ""),
        boottime_ns=now_ns,
        last_boottime_ns=now_ns,
        attributes={"state": state},
    )
