"""Classes of faults: by level in a recording, by the rules of findings in a fleet.

Finding names decide, not XIDs: only names are kept for the days that models look back, and a
history must give the same classes to training and judging, also after a restart.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..rule_catalogue import FAULTS
from ..rule_declaration import HazardClass

#: The class of all other faults.
OTHER = HazardClass.OTHER


class FindingClass(NamedTuple):
    """A class of faults."""

    name: HazardClass
    description: str  # in the plural


#: In the order of `history.UnitState.by_class`. A fault has each class of its findings.
CLASSES: tuple[FindingClass, ...] = (
    FindingClass(HazardClass.MEMORY, "faults of memory"),
    FindingClass(HazardClass.REMAP, "row remaps that waited for a reset, or failed"),
    FindingClass(HazardClass.LINK, "faults of links"),
    FindingClass(HazardClass.DRIVER, "faults that a GPU's driver or a diagnostic reported"),
    FindingClass(HazardClass.HOST, "faults of the host"),
    FindingClass(HazardClass.HARDWARE, "faults of hardware"),  # level of a recording
    FindingClass(OTHER, "other faults"),
)
CLASS_NAMES = tuple(fault_class.name for fault_class in CLASSES)


def class_flags(faults: Sequence[Collection[str]]) -> NDArray[np.bool_]:
    """Return faults x CLASSES from the class names of each fault."""
    rows = [[name in names for name in CLASS_NAMES] for names in faults]
    return np.array(rows, dtype=bool).reshape(-1, len(CLASS_NAMES))


def class_condition(name: str) -> str:
    """Return the SQL condition for rows of findings of the class *name*."""
    findings = ", ".join(
        f"'{finding}'" for finding, class_name in FAULTS.items() if class_name == name
    )
    return f"name IN ({findings})" if findings else "false"
