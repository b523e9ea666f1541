"""Which class a fault is of, as far as its record tells: in a recording by its level, on a fleet of one's own by the names of its findings.

Names alone, and not an XID's code: only they are kept for as long as models look back, and one history must give the same
classes to training, to judging, and to judging after a restart.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Class(NamedTuple):
    """One class of faults."""

    name: str
    words: str  # many of them
    begins: tuple[str, ...] = ()  # how the names of its findings begin


#: The class of what no other is of.
OTHER = "other"
#: In the order of the columns of `history.State.by_class`. A fault that has findings of several is of each of them.
CLASSES: tuple[Class, ...] = (
    Class("memory", "faults of memory", ("gpu.ecc_", "host.memory_error", "host.machine_check", "host.hardware_error")),
    Class("remap", "row remaps that waited for a reset, or failed", ("gpu.remap_",)),
    Class("link", "faults of links", ("nvswitch.", "pcie.", "rdma.", "net.")),
    Class("driver", "faults that a GPU's driver told of", ("gpu.xid", "gpu.lost", "gpu.off_bus", "gpu.recovery_action", "gpu.driver_message")),
    Class("host", "faults of the host", ("host.out_of_memory", "host.hung_task", "host.lockup", "host.kernel_fault", "filesystem.", "disk.")),
    Class("hardware", "faults of hardware"),  # a recording's level
    Class(OTHER, "other faults", ("folded", "host.kernel_log_lost")),
)  # fmt: skip
NAMES = tuple(each.name for each in CLASSES)


def class_of(finding: str) -> str:
    """Return the class of a finding by its name."""
    return next((each.name for each in CLASSES if finding.startswith(each.begins)), OTHER)


def flags(faults: Sequence[Collection[str]]) -> NDArray[np.bool_]:
    """Return faults x CLASSES, from the names of each fault's classes."""
    found = [[name in names for name in NAMES] for names in faults]
    return np.array(found, dtype=bool).reshape(-1, len(NAMES))


def sql(name: str) -> str:
    """Return the condition by which a row of findings is of the class *name*."""
    (begins,) = (each.begins for each in CLASSES if each.name == name)
    return " OR ".join(f"starts_with(name, '{begin}')" for begin in begins) or "false"
