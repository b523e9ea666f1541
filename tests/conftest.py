"""What holds for all tests."""

import faulthandler
import gc
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# A deadline is a timed assertion: on a machine that others use too it fails for no fault of ours.
settings.register_profile("house", deadline=None)
settings.load_profile("house")

#: A test, or its begin or end, that takes longer than this hangs. The longest takes 50 s alone, and ten times
#: as long on a slow machine that is busy.
HANGS_SECONDS = 1200.0
#: These take longest, and most of it they wait: begun first, so that others work beside them and none of them is last.
LONGEST = (
    *("test_duckdb2.py", "test_run.py", "test_killed.py", "test_build.py", "test_soak.py"),
    *("test_survival.py", "test_upgrade.py", "test_stores.py", "test_sick_gpus.py"),
    *("test_sick_agent.py", "test_soak_gpu.py"),
)
_STDERR = pytest.StashKey[int]()

# How wide the terminal is of whoever runs the tests decides no table: pytest-xdist says 80.
os.environ.pop("COLUMNS", None)


def pytest_configure(config: pytest.Config) -> None:
    """Keep the true stderr: while a test runs, descriptor 2 is a file that nobody sees if it hangs."""
    config.stash[_STDERR] = os.dup(2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest first; with `--no-loadscope-reorder` they are handed out in this order."""
    at = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: at.get(item.path.name, len(LONGEST)))


def pytest_collection_finish() -> None:
    """What stays until the end is no garbage: to look through thousands of tests, again and again, costs each of them."""
    gc.collect()
    gc.freeze()


def _guard(item: pytest.Item) -> None:
    """What hangs ends this process with the stacks of all threads; pytest-xdist names the test, and the run ends.

    Not pytest's `faulthandler_timeout`: that one guards neither what follows a failure nor the end of the process.
    """
    file = item.config.stash[_STDERR]
    faulthandler.dump_traceback_later(HANGS_SECONDS, exit=True, file=file)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Guard its fixtures."""
    _guard(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Guard the test."""
    _guard(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Guard the end of its fixtures, and of the process after the last."""
    _guard(item)


def pytest_enter_pdb() -> None:
    """Who looks at a test in a debugger (`--pdb`, `breakpoint()`) takes as long as it takes."""
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session", autouse=True)
def nobody_outlives_us() -> None:
    """A run that hung, or was killed, left aggregators behind that held ports and memory: see orphans.py."""
    pid = str(os.getpid())
    os.environ["GANGLINE_TESTS_OF"] = mark = f"{pid}-{secrets.token_hex(8)}"
    program = Path(__file__).with_name("orphans.py")
    subprocess.run([sys.executable, "-S", program, pid, mark], check=True)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder for Unix sockets, whose paths have room for 107 bytes: `tmp_path` names the test."""
    path = Path(tempfile.mkdtemp(prefix="gangline-"))
    yield path
    shutil.rmtree(path)
