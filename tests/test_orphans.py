"""Leftovers of a killed test run are removed, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.processes import GUARD_SECONDS

PROGRAM = Path(__file__).with_name("orphans.py")


@contextmanager
def sleeping(mark: str | None) -> Iterator[subprocess.Popen[bytes]]:
    others = {name: value for name, value in os.environ.items() if name != "GANGLINE_TESTS_OF"}
    environment = others if mark is None else {**others, "GANGLINE_TESTS_OF": mark}
    child = subprocess.Popen(["sleep", "60"], env=environment)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def test_only_what_bears_the_mark_of_a_run_ends_with_it() -> None:
    """In a container beside ours another run was of the same number: its aggregators were killed under its tests."""
    with ExitStack() as stack:
        tests = stack.enter_context(sleeping(None))
        mine = stack.enter_context(sleeping(f"{tests.pid}-a"))
        others = [
            stack.enter_context(sleeping(mark)) for mark in (str(tests.pid), f"{tests.pid}-b", None)
        ]
        command = [sys.executable, "-S", str(PROGRAM), str(tests.pid), f"{tests.pid}-a"]
        waiting = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
        assert waiting.wait(GUARD_SECONDS) == 0 and waiting.stdout
        assert mine.poll() is None, "it waits"
        tests.kill()
        tests.wait(GUARD_SECONDS)
        assert waiting.stdout.read() == b"", "until the one who waits has ended"
        assert mine.wait(GUARD_SECONDS) == -9
        assert [other.poll() for other in others] == [None] * 3
