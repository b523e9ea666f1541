"""Requests of a process to Linux about itself."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gangline.ext import process
from tests.processes import GUARD_SECONDS, until

GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc")
#: Thirty megabytes freed below memory still in use: malloc(3) keeps them.
FREED = """
from gangline.ext import process
def resident(): return int(open("/proc/self/statm").read().split()[1])
blocks = [bytes(1000) for _ in range(30_000)]
held = bytes(1000)
del blocks
before = resident()
process.trim()
print(before - resident())
"""
#: Four threads that allocate at once; an arena is 64 MiB of addresses.
THREADS = """
import threading
from gangline.ext import process
{first}
def mapped(): return int(open("/proc/self/statm").read().split()[0])
threading.stack_size(1 << 18)
before, met = mapped(), threading.Barrier(5)
def allocate():
    held = bytes(1000)
    met.wait(200)
    met.wait(200)
for _ in range(4):
    threading.Thread(target=allocate).start()
met.wait(200)
print(mapped() - before)
met.wait(200)
"""


def test_a_process_is_named_as_it_says() -> None:
    """Five processes called python in `top`, one of them at 100 %: the names must differ."""
    path = Path("/proc/self/comm")
    before = path.read_text().strip()
    process.name(b"gangline-a-name-too-long")
    try:
        assert path.read_text() == "gangline-a-name\n"
    finally:
        process.name(before.encode())


def test_a_child_dies_with_its_parent() -> None:
    """The daemon was killed: its children held every GPU until an operator found them."""
    read_end, tell = os.pipe()
    parent = os.fork()
    if not parent:
        child = os.fork()
        if not child:
            process.die_with_parent()
            os.write(tell, f"{os.getpid()}".encode())
            signal.pause()
        signal.pause()
    child = int(os.read(read_end, 32))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    stat = Path(f"/proc/{child}/stat")
    until(
        lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z",
        "the end of the child",
    )
    os.close(read_end)
    os.close(tell)


def bytes_said(program: str) -> int:
    """Run it in a process of its own; return the printed bytes of its pages."""
    command = [sys.executable, "-c", program]
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=GUARD_SECONDS)
    return int(out.stdout) * os.sysconf("SC_PAGE_SIZE")


@GLIBC
def test_what_was_freed_is_given_back() -> None:
    """A daemon that read a large inventory once kept its memory for months."""
    assert bytes_said(FREED) > 20 << 20


@GLIBC
def test_threads_share_an_arena() -> None:
    """Each thread filled an arena of its own, and other threads could not use its freed memory."""
    assert bytes_said(THREADS.format(first="process.be_small()")) < 64 << 20
    assert bytes_said(THREADS.format(first="")) >= 4 * (64 << 20)
