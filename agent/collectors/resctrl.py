"""Memory traffic of each L3 cache, as the kernel's resctrl filesystem counts it (Documentation/filesystems/resctrl.rst).

Each control group counts only its own tasks, with all its monitoring groups: the traffic of a host is the sum over its
control groups. A kernel writes Unavailable, Unassigned or Error in place of a number: such a reading is missing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..hardware.files import Roots, device_key, names_in
from .counter_files import CollectorSpec, CounterDevice, CounterFileCollector, FileField

FIELDS: Mapping[str, FileField] = {
    "l3.memory_bytes": FileField("mbm_total_bytes"),
    "l3.local_memory_bytes": FileField("mbm_local_bytes"),
}
#: More groups are left out: each takes a control class of the processors, which have at most 128.
GROUPS_MAX = 128
#: Other folders of the filesystem's root.
_NO_GROUPS = ("info", "mon_data", "mon_groups")
_CACHE = re.compile(r"mon_L3_(\d{1,6})$", re.ASCII)


def l3_1s(roots: Roots) -> CounterFileCollector:
    """Return the collector; it has no data where resctrl is not mounted, or counts no memory traffic."""
    root = roots.sys / "fs/resctrl"
    reason = "no L3 cache with a count of memory traffic in /sys/fs/resctrl (mount -t resctrl resctrl /sys/fs/resctrl)"
    return CounterFileCollector(CollectorSpec("l3_1s", lambda: list(_devices(root)), reason))


def _devices(root: Path) -> Iterator[CounterDevice]:
    groups = [name for name in names_in(root) if name not in _NO_GROUPS]
    for group in ("", *groups[: GROUPS_MAX - 1]):
        folder = root / group / "mon_data"
        for name in names_in(folder):
            match = _CACHE.match(name)
            if match and os.path.exists(folder / name / "mbm_total_bytes"):
                number = str(int(match[1]))
                device = f"{group}/{number}" if group else number
                yield CounterDevice(device_key(device), f"{folder / name}/", FIELDS)
