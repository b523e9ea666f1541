"""A mount point that does not answer, with the real collectors in real processes and a real mount."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline.agent.collector import call_slot_name
from tests import hosts
from tests.agent.sampler import fuse
from tests.processes import Process, until

#: Two local filesystems, as in /proc/self/mountinfo; their devices are not used.
MOUNTINFO = (
    "28 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n"
    "81 28 259:5 / {} rw,relatime shared:2 - xfs /dev/nvme1n1 rw\n"
)
PORTS = [f"mlx5_{port}/1" for port in range(4)]
#: The daemon's two and a standby, an abandoned process, and a trial.
PROCESSES_MAX = 5


@pytest.mark.slow
def test_a_mount_point_that_hangs_is_named_and_everything_else_goes_on(tmp_path: Path) -> None:
    """The scratch disk died under its mount: `df` hung, and each health check with it."""
    hosts.unpack("h100-ib", tmp_path)
    point = tmp_path / "scratch"
    (tmp_path / "proc/self").mkdir(exist_ok=True)
    (tmp_path / "proc/self/mountinfo").write_text(MOUNTINFO.format(point))
    arguments = ([str(tmp_path)], tmp_path / "log", "tests.agent.sampler.real_mounts")
    with fuse.mounted(point, []) as files, Process(*arguments) as process:
        lines = process.records

        def until_read(table: str, *devices: str) -> None:
            done = len(lines())
            until(
                lambda: any(set(devices) == set(e["read"].get(table, ())) for e in lines()[done:]),
                f"{table} of {devices}: {lines()[-1:]}",
            )

        until_read("filesystem_60s", "/", str(point))
        until_read("rdma_1s", *PORTS)
        files.stick(fuse.MOUNT)
        until(lambda: lines()[-1]["states"], "the mount point out")
        assert lines()[-1]["states"] == {call_slot_name(str(point)): ["ABANDONED", "statvfs"]}
        hung = len(lines())
        for _ in range(2):
            until_read("filesystem_60s", "/")
            until_read("rdma_1s", *PORTS)
        assert files.waiting() == 1  # no other process has entered it
        assert max(line["processes"] for line in lines()[hung:]) <= PROCESSES_MAX
        files.let(fuse.MOUNT)
        until_read("filesystem_60s", "/", str(point))  # by the same daemon
