"""The host: contended cores, memory, file systems, bonds, ports, and ended processes on GPUs.

Contention and file systems are never worse than WATCH.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...rule_catalogue import host as rules
from ...rule_declaration import Rule
from .. import rule_rows
from ..detectors import detects
from ..rule_rows import threshold_symptom
from ..symptom import Symptom, short
from ..view import FleetView

#: Smaller file systems (boot, EFI, container mounts) are not judged.
SIZE_BYTES_MIN = 4e9

#: Multiple of the peers' rate of pauses above which a host has a finding (and above a threshold).
PEERS_RATIO = 10.0
TABLE = "gpu_job_1s_changes"


@detects(rules.CPU, rules.CPU_STEAL, rules.MEMORY)
def contention(view: FleetView) -> Iterator[Symptom]:
    """Name each host whose tasks wait for cores or memory, or that loses cores to others."""
    for rule, column, message in (
        (rules.CPU, "pressure_cpu_some_ratio", "tasks waited for a core"),
        (rules.CPU_STEAL, "cpu_steal_ratio", "the hypervisor gave the cores to others"),
        (rules.MEMORY, "pressure_memory_full_ratio", "all tasks waited for memory"),
    ):
        limit = view.threshold(f"{rule.name}_ratio")
        values = view.gauge("host_1s", column)
        for row in np.flatnonzero(values > limit).tolist():
            host, device = view.name("host_1s", row)
            yield Symptom(
                rule=rule,
                host=host,
                device=device,
                signal=f"host.{column}",
                value=round(float(values[row]), 3),
                normal=f"below {100 * limit:.0f} %",
                message=f"{message} {100 * values[row]:.0f} % of the time",
                sql=view.sql("host_1s", row, column, 60),
                clears=f"it is below {100 * limit:.0f} % for a minute",
            )


@detects(rules.READ_ONLY, rules.FULL)
def file_systems(view: FleetView) -> Iterator[Symptom]:
    """Name each file system that became read-only, or is full."""
    table = "filesystem_60s"
    read_only = view.state(table, "read_only_state") == 1
    size = view.gauge(table, "size_bytes")
    available = view.gauge(table, "available_bytes")
    for row in np.flatnonzero(read_only & view.fleet.ever_up.writable).tolist():
        message = "became read-only: the kernel stopped writing to it"
        yield _file_system(view, rules.READ_ONLY, row, "read_only_state", 1.0, "0", message)
    share = view.threshold("filesystem.available_ratio")
    minimum = np.minimum(share * size, view.threshold("filesystem.available_bytes"))
    full = (available < minimum) & (size >= SIZE_BYTES_MIN)
    for row in np.flatnonzero(full & ~read_only).tolist():
        gigabytes = available[row] / 1e9
        message = f"has {gigabytes:.1f} GB of {size[row] / 1e9:.0f} GB left"
        normal = f"above {minimum[row] / 1e9:.1f} GB"
        value = float(available[row])
        yield _file_system(view, rules.FULL, row, "available_bytes", value, normal, message)


def _file_system(
    view: FleetView, rule: Rule, row: int, column: str, value: float, normal: str, message: str
) -> Symptom:
    host, device = view.name("filesystem_60s", row)
    return Symptom(
        rule=rule,
        host=host,
        device=device,
        signal=f"filesystem.{column}",
        value=value,
        normal=normal,
        message=f"{device} {message}",
        sql=view.sql("filesystem_60s", row, "*", 600),
    )


@detects(rules.BOND, rules.BOND_DOWN)
def bonds(view: FleetView) -> Iterator[Symptom]:
    """Name each bond with fewer links up than before, or none."""
    up = view.gauge("bond_10s", "slaves_up_count")
    all_of_them = view.gauge("bond_10s", "slaves_count")
    for row in np.flatnonzero((up < all_of_them) & view.fleet.ever_up.whole_bonds).tolist():
        yield threshold_symptom(view, rules.BOND, row, float(up[row]))
    down = view.state("bond_10s", "link_state") == 0
    down &= view.known("bond_10s", "link_state") & view.fleet.ever_up.bonds_up
    for row in np.flatnonzero(down).tolist():
        yield threshold_symptom(view, rules.BOND_DOWN, row, 0.0)


@detects(rules.PAUSES)
def pauses(view: FleetView) -> Iterator[Symptom]:
    """Name each port that pauses its switch far more than its peers do: it cannot take the traffic.

    The busiest of the eight priorities counts. A port that the fabric pauses is not at fault.
    """
    minimum, unit = view.threshold("nic.pauses_per_second"), "frames/s"
    for outlier in rule_rows.peer_outliers(
        view, rules.NIC, rules.PAUSE_COUNTERS, minimum, PEERS_RATIO
    ):
        host, device = view.name(rules.NIC, outlier.row)
        yield Symptom(
            rule=rules.PAUSES,
            host=host,
            device=device,
            signal=f"nic.{outlier.column}",
            value=round(outlier.rate, 1),
            unit=unit,
            normal=f"below {outlier.limit:,.0f}",
            message=f"{device} pauses its switch {outlier.rate:,.0f} times a second in priority {rules.PAUSE_COUNTERS[outlier.column]} "
            f"(its peers {outlier.peer_median:,.0f})",
            sql=view.sql_with_peers(rules.NIC, outlier.row, outlier.column, unit),
        )


@detects(rules.DEAD)
def dead_processes(view: FleetView) -> Iterator[Symptom]:
    """Name each GPU held by ended processes: the next job finds its memory taken and dies."""
    counts = view.gauge(TABLE, "dead_count")
    memory = view.gauge(TABLE, "dead_memory_bytes")
    for row in np.flatnonzero(counts > 0).tolist():
        host, device = view.name(TABLE, row)
        memory_text = f", with {memory[row] / 1e9:.1f} GB of its memory" if memory[row] > 0 else ""
        many = counts[row] > 1
        processes = f"{counts[row]:.0f} processes that have" if many else "a process that has"
        yield Symptom(
            rule=rules.DEAD,
            host=host,
            device=device,
            signal="gpu_job.dead_count",
            value=float(counts[row]),
            normal="0",
            message=f"{short(device)} is held by {processes} ended{memory_text}: "
            f"whose {'they were' if many else 'it was'} is in ops.gpu_processes",
            sql=view.sql(TABLE, row, "dead_count, dead_memory_bytes", 120),
        )
