"""Waits until a process of tests has ended, however it did, and kills what that one has left.

    python -S orphans.py PID

What it has left bears GANGLINE_TESTS_OF=PID in its environment, and a mount is of `gangline-test-PID`: while one lies
in pytest's folders, these cannot be removed, and no later run begins. A program of its own, in a session of its own: kill -9
and the guard of a test that hangs end the tests without running any of their code.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path


def left(mark: bytes) -> list[int]:
    """Return the processes whose environment holds *mark*."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue  # it has ended, or is not ours
    return found


def main(tests: int) -> None:
    """Entry point. Returns at once; who waits is nobody's child, for some tests count theirs."""
    ended = os.pidfd_open(tests)
    if os.fork():
        return
    os.setsid()
    select.select([ended], [], [])
    for pid in left(b"GANGLINE_TESTS_OF=%d" % tests):
        if pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    for line in Path("/proc/mounts").read_text().splitlines():
        if line.startswith(f"gangline-test-{tests} "):
            subprocess.run(["umount", line.split()[1]], check=False)


if __name__ == "__main__":
    main(int(sys.argv[1]))
