"""The host itself: cores that are fought over, memory, disks and file systems. Never worse than WATCH."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...model import HealthState, Reason
from .. import rule as readings
from ..rule import (
    RateRule,
    Rule,
    Symptom,
    ThresholdRule,
    above,
    equals,
    farther_than,
    short,
    suspect_rule,
    threshold_symptom,
    watch_rule,
)
from ..view import FleetView

#: Smaller ones (boot, EFI, container mounts) are not judged.
SIZE_BYTES_MIN = 4e9

CPU = Rule(
    "host.cpu_pressure",
    HealthState.WATCH,
    Reason.HOST_CPU,
    "tasks wait for a core less often for a minute",
    enter_seconds=30.0,
)
CPU_STEAL = Rule(
    "host.cpu_steal",
    HealthState.WATCH,
    Reason.HOST_CPU,
    "the hypervisor takes less for a minute",
    enter_seconds=30.0,
)
MEMORY = Rule(
    "host.memory_pressure",
    HealthState.WATCH,
    Reason.HOST_CPU,
    "all tasks wait for memory less often for a minute",
    enter_seconds=30.0,
    hazard_factor=2.0,
)
READ_ONLY = Rule(
    "filesystem.read_only",
    HealthState.WATCH,
    Reason.STORAGE,
    "the file system can be written again",
    leave_seconds=0.0,
    hazard_factor=5.0,
)
FULL = Rule(
    "filesystem.full",
    HealthState.WATCH,
    Reason.STORAGE,
    "the file system has more room",
    leave_seconds=0.0,
    hazard_factor=1.5,
)


def contention(view: FleetView) -> Iterator[Symptom]:
    """Tasks wait for cores or memory, or the hypervisor takes them away."""
    for rule, column, message in (
        (CPU, "pressure_cpu_some_ratio", "tasks waited for a core"),
        (CPU_STEAL, "cpu_steal_ratio", "the hypervisor gave the cores to others"),
        (MEMORY, "pressure_memory_full_ratio", "all tasks waited for memory"),
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


def file_systems(view: FleetView) -> Iterator[Symptom]:
    """A file system turned read-only, or is full."""
    table = "filesystem_60s"
    read_only = view.state(table, "read_only_state") == 1
    size = view.gauge(table, "size_bytes")
    available = view.gauge(table, "available_bytes")
    for row in np.flatnonzero(read_only & view.fleet.ever_up.writable).tolist():
        message = "turned read-only: the kernel gave up writing to it"
        yield _file_system(view, READ_ONLY, row, "read_only_state", 1.0, "0", message)
    share = view.threshold("filesystem.available_ratio")
    least = np.minimum(share * size, view.threshold("filesystem.available_bytes"))
    full = (available < least) & (size >= SIZE_BYTES_MIN)
    for row in np.flatnonzero(full & ~read_only).tolist():
        gigabytes = available[row] / 1e9
        message = f"has {gigabytes:.1f} GB of {size[row] / 1e9:.0f} GB left"
        normal = f"above {least[row] / 1e9:.1f} GB"
        value = float(available[row])
        yield _file_system(view, FULL, row, "available_bytes", value, normal, message)


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


# ----------------------------------------------------------------------
# Parts of the host that give out slowly: memory, drives, the clock, network interfaces. Mostly
# WATCH.
#
# Limits without a source are assumed, and such that a healthy host and an idle one never reach
# them.

#: Repaired errors of one DIMM within ten minutes that are worth a look.
CORRECTED_MIN = 10.0
#: A clock this far off makes logs of two hosts useless beside each other.
OFFSET_SECONDS = 0.1
#: Nobody keeps the clock: time enough for a daemon to start after a boot.
UNSYNCHRONISED_SECONDS = 900.0
#: A link that came or went so often within ten minutes flaps: two losses are four changes.
CARRIER_CHANGES = 4.0
#: A port that holds its switch back so many times as often as its peers (and by a threshold).
PEERS_RATIO = 10.0
QUIET = "no further one within 10 minutes"

EDAC, NVME, NIC = "edac_10s_changes", "nvme_60s", "nic_10s_changes"

MEMORY_COUNTS = (
    RateRule(
        suspect_rule("edac.uncorrected", Reason.ECC_TREND, QUIET, 30.0, leave_seconds=300.0),
        EDAC, "uncorrected_errors", "lost data: host memory errors that ECC could not repair",
    ),
    RateRule(
        watch_rule("edac.corrected", Reason.ECC_TREND, "fewer than 10 within 10 minutes", 2.0,
              leave_seconds=300.0),
        EDAC, "corrected_errors", "repaired errors of host memory", CORRECTED_MIN,
    ),
)  # fmt: skip
MEMORY_STATES = (
    ThresholdRule(
        watch_rule("host.memory_corrupted", Reason.ECC_TREND, "the host boots", 2.0),
        "host_10s", "memory_corrupted_bytes", above(0.0),
        "had {value:,.0f} bytes of memory taken out of use for errors",
    ),
)  # fmt: skip
DRIVE_COUNTS = (
    RateRule(
        watch_rule("nvme.media_errors", Reason.STORAGE, QUIET, 5.0, leave_seconds=300.0),
        NVME, "media_errors", "lost data that it could not correct",
    ),
)  # fmt: skip
DRIVE_STATES = (
    ThresholdRule(
        watch_rule("nvme.critical_warning", Reason.STORAGE, "the drive warns no more", 3.0),
        NVME, "critical_warning_flags", above(0.0),
        "warns: flags {value:.0f} (1 spare, 2 temperature, 4 reliability, 8 read-only)",
    ),
    ThresholdRule(
        watch_rule("nvme.dead", Reason.STORAGE, "the controller is live for 60 s", 5.0,
              enter_seconds=5.0),
        "nvme_10s", "controller_state", equals(5, 6), "is dead: the kernel gave it up", "1",
    ),
)  # fmt: skip
CLOCKS = (
    ThresholdRule(
        watch_rule("clock.offset", Reason.CLOCK, "it is within 0.1 s for 60 s", 1.0, enter_seconds=60.0),
        "clock_10s", "offset_seconds", farther_than(OFFSET_SECONDS),
        "clock still has to be moved by {value:.3f} s", "within 0.1 s",
    ),
    ThresholdRule(
        watch_rule("clock.unsynchronised", Reason.CLOCK, "a time daemon keeps the clock", 1.0,
              enter_seconds=UNSYNCHRONISED_SECONDS),
        "clock_10s", "synchronised_state", equals(0), "clock is not synchronized (no NTP, chrony or PTP)", "1",
    ),
)  # fmt: skip
NETWORK_COUNTS = (
    RateRule(
        watch_rule("net.flaps", Reason.RAIL_DOWN, "fewer than 4 changes within 10 minutes", 5.0,
              leave_seconds=300.0),
        "net_1s_changes", "carrier_changes_count", "network link comes and goes, changes",
        CARRIER_CHANGES,
    ),
    RateRule(
        watch_rule("link.uncorrectable", Reason.FABRIC, QUIET, 3.0, leave_seconds=300.0),
        "link_10s_changes", "fec_uncorrectable_errors",
        "network link lost blocks that FEC could not repair", 10.0,
    ),
    RateRule(  # infiniband-diags (ibcheckerrors) warns from 10 on
        watch_rule("rdma.symbol_errors", Reason.FABRIC, QUIET, 3.0, leave_seconds=300.0),
        "rdma_1s_changes", "symbol_errors", "RDMA link met errors that it could not correct", 10.0,
    ),
    RateRule(
        watch_rule("nic.pause_storm", Reason.FABRIC, QUIET, 3.0, leave_seconds=300.0),
        NIC, "pause_storm_errors_events", "held its switch back until pauses were switched off",
    ),
    RateRule(
        watch_rule("nic.module", Reason.FABRIC, QUIET, 3.0, leave_seconds=300.0),
        NIC, "module_overheated_events", "network module was too hot",
    ),
)  # fmt: skip
BOND = ThresholdRule(
    watch_rule("bond.slave_down", Reason.RAIL_DOWN, "all its interfaces are up for 60 s", 3.0,
          enter_seconds=15.0),
    "bond_10s", "slaves_up_count", above(-1.0),
    "bond runs on {value:.0f} of its interfaces; one is down", "all of them",
)  # fmt: skip
BOND_DOWN = ThresholdRule(
    suspect_rule("bond.down", Reason.RAIL_DOWN, "the bond has a carrier for 60 s", 20.0,
            enter_seconds=15.0),
    "bond_10s", "link_state", equals(0), "bond lost its carrier: none of its interfaces is up", "1",
)  # fmt: skip
PAUSES = watch_rule(
    "nic.pauses",
    Reason.FABRIC,
    "it holds its switch back as seldom as its peers for 60 s",
    1.5,
    enter_seconds=30.0,
)


def host_memory(view: FleetView) -> Iterator[Symptom]:
    """Host memory repairs errors, or lost data."""
    yield from readings.rate_symptoms(view, MEMORY_COUNTS)
    yield from readings.threshold_symptoms(view, MEMORY_STATES)


def drives(view: FleetView) -> Iterator[Symptom]:
    """A drive lost data, warns of its end, or is dead."""
    yield from readings.rate_symptoms(view, DRIVE_COUNTS)
    yield from readings.threshold_symptoms(view, DRIVE_STATES)


def clocks(view: FleetView) -> Iterator[Symptom]:
    """The host's own clock is off, or nobody keeps it."""
    yield from readings.threshold_symptoms(view, CLOCKS)


def networks(view: FleetView) -> Iterator[Symptom]:
    """A network link flaps or loses blocks, or a bond runs on fewer links than it had, or on none."""
    yield from readings.rate_symptoms(view, NETWORK_COUNTS)
    up = view.gauge("bond_10s", "slaves_up_count")
    all_of_them = view.gauge("bond_10s", "slaves_count")
    for row in np.flatnonzero((up < all_of_them) & view.fleet.ever_up.whole_bonds).tolist():
        yield threshold_symptom(view, BOND, row, float(up[row]))
    down = view.state("bond_10s", "link_state") == 0
    down &= view.known("bond_10s", "link_state") & view.fleet.ever_up.bonds_up
    for row in np.flatnonzero(down).tolist():
        yield threshold_symptom(view, BOND_DOWN, row, 0.0)


def pauses(view: FleetView) -> Iterator[Symptom]:
    """A port holds its switch back far more than its peers: it cannot take what is sent to it.

    By the busiest of the eight priorities; that the fabric pauses a port is no fault of the port.
    """
    least, unit = view.threshold("nic.pauses_per_second"), "frames/s"
    priorities = {f"priority_{each}_transmitted_pause_frames": each for each in range(8)}
    for one in readings.peer_outliers(view, NIC, priorities, least, PEERS_RATIO):
        host, device = view.name(NIC, one.row)
        yield Symptom(
            rule=PAUSES,
            host=host,
            device=device,
            signal=f"nic.{one.column}",
            value=round(one.rate, 1),
            unit=unit,
            normal=f"below {one.limit:,.0f}",
            message=f"{device} holds its switch back {one.rate:,.0f} times a second in priority {priorities[one.column]} "
            f"(its peers {one.peer_median:,.0f})",
            sql=view.sql_with_peers(NIC, one.row, one.column, unit),
        )


# ----------------------------------------------------------------------
# GPUs that nobody uses and nobody can use: what a process held that has ended.

TABLE = "gpu_job_1s_changes"

#: A process that ends is listed for moments; a driver that frees 80 GB takes seconds (assumed).
DEAD = Rule(
    "gpu.held_by_the_dead",
    HealthState.DEGRADED,
    Reason.DRIVER_HUNG,
    "the driver lists no process that has ended: whoever inherited /dev/nvidia* of it is ended (`fuser -v /dev/nvidia*`), or "
    "a zombie's parent, or the GPU is reset",
    enter_seconds=30.0,
    leave_seconds=10.0,
    hazard_factor=20.0,
)


def dead_processes(view: FleetView) -> Iterator[Symptom]:
    """The driver lists processes that have ended: the next job finds the memory taken, and dies of it."""
    counts = view.gauge(TABLE, "dead_count")
    memory = view.gauge(TABLE, "dead_memory_bytes")
    for row in np.flatnonzero(counts > 0).tolist():
        host, device = view.name(TABLE, row)
        memory_text = f", with {memory[row] / 1e9:.1f} GB of its memory" if memory[row] > 0 else ""
        many = counts[row] > 1
        processes = f"{counts[row]:.0f} processes that have" if many else "a process that has"
        yield Symptom(
            rule=DEAD,
            host=host,
            device=device,
            signal="gpu_job.dead_count",
            value=float(counts[row]),
            normal="0",
            message=f"{short(device)} is held by {processes} ended{memory_text}: "
            f"whose {'they were' if many else 'it was'} is in ops.gpu_processes",
            sql=view.sql(TABLE, row, "dead_count, dead_memory_bytes", 120),
        )
