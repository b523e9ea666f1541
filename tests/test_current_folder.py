"""Child processes import nothing from the current folder, which may belong to another user."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gangline.agent import inventory
from gangline.agent.hardware.files import Roots
from gangline.agent.local import source_reading
from gangline.aggregator.commands.child_process import ChildCommand, ChildError, Children
from gangline.aggregator.query.pool import FORK_SERVER_MODULE
from gangline.aggregator.workers import WorkerProcess

ROOT = Path(__file__).parent.parent
PARTS = ("agent", "aggregator", "contract", "executors", "fingerprints", "simulator")
#: The command for modules, and the helper that runs isolated (-I).
STARTERS = {"contract/workers.py", "agent/hardware/job_ranks.py", "agent/service_manager.py"}


def read_inventory(folder: Path) -> None:
    inventory.read(Roots(sys=folder / "sys", proc=folder / "proc"))


def read_sources(folder: Path) -> None:
    source_reading.read_sources(
        Roots(sys=folder / "sys", proc=folder / "proc", dev=folder, run=folder)
    )


def run_worker(_: Path) -> None:
    worker = WorkerProcess(
        FORK_SERVER_MODULE, "{}", own_session=True
    )  # exits: settings need a folder
    worker._process.wait(60)
    assert worker.end() != 0


def run_command(folder: Path) -> None:
    with Children(folder / "run") as children:
        children.start(ChildCommand("xid", ("94",)))
        children._running[0][1].wait(60)
        with pytest.raises(ChildError, match="exit code 0"):
            children.check()


@pytest.mark.parametrize("start", [read_inventory, read_sources, run_worker, run_command])
def test_a_child_imports_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[[Path], None]
) -> None:
    """Root runs `gangline doctor` in /tmp, where another user left a json.py: it must not be executed."""
    planted = tmp_path / "planted"
    (planted / "gangline").mkdir(parents=True)
    for name in ("json.py", "gangline/__init__.py"):
        (planted / name).write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    for name in ("sys", "proc"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(planted)
    start(tmp_path)
    assert not (tmp_path / "executed").exists()


def test_no_other_module_starts_the_interpreter() -> None:
    """A new child process must use `module_command`, which passes -P."""
    starters = {
        str(path.relative_to(ROOT))
        for part in PARTS
        for path in (ROOT / part).rglob("*.py")
        if re.search(r"sys\.executable(?!\})", path.read_text())
    }
    assert starters == STARTERS
