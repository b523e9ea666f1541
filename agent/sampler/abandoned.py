"""Abandoned samplers: a small file in the state folder lists the processes that hang in a driver.

A new agent reads it and does not call a device in which a process of its killed predecessor still
hangs. Otherwise each restart would abandon one more process.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ...ext.place import Seen
from ..spool.lockdir import open_regular, write_regular
from .collector_groups import PROCESSES_MAX
from .forkserver import live_task
from .quarantine import Unit

FILE_NAME = "left_behind.json"
#: A larger file was not written by Gangline: a process takes some 400 bytes.
FILE_BYTES_MAX = 1 << 14
NAME_CHARACTERS_MAX = 88  # as a call's name in the shared memory (ext/place_abi.pxd)

log = logging.getLogger(__name__)


class AbandonedProcess(NamedTuple):
    """A process that hangs in a unit. `pid` and `start_ticks` together identify it."""

    unit: Unit
    pid: int
    start_ticks: int
    since_ns: int
    collector: str
    call: str

    @property
    def call_state(self) -> Seen:
        """Return the hanging call as the state of the process."""
        return Seen(self.since_ns, 0, self.collector, self.unit[1], self.call)

    @property
    def is_alive(self) -> bool:
        task = live_task(self.pid)
        return task is not None and task.start_ticks == self.start_ticks


def format_abandoned(boot_id: bytes, processes: Iterable[AbandonedProcess]) -> bytes:
    return json.dumps({"boot_id": boot_id.hex(), "left_behind": [*processes]}).encode()


def parse_abandoned(content: bytes, boot_id: bytes) -> list[AbandonedProcess]:
    """Return the abandoned processes of this boot. Raises ValueError for an invalid file."""
    try:
        document = json.loads(content)
        if document["boot_id"] != boot_id.hex():
            return []
        return [_parse_entry(*entry) for entry in document["left_behind"][:PROCESSES_MAX]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"is not a list of abandoned processes: {str(error)[:200]}") from error


def _parse_entry(
    unit: Sequence[str], pid: int, start_ticks: int, since_ns: int, collector: str, call: str
) -> AbandonedProcess:
    """Return the checked entry. Raises TypeError or ValueError."""
    group, device, unit_collector = unit
    for name in (group, device, unit_collector, collector, call):
        if not isinstance(name, str) or len(name) > NAME_CHARACTERS_MAX:
            raise TypeError(f"{str(name)[:40]!r} is not a name")
    for number in (pid, start_ticks, since_ns):
        if type(number) is not int or not 0 < number < 1 << 63:
            raise TypeError(f"{str(number)[:40]!r} is not a process number")
    return AbandonedProcess(
        (group, device, unit_collector), pid, start_ticks, since_ns, collector, call
    )


class AbandonedProcessFile:
    """The file in *folder*. Never raises: without the file a new agent detects the hangs again."""

    def __init__(self, folder: Path, boot_id: bytes) -> None:
        self._path, self._boot_id = folder / FILE_NAME, boot_id

    def read(self) -> list[AbandonedProcess]:
        """Return the processes that an earlier agent abandoned and that are still alive."""
        try:
            with open(self._path, "rb", opener=open_regular) as file:
                processes = parse_abandoned(file.read(FILE_BYTES_MAX), self._boot_id)
            return [process for process in processes if process.is_alive]
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            log.warning("%s: %s", self._path, error, extra={"cause": "left_behind.file"})
            return []

    def write(self, processes: Iterable[AbandonedProcess]) -> None:
        """Replace the file. It is not synced: no other boot uses it."""
        new = self._path.with_name(f".{FILE_NAME}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_regular(new, format_abandoned(self._boot_id, processes))
            new.replace(self._path)
        except OSError as error:
            message = (
                f"{self._path}: {error.strerror}; after a restart samplers would call these again"
            )
            log.warning("%s", message, extra={"cause": "left_behind.file"})
