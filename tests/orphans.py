"""Waits until a process of tests has ended, in any way, and kills its leftover processes.

python -S orphans.py PID MARK

Leftovers have GANGLINE_TESTS_OF=MARK in their environment, which no other run has, not even in a
container where another process is PID; a mount has the name `gangline-test-PID`: while it exists in
pytest's folders, they cannot be removed, and no later run begins. A separate program in its own
session: kill -9 and the guard of a hanging test end the tests without running any of their code.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

#: A process that was just starting another is killed in the next round.
ROUNDS_MAX, ROUND_SECONDS = 20, 0.05


def left(mark: bytes) -> list[int]:
    """Return the processes whose environment has *mark*, except this process."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            marked = mark in (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # the process has ended, or belongs to another user
        if marked and int(folder.name) != os.getpid():
            pids.append(int(folder.name))
    return pids


def main(tests: int, mark: str) -> None:
    """Entry point. Returns at once; the waiting process has no parent, because some tests count their children."""
    ended = os.pidfd_open(tests)
    if os.fork():
        return
    os.setsid()
    select.select([ended], [], [])
    for _ in range(ROUNDS_MAX):
        if not (pids := left(b"GANGLINE_TESTS_OF=" + mark.encode())):
            break
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(ROUND_SECONDS)
    for line in Path("/proc/mounts").read_text().splitlines():
        if line.startswith(f"gangline-test-{tests} "):
            subprocess.run(["umount", line.split()[1]], check=False)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
