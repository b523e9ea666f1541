"""`gangline mirror`: the file that it writes from an aggregator's answer, and that it leaves no wrong file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from gangline import cli
from gangline.contract.client.connection import CommandError, ConnectionOptions
from gangline.contract.wire import score_pb2
from gangline.contract.wire.score_pb2_grpc import (
    ScoreServiceServicer,
    add_ScoreServiceServicer_to_server,
)
from gangline.executors import mirror, mirror_file
from gangline.executors.mirror import MirrorSource
from gangline.executors.mirror_file import MirrorFileError
from gangline.executors.mirror_format import MirrorError, parse
from tests.processes import GUARD_SECONDS

NAMES = ["gpu1", "gpu2", "gpu3", "login"]
SLURM = "\n".join(
    f"NodeName={name} CPUTot=8 Gres=gpu:8 Partitions=main" for name in ("gpu1", "gpu2", "gpu3")
)


class Scores(ScoreServiceServicer):
    """Answers as an aggregator does; gpu2 has a fault, gpu3 is watched."""

    def __init__(self) -> None:
        self.version, self.names, self.valid_seconds, self.degraded = 1, list(NAMES), 15.0, False
        self.dictionaries = 0

    def ScoreNodes(self, request: Any, context: Any) -> score_pb2.ScoreNodesResponse:
        count = len(self.names)
        reply = score_pb2.ScoreNodesResponse(
            dictionary_version=self.version, node_index=range(count), score=[0.9] * count, hazard_per_hour=[0.1] * count,
            relative_speed=[1.0] * count, state=bytes([1, 5, 2, 1, 1][:count]), bucket=bytes([0, 3, 1, 2, 0][:count]),
            reason=bytes([0, 1, 0, 0, 0][:count]), allowed_bitmap=bytes([0b11101]), degraded=self.degraded,
        )  # fmt: skip
        reply.valid_until.FromNanoseconds(int((time.time() + self.valid_seconds) * 1e9))
        return reply

    def GetNodeDictionary(self, request: Any, context: Any) -> score_pb2.NodeDictionary:
        self.dictionaries += 1
        return score_pb2.NodeDictionary(version=self.version, names=self.names)


@pytest.fixture
def scores() -> Iterator[tuple[Scores, str]]:
    with ThreadPoolExecutor(2) as pool:
        server: Any = grpc.server(pool)
        service = Scores()
        add_ScoreServiceServicer_to_server(service, server)  # type: ignore[no-untyped-call]
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield service, address
        finally:
            server.stop(None).wait()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path / "nodes"


def slurm_text(*arguments: str) -> str:
    return SLURM if "node" in arguments else "TopologyPlugin = topology/none\n"


def test_all_nodes_are_in_the_file(scores: tuple[Scores, str], path: Path) -> None:
    """With the aggregator's word on each; without Slurm's word nothing may be excluded."""
    assert cli.main(["mirror", str(path), "--once", "--aggregator", scores[1]]) == cli.OK
    parsed = mirror_file.read(path)
    lists = {name: parsed.lists[name] for name in ("b0", "b1", "b2", "out")}
    assert lists == {"b0": "gpu1", "b1": "gpu3", "b2": "login", "out": "gpu2"}
    assert (parsed.by_slurm, parsed.lists["exclude"]) == (False, "")
    faulty = parsed.nodes[1]
    assert (faulty.name, faulty.ready, faulty.state, faulty.reason) == ("gpu2", False, "UNHEALTHY", "XID_FATAL")  # fmt: skip
    assert 0 < parsed.valid_until_seconds - time.time() <= 15
    assert path.stat().st_mode & 0o777 == 0o644


def test_the_check_says_what_a_reader_makes_of_it(
    scores: tuple[Scores, str], path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["mirror", str(path), "--check"]) == cli.FAILED
    assert "not used: No such file" in capsys.readouterr().out
    cli.main(["mirror", str(path), "--once", "--aggregator", scores[1]])
    assert cli.main(["mirror", str(path), "--check"]) == cli.OK
    output = capsys.readouterr().out
    assert "4 nodes" in output and "not ready: 1: gpu2" in output
    path.write_bytes(path.read_bytes()[:-1])
    assert cli.main(["mirror", str(path), "--check"]) == cli.FAILED
    assert "not used: it is torn" in capsys.readouterr().out


def test_with_slurm_only_its_nodes_are_in_it(scores: tuple[Scores, str]) -> None:
    """A name in `exc_nodes` that Slurm does not have refuses every job. It is asked once a minute."""
    clock, questions = [time.time()], list[tuple[str, ...]]()

    def text(*arguments: str) -> str:
        questions.append(arguments)
        return slurm_text(*arguments)

    with MirrorSource(ConnectionOptions(scores[1]), True, "", lambda: clock[0], text) as source:
        parsed = parse(source.content())
        assert [node.name for node in parsed.nodes] == ["gpu1", "gpu2", "gpu3"]
        assert (parsed.by_slurm, parsed.lists["exclude"], parsed.exclude_safe_nodes) == (True, "gpu2", 2)  # fmt: skip
        source.content()
        assert len(questions) == 2
        scores[0].valid_seconds = 100.0
        clock[0] += 61.0
        source.content()
        assert len(questions) == 4


def test_without_slurms_answer_no_file_is_written(scores: tuple[Scores, str]) -> None:
    """The data of a minute ago might name a node that has ended."""

    def text(*arguments: str) -> str:
        raise MirrorError("scontrol show node: exit code 1: no controller")

    with (
        MirrorSource(ConnectionOptions(scores[1]), True, "", slurm_text=text) as source,
        pytest.raises(CommandError, match="no controller"),
    ):
        source.content()


def test_a_degraded_picture_excludes_nobody(scores: tuple[Scores, str]) -> None:
    scores[0].degraded = True
    with MirrorSource(ConnectionOptions(scores[1]), True, "", slurm_text=slurm_text) as source:
        parsed = parse(source.content())
    assert (parsed.degraded, parsed.lists["exclude"], parsed.lists["out"]) == (True, "", "gpu2")


def test_clocks_that_differ_make_no_old_news_believed(scores: tuple[Scores, str]) -> None:
    """A clock that is ahead is cut to a minute; from a clock that is behind nothing is written,
    with an error message.
    """
    service, address = scores
    with MirrorSource(ConnectionOptions(address), False, "") as source:
        service.valid_seconds = 3600.0
        assert parse(source.content()).valid_until_seconds - time.time() <= 60
        service.valid_seconds = -5.0
        with pytest.raises(CommandError, match="one of the two clocks is wrong"):
            source.content()


def test_new_nodes_and_a_new_epoch_are_learned(scores: tuple[Scores, str]) -> None:
    """Names are requested when a node is unknown, and once to learn the address for a loop."""
    service, address = scores
    with MirrorSource(ConnectionOptions(address), False, "") as source:
        source.content()
        source.content()
        assert service.dictionaries == 2
        service.names.append("gpu4")
        assert [node.name for node in parse(source.content()).nodes][3] == "gpu4"
        service.version, service.names = 2, ["new1", "new2"]
        assert [node.name for node in parse(source.content()).nodes] == ["new1", "new2"]
        assert service.dictionaries == 4


def test_nobody_answers(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["mirror", str(path), "--once", "--aggregator", "127.0.0.1:9"]) == cli.NO_ANSWER
    assert "no aggregator answers" in capsys.readouterr().err
    assert not path.exists()


def test_a_folder_in_which_others_write_is_refused(
    scores: tuple[Scores, str], path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Readers would not believe what is in it."""
    path.parent.chmod(0o777)
    command = ["mirror", str(path), "--once", "--aggregator", scores[1]]
    assert cli.main(command) == cli.FAILED
    assert "chmod go-w" in capsys.readouterr().err
    path.parent.chmod(0o755)
    command[1] = str(path.parent / "none" / "nodes")
    assert cli.main(command) == cli.FAILED
    assert "create it: install -d" in capsys.readouterr().err


def test_two_writers_of_one_file_are_refused(
    scores: tuple[Scores, str], path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with mirror_file.sole_writer(path):
        assert cli.main(["mirror", str(path), "--once", "--aggregator", scores[1]]) == cli.FAILED
    assert "another gangline mirror writes" in capsys.readouterr().err


def test_what_a_killed_writer_left_is_replaced(scores: tuple[Scores, str], path: Path) -> None:
    temporary = path.with_name(".nodes.new")
    temporary.symlink_to(path.with_name("victim"))
    assert cli.main(["mirror", str(path), "--once", "--aggregator", scores[1]]) == cli.OK
    assert not path.with_name("victim").exists() and not temporary.exists()
    assert len(mirror_file.read(path).nodes) == 4


def test_a_write_that_fails_leaves_the_file_before(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(b"before")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MirrorFileError, match="No space left"):
        mirror_file.write(path, b"after")
    assert path.read_bytes() == b"before"


@pytest.mark.slow
def test_it_follows_until_it_is_ended(scores: tuple[Scores, str], path: Path) -> None:
    """The file is written again and again; a signal ends it with 0, and what is left ends by itself."""
    command = [sys.executable, "-m", "gangline.cli", "mirror", str(path), "--seconds", "1", "--aggregator", scores[1]]  # fmt: skip
    child = subprocess.Popen(command)
    try:
        written, end = set[int](), time.monotonic() + GUARD_SECONDS
        while len(written) < 2 and time.monotonic() < end:
            if path.exists():
                written.add(path.stat().st_ino)
            assert child.poll() is None
            time.sleep(0.02)
        child.send_signal(signal.SIGTERM)
        assert child.wait(GUARD_SECONDS) == cli.OK
    finally:
        child.kill()
        child.wait()
    assert len(mirror_file.read(path).nodes) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "FILE"),
        (["nodes", "--seconds", "0"], "expected a duration from 1s to 10s"),
        (["nodes", "--seconds", "soon"], "expected a duration from 1s to 10s"),
        (["nodes", "--feature", "a;b", "--slurm"], "expected letters, digits"),
        (["nodes", "--feature", "a" * 65, "--slurm"], "at most 64"),
        (["nodes", "--feature", "well"], "--feature needs --slurm"),
    ],
)
def test_mistakes_are_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["mirror", *arguments])
    assert ended.value.code == cli.USAGE
    assert message in capsys.readouterr().err


def test_without_slurms_commands_it_says_where_to_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # fmt: skip
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MirrorError, match="Run this on a machine with Slurm"):
        mirror.scontrol_text("show", "config")
