"""The STARTD_CRON script of HTCondor: what it makes of the file of `gangline mirror`, and what a real pool makes of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from gangline.executors.mirror_format import MirrorNode, render
from tests.condor_pool import MISSING, condor_pool, has_condor
from tests.debian13 import debian13
from tests.processes import GUARD_SECONDS

SCRIPT = Path(__file__).parents[2] / "executors" / "htcondor" / "gangline_attributes.sh"
NOTHING = "GanglineUntil = 0\n-\n"
#: The two lines of docs/batch_schedulers.md.
POLICY = """
START = $(START) && (time() >= (GanglineUntil ?: 0) || GanglineReady =!= False)
NEGOTIATOR_POST_JOB_RANK = ifThenElse(time() < (GanglineUntil ?: 0), -1 * GanglineBucket, 0)
"""


def mirror(valid_until: float, *, degraded: bool = False) -> bytes:
    nodes = [
        MirrorNode("n1", 3, False, 0.31, 1e-2, 0.9, "UNHEALTHY", "XID 79"),
        MirrorNode("n2", 2, True, 0.71, 1e-3, 1.0, "WATCH", ""),
        MirrorNode("n3", 0, True, 0.9931, 1e-5, 1.0, "HEALTHY", ""),
    ]
    return render(nodes, computed_seconds=int(time.time()), valid_until_seconds=int(valid_until), degraded=degraded)  # fmt: skip


def printed(file: Path, host: str) -> str:
    done = subprocess.run([SCRIPT, str(file), host], capture_output=True, text=True, check=True, timeout=GUARD_SECONDS)  # fmt: skip
    assert done.stderr == ""
    return done.stdout


def test_what_is_known_of_a_machine(tmp_path: Path) -> None:
    file, until = tmp_path / "nodes", int(time.time()) + 50
    file.write_bytes(mirror(until))
    assert printed(file, "n1") == (
        f'GanglineScore = 0.3100\nGanglineBucket = 3\nGanglineReady = False\nGanglineReason = "XID 79"\nGanglineUntil = {until}\n-\n'
    )
    assert "GanglineBucket = 0\nGanglineReady = True" in printed(file, "n3")
    file.write_bytes(mirror(until, degraded=True))
    assert "GanglineReady = True" in printed(file, "n1"), "a degraded picture excludes nobody"


def test_a_file_that_is_not_whole_and_current_says_nothing(tmp_path: Path) -> None:
    """Gangline away, a file cut short, or one that somebody planted: HTCondor goes on as without it."""
    file, now = tmp_path / "nodes", time.time()
    whole = mirror(now + 50)
    assert printed(file, "n1") == NOTHING
    for content in (b"", b"x\n" * 1000, whole[:-1], whole[:-200], whole + b" ", mirror(now - 5), mirror(now + 600)):  # fmt: skip
        file.write_bytes(content)
        assert printed(file, "n1") == NOTHING
    file.write_bytes(whole)
    assert printed(file, "n9") == NOTHING
    assert printed(file, ".*") == NOTHING
    file.chmod(0o666)
    assert printed(file, "n1") == NOTHING
    file.chmod(0o644)
    link = tmp_path / "link"
    link.symlink_to(file)
    assert printed(link, "n1") == NOTHING
    os.mkfifo(tmp_path / "fifo")
    assert printed(tmp_path / "fifo", "n1") == NOTHING
    tmp_path.chmod(0o777)  # others may put another file there
    assert printed(file, "n1") == NOTHING


@pytest.mark.slow
@pytest.mark.skipif(not has_condor(), reason=MISSING)
def test_a_real_pool_starts_nothing_on_a_bad_machine_and_prefers_good_ones() -> None:
    """A job of two of three machines takes the two that are ready; when the file has ended, all three are used again."""
    folder = debian13() / "srv" / f"mirror-{os.getpid()}"
    folder.mkdir()
    inside = f"/srv/{folder.name}"
    try:
        shutil.copy(SCRIPT, folder / "script.sh")
        # Each machine by its own name: the pool's eight are one host.
        (folder / "cron.sh").write_text(f'#!/bin/sh\nexec {inside}/script.sh {inside}/nodes "${{_CONDOR_NETWORK_HOSTNAME}}"\n')  # fmt: skip
        (folder / "cron.sh").chmod(0o755)
        cron = f"STARTD_CRON_JOBLIST = GANGLINE\nSTARTD_CRON_GANGLINE_EXECUTABLE = {inside}/cron.sh\nSTARTD_CRON_GANGLINE_PERIOD = 1s\n"

        def write(valid_until: float) -> None:
            (folder / "new").write_bytes(mirror(valid_until))
            (folder / "new").rename(folder / "nodes")

        write(time.time() + 58)
        with condor_pool(3, cron + POLICY) as pool:

            def attributes() -> dict[str, str]:
                rows = pool.run(["condor_status", "-af", "Machine", "GanglineBucket", "GanglineReady"])  # fmt: skip
                return dict(row.split(" ", 1) for row in rows.splitlines())

            def shown() -> bool:
                write(time.time() + 58)
                return attributes() == {"n1.local": "3 false", "n2.local": "2 true", "n3.local": "0 true"}  # fmt: skip

            def hosts() -> str:
                write(time.time() + 58)
                return pool.run(["condor_q", "-allusers", "-af", "AllRemoteHosts"])

            pool.until(shown, "the attributes are in the pool")
            pool.submit(1)
            pool.until(lambda: "n3" in hosts(), "the best machine is taken first")
            pool.submit(1)
            pool.until(lambda: "n2" in hosts(), "then the next")
            pool.submit(1)
            for _ in range(5):
                assert "n1" not in hosts()
                time.sleep(1)
            (folder / "nodes").unlink()
            pool.until(lambda: "n1" in pool.run(["condor_q", "-allusers", "-af", "AllRemoteHosts"]), "without Gangline all are used")  # fmt: skip
    finally:
        shutil.rmtree(folder)
