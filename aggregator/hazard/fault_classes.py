"""Classes of faults: in a recording by the level, on a fleet by the names of findings, as their rules declare them.

Names alone, not XIDs: only names are kept for the days that models look back, and one history must give the same classes
to training and to judging, also after a restart."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..rule_catalogue import FAULTS
from ..rule_declaration import HazardClass

#: The class of what no other is of.
OTHER = HazardClass.OTHER


class FindingClass(NamedTuple):
    """One class of faults."""

    name: HazardClass
    description: str  # many of them


#: In the order of the columns of `history.State.by_class`. A fault that has findings of several is of each of them.
CLASSES: tuple[FindingClass, ...] = (
    FindingClass(HazardClass.MEMORY, "faults of memory"),
    FindingClass(HazardClass.REMAP, "row remaps that waited for a reset, or failed"),
    FindingClass(HazardClass.LINK, "faults of links"),
    FindingClass(HazardClass.DRIVER, "faults that a GPU's driver or a diagnostic reported"),
    FindingClass(HazardClass.HOST, "faults of the host"),
    FindingClass(HazardClass.HARDWARE, "faults of hardware"),  # a recording's level
    FindingClass(OTHER, "other faults"),
)
CLASS_NAMES = tuple(each.name for each in CLASSES)


def class_flags(faults: Sequence[Collection[str]]) -> NDArray[np.bool_]:
    """Return faults x CLASSES, from the names of each fault's classes."""
    found = [[name in names for name in CLASS_NAMES] for names in faults]
    return np.array(found, dtype=bool).reshape(-1, len(CLASS_NAMES))


def class_condition(name: str) -> str:
    """Return the condition by which a row of findings is of the class *name*."""
    findings = ", ".join(
        f"'{finding}'" for finding, class_name in FAULTS.items() if class_name == name
    )
    return f"name IN ({findings})" if findings else "false"
