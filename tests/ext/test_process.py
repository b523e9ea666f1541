"""What a process asks of Linux about itself."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from gangline.ext import process
from tests.processes import until


def test_a_process_is_named_as_it_says() -> None:
    """Five processes called python in `top`, one of them at 100 %: which one is it?"""
    path = Path("/proc/self/comm")
    before = path.read_text().strip()
    process.name(b"gangline-a-name-too-long")
    try:
        assert path.read_text() == "gangline-a-name\n"
    finally:
        process.name(before.encode())


def test_a_child_dies_with_its_parent() -> None:
    """The daemon was killed: its children held every GPU until somebody found them."""
    told, tell = os.pipe()
    parent = os.fork()
    if not parent:
        child = os.fork()
        if not child:
            process.die_with_parent()
            os.write(tell, f"{os.getpid()}".encode())
            signal.pause()
        signal.pause()
    child = int(os.read(told, 32))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    stat = Path(f"/proc/{child}/stat")
    until(
        lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z",
        "the end of the child",
    )
    os.close(told)
    os.close(tell)


def test_to_be_small_and_to_trim_break_nothing() -> None:
    process.be_small()
    process.trim()
