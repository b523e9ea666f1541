"""`gangline executor slurm undo --all` in an emergency: the ledger may be damaged, locked or missing."""

from __future__ import annotations

import argparse
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from gangline.executors import command as executor
from gangline.executors.command import _status, _undo
from gangline.executors.executor import Executor
from gangline.executors.launchers.launchers import Launchers
from gangline.executors.ledger import HOLD, SET, Entry, ExecutorLedger, WeightChange, locked
from gangline.executors.model import NodeHold, SchedulerError
from gangline.executors.settings import ExecutorConfig, NodeNames
from gangline.executors.site import LEDGER_FILE
from gangline.executors.slurm.site import SlurmSite
from tests.executors.model_scheduler import ModelScheduler

NOW = time.time()


def held_entry() -> Entry:
    return Entry(
        "a1", "n1", "AVOID", "me", 5, NOW, NOW + 60, HOLD, "gangline_a1", SET, NOW, NOW + 60
    )


@pytest.fixture
def site(tmp_path: Path) -> SlurmSite:
    slurm_site: Any = SlurmSite(ExecutorConfig(ledger=str(tmp_path)))
    model = ModelScheduler(["n1", "n2"])
    model.holds["gangline_a1"] = NodeHold("gangline_a1", frozenset({"n1"}))
    model.set_weight("n2", 4)
    slurm_site.scheduler = model
    ledger = ExecutorLedger(tmp_path / LEDGER_FILE)
    ledger.weights["n2"] = WeightChange(1, 4, 1)
    ledger.save()
    return slurm_site  # type: ignore[no-any-return]


def weight(site: SlurmSite) -> int | None:
    return site.scheduler.read_nodes()["n2"].weight


def test_marks_and_weights_go(site: SlurmSite, tmp_path: Path) -> None:
    """The ledger has the earlier weight, and keeps no entry of it."""
    assert _undo(site) == 0
    assert not site.scheduler.read_holds() and weight(site) == 1
    assert not ExecutorLedger(tmp_path / LEDGER_FILE).weights


@pytest.mark.parametrize("case", ["damaged", "locked"])
def test_without_the_ledger_marks_go_all_the_same(
    site: SlurmSite, tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights, which refuse no job, stay, and the command gives the reason."""
    if case == "damaged":
        (tmp_path / LEDGER_FILE).write_text("{")
        assert _undo(site) == 0
    else:
        with locked(tmp_path):
            assert _undo(site) == 0
    assert not site.scheduler.read_holds() and weight(site) == 4
    assert "weights are unchanged" in capsys.readouterr().err


def test_the_status_after_it_shows_that_the_mark_is_gone(
    site: SlurmSite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After `undo --all` the command listed the removed hold as set for two hours."""
    ledger = ExecutorLedger(tmp_path / LEDGER_FILE)
    ledger.add(held_entry())
    ledger.save()
    for shown in ("gangline_a1  set  ends", "gangline_a1  no longer set  ends"):
        assert _status(argparse.Namespace(json=False), site) == 0
        assert shown in capsys.readouterr().out
        assert _undo(site) == 0


def test_a_status_without_the_scheduler_shows_the_ledger(
    site: SlurmSite,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In an outage of slurmctld the ledger is the only record of the marks."""

    def fail(*_: object) -> None:
        raise SchedulerError("slurmctld does not answer")

    monkeypatch.setattr(site.scheduler, "read_nodes", fail)
    ledger = ExecutorLedger(tmp_path / LEDGER_FILE)
    ledger.add(held_entry())
    ledger.save()
    assert _status(argparse.Namespace(json=False), site) == 0
    output = capsys.readouterr()
    assert "gangline_a1  set  ends" in output.out and "slurmctld does not answer" in output.err


def test_options_may_come_before_the_word(
    site: SlurmSite, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`gangline executor slurm --set ledger=... doctor` was refused: invalid choice."""
    setting = ["--set", f"ledger={site.config.ledger}"]
    assert executor.main(["slurm", *setting, "status"]) == 0
    first = capsys.readouterr().out
    assert executor.main(["slurm", "status", *setting]) == 0
    assert capsys.readouterr().out == first == "nothing is set\n"
    with pytest.raises(SystemExit):
        executor.main(["slurm", *setting, "nonsense"])
    assert "choose from 'run', 'doctor'" in capsys.readouterr().err


def test_what_runs_beside_the_loop_ends_when_it_fails(
    site: SlurmSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in the loop: the threads of the launchers held the process, which held the ledger's lock."""
    closed = list[str]()

    class ClosingLaunchers(Launchers):
        def close(self) -> None:
            super().close()
            closed.append("launchers")

    def fail(_: Executor) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(executor, "Launchers", ClosingLaunchers)
    monkeypatch.setattr(Executor, "run", fail)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    options = executor._parser().parse_args(["slurm", "--aggregator", "127.0.0.1:1"])
    with pytest.raises(RuntimeError, match="a bug"):
        executor._serve(options, site, NodeNames())
    assert closed == ["launchers"]
