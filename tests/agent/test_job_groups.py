"""Use of the host by each job, from files of control groups of both versions, and of this kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.hardware.isolation_facts import parse_paths
from gangline.agent.hardware.job_groups import (
    GroupUse,
    JobGroupReader,
    parse_fields,
    parse_io_stat,
    parse_service_bytes,
)
from tests.agent.fakes import named
from tests.isolated_host import DISK, INFERENCE, TRAINING, IsolatedHost

CPUACCT = Path("/sys/fs/cgroup/cpuacct")
V2 = {
    "cpu.stat": "usage_usec 7000000\nuser_usec 6000000\nsystem_usec 1000000\n",
    "io.stat": f"{DISK} rbytes=1000 wbytes=300 rios=3 wios=4\n253:0 rbytes=9000 wbytes=9000\n",
    "memory.stat": "anon 5\nfile 4096\nactive_file 2048\n",
}
V1 = {
    "cpuacct/{}/cpuacct.usage": "7000000000\n",
    "blkio/{}/blkio.throttle.io_service_bytes_recursive": f"{DISK} Read 1000\n{DISK} Write 300\n{DISK} Total 1300\n253:0 Read 9000\nTotal 10300\n",
    "memory/{}/memory.stat": "active_file 7\ntotal_active_file 2048\n",
}  # fmt: skip


def written(host: IsolatedHost, job: str) -> None:
    """Write the files of a pod's control group; those of its container have less."""
    pod = host.folder_of(job, "cpuset").parent.relative_to(host.roots.sys / "fs/cgroup")
    for name, text in V1.items() if host.v1 else V2.items():
        group = str(pod).removeprefix("cpuset/")
        path = host.roots.sys / "fs/cgroup" / (name.format(group) if host.v1 else f"{group}/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize("v1", [False, True])
def test_each_job_on_a_shared_host_has_its_use(tmp_path: Path, v1: bool) -> None:
    """Mapped devices do not count again, and all processes of a pod count."""
    host = IsolatedHost(tmp_path, v1=v1)
    if v1:
        for pid in (4711, 4712):
            cgroup = host.proc / str(pid) / "cgroup"
            text = cgroup.read_text()
            cgroup.write_text(
                text
                + text.splitlines()[0].replace("cpuset", "cpuacct")
                + "\n"
                + text.splitlines()[0].replace("cpuset", "memory")
                + "\n"
            )
    written(host, TRAINING)
    collector = host.collector()
    host.observed(collector)
    blocks = host.turn(collector, *host.all_holdings()).blocks
    (block,) = [block for block in blocks if block.table == "job_group_1s"]
    rows = dict(zip(block.devices, (named(block, row) for row in range(2)), strict=True))
    assert rows[TRAINING] == {
        "cpu_nanoseconds": 7_000_000_000, "read_bytes": 1000, "written_bytes": 300, "file_cache_active_bytes": 2048.0,
    }  # fmt: skip
    assert set(rows[INFERENCE].values()) == {None}


def test_a_host_with_one_job_sends_nothing_more(tmp_path: Path) -> None:
    """The readings of the host are those of the job."""
    host = IsolatedHost(tmp_path)
    host.holds[INFERENCE] = []
    collector = host.collector()
    host.observed(collector)
    assert [b.table for b in host.turn(collector, *host.all_holdings()).blocks] == [
        "gpu_job_1s_changes"
    ]


@pytest.mark.skipif(
    os.geteuid() != 0 or not os.access(CPUACCT / "cgroup.procs", os.W_OK),
    reason="needs root and writable control groups of version 1",
)
def test_cores_of_this_kernel() -> None:
    folder = CPUACCT / f"gangline-test-{os.getpid()}"
    folder.mkdir()
    command = [
        sys.executable,
        "-c",
        "import sys, time; sys.stdin.readline()\nwhile time.process_time() < 0.3: pass",
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        (folder / "cgroup.procs").write_text(str(process.pid))
        paths = parse_paths(Path(f"/proc/{process.pid}/cgroup").read_text())
        before = JobGroupReader(Path("/sys")).read(paths)
        process.communicate(b"\n")
        after = JobGroupReader(Path("/sys")).read(paths)
        assert before.cpu_nanoseconds is not None
        assert after.cpu_nanoseconds is not None
        assert after.cpu_nanoseconds - before.cpu_nanoseconds > 0.2e9
    finally:
        process.kill()
        process.wait()
        folder.rmdir()


def test_missing_files_have_no_numbers(tmp_path: Path) -> None:
    assert JobGroupReader(tmp_path).read({"": "/a"}) == GroupUse()


@given(st.text(alphabet=st.sampled_from("0123:= rwbytesReadWrite\n\t-"), max_size=200))
def test_odd_texts_give_numbers_or_nothing(text: str) -> None:
    for value in (
        *parse_io_stat(text, {DISK}),
        *parse_service_bytes(text, {DISK}),
        *parse_fields(text).values(),
    ):
        assert value is None or value >= 0
