"""Waits until a process of tests has ended, however it did, and kills what that one has left.

    python -S orphans.py PID MARK

What it has left bears GANGLINE_TESTS_OF=MARK in its environment, which no other run has, also not one in a container
where another process is PID; a mount is of `gangline-test-PID`: while one lies
in pytest's folders, these cannot be removed, and no later run begins. A program of its own, in a session of its own: kill -9
and the guard of a test that hangs end the tests without running any of their code.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

#: Who was starting another while we looked is met the next time.
ROUNDS_MAX, ROUND_SECONDS = 20, 0.05


def left(mark: bytes) -> list[int]:
    """Return the processes whose environment holds *mark*, but for this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            marked = mark in (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended, or is not ours
        if marked and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def main(tests: int, mark: str) -> None:
    """Entry point. Returns at once; who waits is nobody's child, for some tests count theirs."""
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
