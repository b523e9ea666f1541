"""The host itself: cores that are fought over, memory, disks and file systems. Never worse than WATCH."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...verdicts import Reason, State
from ..present import Present
from ..symptoms import Rule, Symptom

#: Smaller ones (boot, EFI, container mounts) are not judged.
SIZE_BYTES_MIN = 4e9

CPU = Rule(
    "host.cpu_pressure",
    State.WATCH,
    Reason.HOST_CPU,
    "tasks wait for a core less often for a minute",
    enter_seconds=30.0,
)
STOLEN = Rule(
    "host.cpu_steal",
    State.WATCH,
    Reason.HOST_CPU,
    "the hypervisor takes less for a minute",
    enter_seconds=30.0,
)
MEMORY = Rule(
    "host.memory_pressure",
    State.WATCH,
    Reason.HOST_CPU,
    "all tasks wait for memory less often for a minute",
    enter_seconds=30.0,
    hazard_factor=2.0,
)
READ_ONLY = Rule(
    "filesystem.read_only",
    State.WATCH,
    Reason.STORAGE,
    "the file system can be written again",
    leave_seconds=0.0,
    hazard_factor=5.0,
)
FULL = Rule(
    "filesystem.full",
    State.WATCH,
    Reason.STORAGE,
    "the file system has more room",
    leave_seconds=0.0,
    hazard_factor=1.5,
)


def contention(present: Present) -> Iterator[Symptom]:
    """Tasks wait for cores or memory, or the hypervisor takes them away."""
    for rule, column, words in (
        (CPU, "pressure_cpu_some_ratio", "tasks waited for a core"),
        (STOLEN, "cpu_steal_ratio", "the hypervisor gave the cores to others"),
        (MEMORY, "pressure_memory_full_ratio", "all tasks waited for memory"),
    ):
        limit = present.threshold(f"{rule.name}_ratio")
        values = present.gauge("host_1s", column)
        for row in np.flatnonzero(values > limit).tolist():
            host, device = present.name("host_1s", row)
            yield Symptom(
                rule=rule,
                host=host,
                device=device,
                signal=f"host.{column}",
                value=round(float(values[row]), 3),
                normal=f"below {100 * limit:.0f} %",
                words=f"{words} {100 * values[row]:.0f} % of the time",
                sql=present.sql("host_1s", row, column, 60),
                clears=f"it is below {100 * limit:.0f} % for a minute",
            )


def file_systems(present: Present) -> Iterator[Symptom]:
    """A file system turned read-only, or is full."""
    table = "filesystem_60s"
    read_only = present.state(table, "read_only_state") == 1
    size = present.gauge(table, "size_bytes")
    available = present.gauge(table, "available_bytes")
    for row in np.flatnonzero(read_only & present.fleet.seen.writable).tolist():
        words = "turned read-only: the kernel gave up writing to it"
        yield _file_system(present, READ_ONLY, row, "read_only_state", 1.0, "0", words)
    share = present.threshold("filesystem.available_ratio")
    least = np.minimum(share * size, present.threshold("filesystem.available_bytes"))
    full = (available < least) & (size >= SIZE_BYTES_MIN)
    for row in np.flatnonzero(full & ~read_only).tolist():
        gigabytes = available[row] / 1e9
        words = f"has {gigabytes:.1f} GB of {size[row] / 1e9:.0f} GB left"
        normal = f"above {least[row] / 1e9:.1f} GB"
        value = float(available[row])
        yield _file_system(present, FULL, row, "available_bytes", value, normal, words)


def _file_system(
    present: Present, rule: Rule, row: int, column: str, value: float, normal: str, words: str
) -> Symptom:
    host, device = present.name("filesystem_60s", row)
    return Symptom(
        rule=rule,
        host=host,
        device=device,
        signal=f"filesystem.{column}",
        value=value,
        normal=normal,
        words=f"{device} {words}",
        sql=present.sql("filesystem_60s", row, "*", 600),
    )
