"""Settings of all tests."""

import faulthandler
import gc
import itertools
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import is_hypothesis_test, settings

from tests import real_systems
from tests.coroutines import pytest_pyfunc_call  # noqa: F401
from tests.real_systems import pytest_itemcollected  # noqa: F401

# grpcio writes to stderr at a fork beside its threads, and errors of another test's server that is ending: such a line
# comes from any thread at any time, and tests count the lines of stderr.
os.environ["GRPC_VERBOSITY"] = "NONE"

# A deadline is a timed assertion: on a loaded machine it fails although the program is right. `make test` tries the
# same 25 examples of each property every time; `make test-slow` passes `--hypothesis-profile thorough`.
settings.register_profile("quick", deadline=None, max_examples=25, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=100)
settings.load_profile("quick")

#: A test, or its begin or end, that takes longer than this hangs. The longest takes 50 s alone, and ten times
#: as long on a slow machine that is busy.
HANGS_SECONDS = 1200.0
#: The slowest tests, which mostly wait: started first, so that others run meanwhile and none of
#: them is last.
LONGEST = (
    *(
        "test_duckdb2.py",
        "test_lowest.py",
        "test_run.py",
        "test_killed.py",
        "test_build.py",
        "test_soak.py",
    ),
    *("test_survival.py", "test_upgrade.py", "test_stores.py", "test_sick_gpus.py"),
    *("test_sick_agent.py", "test_soak_gpu.py"),
)
#: Folder of the tests' temporary files: a hundred thousand small files took most of a disk's time,
#: and of the tests'.
IN_MEMORY = Path("/dev/shm")
#: Minimum of free space there; the tests use about 1 GB at a time.
IN_MEMORY_BYTES_MIN = 4 << 30
#: Fixtures of session scope that start a real system: all files that name the fixture run in one worker.
SHARED_SYSTEMS = ("real_cluster",)
_STDERR = pytest.StashKey[int]()

# The width of the user's terminal must not change any table: pytest-xdist sets 80.
os.environ.pop("COLUMNS", None)


def pytest_configure(config: pytest.Config) -> None:
    """Keep the true stderr: during a test descriptor 2 is a file that stays hidden if the test hangs."""
    config.stash[_STDERR] = os.dup(2)
    if "TMPDIR" not in os.environ and _has_room(IN_MEMORY):
        os.environ["TMPDIR"] = str(IN_MEMORY)  # for child processes, too
        tempfile.tempdir = None


def _has_room(folder: Path) -> bool:
    """Return whether programs run from *folder*, and it and the machine's memory have room for the tests.

    A container's /dev/shm often holds 64 MB and runs nothing; then the tests stay on the disk.
    """
    try:
        space = os.statvfs(folder)
        (available,) = re.findall(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    except (OSError, ValueError):
        return False
    room = min(space.f_bavail * space.f_frsize, int(available) * 1024 // 2)
    runs = not space.f_flag & os.ST_NOEXEC
    return runs and os.access(folder, os.W_OK) and room >= IN_MEMORY_BYTES_MIN


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest first; with `--no-loadscope-reorder` they are handed out in this order."""
    _limit_examples(items)
    positions = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: positions.get(item.path.name, len(LONGEST)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give all files of one of SHARED_SYSTEMS to one worker, which starts the system once."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    scheduler = LoadFileScheduling(config, log)
    scheduler._split_scope = lambda nodeid: _scope(config.rootpath / nodeid.partition("::")[0])
    return scheduler


@cache
def _scope(file: Path) -> str:
    """Return the shared system whose fixture *file* names, or the file itself."""
    text = file.read_text()
    return next((name for name in SHARED_SYSTEMS if re.search(rf"\b{name}\b", text)), str(file))


def _limit_examples(items: list[pytest.Item]) -> None:
    """In the quick profile, let no property try more examples than the profile says, whatever its own `@settings` say.

    The attribute is private to Hypothesis, which has no public way to change the settings of a decorated function;
    `test_the_quick_profile_limits_every_property` fails if a new version of Hypothesis ignores it.
    """
    if settings.get_current_profile_name() != "quick":
        return
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        if item.cls is not None and hasattr(item.cls, "settings"):  # a state machine's test case
            item.cls.settings = _quick(item.cls.settings)
        elif is_hypothesis_test(item.obj):
            test = getattr(item.obj, "__func__", item.obj)
            name = "_hypothesis_internal_use_settings"
            setattr(test, name, _quick(getattr(test, name, settings.default)))


def _quick(own: settings | None) -> settings:
    """Return a test's *own* settings with the quick profile's number of examples, and the same ones each time."""
    profile = settings.get_profile(settings.get_current_profile_name())
    own = own or profile
    examples = min(own.max_examples, profile.max_examples)
    return settings(own, max_examples=examples, derandomize=True)


def pytest_collection_finish() -> None:
    """Exclude objects that live until the end from garbage collection: repeated scans of thousands
    of tests slow each test.
    """
    gc.collect()
    gc.freeze()


def _guard(item: pytest.Item) -> None:
    """End a hanging process with the stacks of all threads; pytest-xdist names the test, and the run ends.

    Not pytest's `faulthandler_timeout`: it covers neither the time after a failure nor the end of
    the process.
    """
    file = item.config.stash[_STDERR]
    faulthandler.dump_traceback_later(HANGS_SECONDS, exit=True, file=file)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _guard(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    _guard(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    _guard(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    real_systems.refuse_unnamed_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    real_systems.refuse_unnamed_skip(report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if real_systems.COUNTS:
        reports = itertools.chain.from_iterable(
            terminalreporter.stats.get(outcome, ())
            for outcome in ("passed", "failed", "error", "skipped")
        )
        real_systems.append_counts(Path(real_systems.COUNTS), reports)


def pytest_enter_pdb() -> None:
    """Disable the guard for tests in a debugger (`--pdb`, `breakpoint()`)."""
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session", autouse=True)
def nobody_outlives_us() -> None:
    """A hung or killed run left aggregators behind that held ports and memory: see orphans.py."""
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
