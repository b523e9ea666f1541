"""The host itself: cores that are fought over, memory, disks and file systems. Never worse than WATCH."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...model import Reason, State
from .. import rule as readings
from ..rule import (
    Counted,
    Rule,
    Standing,
    Symptom,
    above,
    beyond,
    equals,
    short,
    stands,
    suspect,
    watch,
)
from ..view import Present

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
    Counted(
        suspect("edac.uncorrected", Reason.ECC_TREND, QUIET, 30.0, leave_seconds=300.0),
        EDAC, "uncorrected_errors", "lost data: host memory errors that ECC could not repair",
    ),
    Counted(
        watch("edac.corrected", Reason.ECC_TREND, "fewer than 10 within 10 minutes", 2.0,
              leave_seconds=300.0),
        EDAC, "corrected_errors", "repaired errors of host memory", CORRECTED_MIN,
    ),
)  # fmt: skip
MEMORY_STANDS = (
    Standing(
        watch("host.memory_corrupted", Reason.ECC_TREND, "the host boots", 2.0),
        "host_10s", "memory_corrupted_bytes", above(0.0),
        "had {value:,.0f} bytes of memory taken out of use for errors",
    ),
)  # fmt: skip
DRIVE_COUNTS = (
    Counted(
        watch("nvme.media_errors", Reason.STORAGE, QUIET, 5.0, leave_seconds=300.0),
        NVME, "media_errors", "lost data that it could not correct",
    ),
)  # fmt: skip
DRIVE_STANDS = (
    Standing(
        watch("nvme.critical_warning", Reason.STORAGE, "the drive warns no more", 3.0),
        NVME, "critical_warning_flags", above(0.0),
        "warns: flags {value:.0f} (1 spare, 2 temperature, 4 reliability, 8 read-only)",
    ),
    Standing(
        watch("nvme.dead", Reason.STORAGE, "the controller is live for 60 s", 5.0,
              enter_seconds=5.0),
        "nvme_10s", "controller_state", equals(5, 6), "is dead: the kernel gave it up", "1",
    ),
)  # fmt: skip
CLOCKS = (
    Standing(
        watch("clock.offset", Reason.CLOCK, "it is within 0.1 s for 60 s", 1.0, enter_seconds=60.0),
        "clock_10s", "offset_seconds", beyond(OFFSET_SECONDS),
        "clock still has to be moved by {value:.3f} s", "within 0.1 s",
    ),
    Standing(
        watch("clock.unsynchronised", Reason.CLOCK, "a time daemon keeps the clock", 1.0,
              enter_seconds=UNSYNCHRONISED_SECONDS),
        "clock_10s", "synchronised_state", equals(0), "clock is not synchronized (no NTP, chrony or PTP)", "1",
    ),
)  # fmt: skip
NETWORK_COUNTS = (
    Counted(
        watch("net.flaps", Reason.RAIL_DOWN, "fewer than 4 changes within 10 minutes", 5.0,
              leave_seconds=300.0),
        "net_1s_changes", "carrier_changes_count", "network link comes and goes, changes",
        CARRIER_CHANGES,
    ),
    Counted(
        watch("link.uncorrectable", Reason.FABRIC, QUIET, 3.0, leave_seconds=300.0),
        "link_10s_changes", "fec_uncorrectable_errors",
        "network link lost blocks that FEC could not repair", 10.0,
    ),
    Counted(  # infiniband-diags (ibcheckerrors) warns from 10 on
        watch("rdma.symbol_errors", Reason.FABRIC, QUIET, 3.0, leave_seconds=300.0),
        "rdma_1s_changes", "symbol_errors", "RDMA link met errors that it could not correct", 10.0,
    ),
    Counted(
        watch("nic.pause_storm", Reason.FABRIC, QUIET, 3.0, leave_seconds=300.0),
        NIC, "pause_storm_errors_events", "held its switch back until pauses were switched off",
    ),
    Counted(
        watch("nic.module", Reason.FABRIC, QUIET, 3.0, leave_seconds=300.0),
        NIC, "module_overheated_events", "network module was too hot",
    ),
)  # fmt: skip
BOND = Standing(
    watch("bond.slave_down", Reason.RAIL_DOWN, "all its interfaces are up for 60 s", 3.0,
          enter_seconds=15.0),
    "bond_10s", "slaves_up_count", above(-1.0),
    "bond runs on {value:.0f} of its interfaces; one is down", "all of them",
)  # fmt: skip
BOND_DOWN = Standing(
    suspect("bond.down", Reason.RAIL_DOWN, "the bond has a carrier for 60 s", 20.0,
            enter_seconds=15.0),
    "bond_10s", "link_state", equals(0), "bond lost its carrier: none of its interfaces is up", "1",
)  # fmt: skip
PAUSES = watch(
    "nic.pauses",
    Reason.FABRIC,
    "it holds its switch back as seldom as its peers for 60 s",
    1.5,
    enter_seconds=30.0,
)


def host_memory(present: Present) -> Iterator[Symptom]:
    """Host memory repairs errors, or lost data."""
    yield from readings.counted(present, MEMORY_COUNTS)
    yield from readings.standing(present, MEMORY_STANDS)


def drives(present: Present) -> Iterator[Symptom]:
    """A drive lost data, warns of its end, or is dead."""
    yield from readings.counted(present, DRIVE_COUNTS)
    yield from readings.standing(present, DRIVE_STANDS)


def clocks(present: Present) -> Iterator[Symptom]:
    """The host's own clock is off, or nobody keeps it."""
    yield from readings.standing(present, CLOCKS)


def networks(present: Present) -> Iterator[Symptom]:
    """A network link flaps or loses blocks, or a bond runs on fewer links than it had, or on none."""
    yield from readings.counted(present, NETWORK_COUNTS)
    up = present.gauge("bond_10s", "slaves_up_count")
    all_of_them = present.gauge("bond_10s", "slaves_count")
    for row in np.flatnonzero((up < all_of_them) & present.fleet.seen.whole_bonds).tolist():
        yield stands(present, BOND, row, float(up[row]))
    down = present.state("bond_10s", "link_state") == 0
    down &= present.known("bond_10s", "link_state") & present.fleet.seen.bonds_up
    for row in np.flatnonzero(down).tolist():
        yield stands(present, BOND_DOWN, row, 0.0)


def pauses(present: Present) -> Iterator[Symptom]:
    """A port holds its switch back far more than its peers: it cannot take what is sent to it.

    By the busiest of the eight priorities; that the fabric pauses a port is no fault of the port.
    """
    least, unit = present.threshold("nic.pauses_per_second"), "frames/s"
    priorities = {f"priority_{each}_transmitted_pause_frames": each for each in range(8)}
    for one in readings.far_from_peers(present, NIC, priorities, least, PEERS_RATIO):
        host, device = present.name(NIC, one.row)
        yield Symptom(
            rule=PAUSES,
            host=host,
            device=device,
            signal=f"nic.{one.column}",
            value=round(one.rate, 1),
            unit=unit,
            normal=f"below {one.limit:,.0f}",
            words=f"{device} holds its switch back {one.rate:,.0f} times a second in priority {priorities[one.column]} "
            f"(its peers {one.usual:,.0f})",
            sql=present.sql_beside_peers(NIC, one.row, one.column, unit),
        )


# ----------------------------------------------------------------------
# GPUs that nobody uses and nobody can use: what a process held that has ended.

TABLE = "gpu_job_1s_changes"

#: A process that ends is listed for moments; a driver that frees 80 GB takes seconds (assumed).
DEAD = Rule(
    "gpu.held_by_the_dead",
    State.DEGRADED,
    Reason.DRIVER_HUNG,
    "the driver lists no process that has ended: whoever inherited /dev/nvidia* of it is ended (`fuser -v /dev/nvidia*`), or "
    "a zombie's parent, or the GPU is reset",
    enter_seconds=30.0,
    leave_seconds=10.0,
    hazard_factor=20.0,
)


def dead_holders(present: Present) -> Iterator[Symptom]:
    """The driver lists processes that have ended: the next job finds the memory taken, and dies of it."""
    counts = present.gauge(TABLE, "dead_count")
    memory = present.gauge(TABLE, "dead_memory_bytes")
    for row in np.flatnonzero(counts > 0).tolist():
        host, device = present.name(TABLE, row)
        held = f", with {memory[row] / 1e9:.1f} GB of its memory" if memory[row] > 0 else ""
        many = counts[row] > 1
        who = f"{counts[row]:.0f} processes that have" if many else "a process that has"
        yield Symptom(
            rule=DEAD,
            host=host,
            device=device,
            signal="gpu_job.dead_count",
            value=float(counts[row]),
            normal="0",
            words=f"{short(device)} is held by {who} ended{held}: "
            f"whose {'they were' if many else 'it was'} is in ops.gpu_processes",
            sql=present.sql(TABLE, row, "dead_count, dead_memory_bytes", 120),
        )
