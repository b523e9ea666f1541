"""What one event says by itself, and what ends it: the table of events, and the policies of XIDs and SXIDs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ...fingerprints.xid import Clears, Severity, Xid
from ...fingerprints.xid_incidents import coded
from ..messages import EventLike

XID, SXID, LINK, LOST = "gpu.xid", "nvswitch.sxid", "net.link", "gpu.lost"
OUT_OF_MEMORY = "host.out_of_memory"
#: Codes of net.link.
REMOVED, APPEARED = 2, 3
#: The kernel's words for a program that met the limit of its own control group.
OWN_LIMIT = ("CONSTRAINT_MEMCG", "Memory cgroup out of memory")

TEN_MINUTES, HOUR, DAY = 600.0, 3600.0, 86_400.0


class Ending(NamedTuple):
    """What ends a record: `seconds` without another one, for Clears.TIME."""

    clears: Clears
    seconds: float = 0.0

    @property
    def words(self) -> str:
        """What ends it, for people."""
        if self.clears is Clears.RESET:
            return "the GPU is reset, or the host boots"
        if self.clears is Clears.REBOOT:
            return "the host boots"
        return f"it does not come again for {_span(self.seconds)}"


def _span(seconds: float) -> str:
    if seconds < 2 * HOUR:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / HOUR:.0f} hours"


#: Name of an event -> what ends it. Events that are not here, such as a link that came up, are left to
#: the store and to the readings that tell the same.
ENDINGS: Mapping[str, Ending] = {
    LOST: Ending(Clears.RESET),
    "gpu.driver_message": Ending(Clears.TIME, TEN_MINUTES),
    "gpu.driver_event": Ending(Clears.TIME, TEN_MINUTES),
    "pcie.aer": Ending(Clears.TIME, TEN_MINUTES),
    "host.hardware_error": Ending(Clears.TIME, DAY),
    "host.machine_check": Ending(Clears.TIME, DAY),
    "host.memory_error": Ending(Clears.TIME, DAY),
    OUT_OF_MEMORY: Ending(Clears.TIME, TEN_MINUTES),
    "host.hung_task": Ending(Clears.TIME, TEN_MINUTES),
    "host.lockup": Ending(Clears.TIME, HOUR),
    "host.kernel_fault": Ending(Clears.REBOOT),
    "host.kernel_log_lost": Ending(Clears.TIME, TEN_MINUTES),
    "rdma.driver_error": Ending(Clears.TIME, TEN_MINUTES),
    "filesystem.error": Ending(Clears.TIME, HOUR),
    "disk.error": Ending(Clears.TIME, HOUR),
    LINK: Ending(Clears.REBOOT),
}

_GRAVITY = {Severity.FATAL: 3, Severity.HAZARD: 2}


class Meaning(NamedTuple):
    """What one event says: under its policy (`row`, of XIDs and SXIDs) and by what was decoded of it."""

    ending: Ending | None  # None: it leaves nothing standing
    takes_back: tuple[int, ...] = ()  # codes of the same device
    row: Xid | None = None
    variant: str = ""  # what tells it from another event of the same device and code
    words: tuple[str, ...] = ()
    process: str = ""  # named in the line: it met the fault, and need not be its cause
    folded: bool = (
        False  # it stands for events of its name that were too many: its code says nothing
    )
    before_boot: bool = False  # the boot before met it; this one only found the record
    own_limit: bool = False  # a program was killed at its own limit: the workload's doing

    def gravity(self, name: str) -> int:
        """Return of how much weight it is that it stands: what is of the least is forgotten first."""
        if self.row is not None:
            return _GRAVITY.get(self.row.severity, 0)
        if name == LOST:
            return _GRAVITY[Severity.FATAL]
        return 0 if name == LINK else 1


def meaning_of(event: EventLike, driver_version: str) -> Meaning:
    """Return what *event* says. Never raises, whatever its message holds."""
    if "folded" in event.attributes and event.code == 0 and event.device in ("", "host"):
        known = event.name in ENDINGS or event.name in (XID, SXID)
        return Meaning(
            Ending(Clears.TIME, TEN_MINUTES) if known else None, variant="folded", folded=True
        )
    if event.name in (XID, SXID):
        return _coded(event, driver_version)
    if event.name == LINK and event.code != REMOVED:
        return Meaning(None, (REMOVED,) if event.code == APPEARED else ())
    if event.name == LOST and event.attributes.get("state") == "back":
        return Meaning(None, (event.code,))
    ending = ENDINGS.get(event.name)
    if event.attributes.get("previous_boot") == "yes":
        return Meaning(ending, variant="previous boot", before_boot=True)
    if event.name == OUT_OF_MEMORY and _names_its_own_limit(event):
        return Meaning(ending, variant="own limit", own_limit=True)
    return Meaning(ending)


def _names_its_own_limit(event: EventLike) -> bool:
    said = (event.message, *event.forms, *event.attributes.values())
    return any(words in text for words in OWN_LIMIT for text in said)


def _coded(event: EventLike, driver_version: str) -> Meaning:
    table = "xid" if event.name == XID else "sxid"
    row, variant, said = coded(event.code, event.message, driver_version, table)
    return Meaning(
        None if said.continuation else Ending(row.clears, row.clear_seconds),
        said.cancels,
        row,
        variant,
        (said.words,) if said.words else (),
        said.process_name,
    )
