"""Parts of the host that give out slowly: memory, drives, the clock, network interfaces. Mostly WATCH.

Limits without a source are assumed, and such that a healthy host and an idle one never reach them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...verdicts import Reason
from .. import readings
from ..present import Present
from ..readings import (
    Counted,
    Standing,
    above,
    beyond,
    equals,
    stands,
    suspect,
    watch,
)
from ..symptoms import Symptom

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
        "clock_10s", "synchronised_state", equals(0), "clock is kept by nobody", "1",
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
    """A network link flaps or loses blocks, or a bond runs on fewer links than it had."""
    yield from readings.counted(present, NETWORK_COUNTS)
    up = present.gauge("bond_10s", "slaves_up_count")
    all_of_them = present.gauge("bond_10s", "slaves_count")
    for row in np.flatnonzero((up < all_of_them) & present.fleet.seen.whole_bonds).tolist():
        yield stands(present, BOND, row, float(up[row]))


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
