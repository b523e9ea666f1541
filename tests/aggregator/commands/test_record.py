"""`gangline record`: options, the Parquet file, the picture, the list; a file is there completely or not at all."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import duckdb
import pytest

from gangline import cli
from gangline.aggregator.commands import job_story, record
from gangline.aggregator.commands.time_pictures import BAND, GPUS_MAX, Mark, recording_svg
from gangline.contract.client.connection import CommandError
from gangline.contract.recording import GpuRecording, encode_recording
from gangline.contract.wire.telemetry_pb2 import StoredRecording
from gangline.ext.phases import HISTORY_SIGNALS, STATES


def made(gpus: int = 2, samples: int = 100, host: str = "gpu-017") -> GpuRecording:
    """Return a recording with a gap, a missing reading and two states."""
    values = array("f")
    for gpu in range(gpus):
        for name in HISTORY_SIGNALS:
            for index in range(samples):
                value = {"state": float(index >= 50), "power_watts": 100.0 * gpu + index}.get(
                    name, 0.5
                )
                values.append(float("nan") if index == 3 else value)
    offsets = array(
        "q", (index * 100_000_000 + (index >= 80) * 5_000_000_000 for index in range(samples))
    )
    names = tuple(f"GPU-{gpu:032}" for gpu in range(gpus))
    return GpuRecording(
        names, HISTORY_SIGNALS, STATES, 1, offsets, values, host, "ab", "gpu.xid 79", 1_800_000_000 * 10**9
    )  # fmt: skip


Answer = Callable[[bytes, list[StoredRecording]], None]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answer:
    def say(data: bytes, stored: list[StoredRecording]) -> None:
        monkeypatch.setattr(record, "fetch", lambda *_: (data, stored))

    return say


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpu-017"], "-o FILE.parquet"),
        (["gpu-017", "--list", "-o", "a.svg"], "--list excludes"),
        (["gpu-017", "--list", "--last", "5m"], "--list excludes"),
        (["gpu-017", "-o", "a.png"], "ends in .parquet or .svg"),
        (["gpu-017", "-o", "a.svg", "--json"], "--json needs --list"),
        (["gpu-017", "-o", "a.svg", "--last", "6m"], "1s to 5m"),
        (["gpu-017", "-o", "a.svg", "--last", "0s"], "1s to 5m"),
        (["gpu-017", "-o", "a.svg", "--last", "5x"], "such as 90s"),
        (["gpu-017", "-o", "a.svg", "--last", "1h"], "1s to 5m"),
        (["gpu-017", "-o", "a.svg", "--kept", "../x"], "a name that --list shows"),
        (
            ["gpu-017", "-o", "a.svg", "--last", "5s", "--kept", "20260102T030405Z-0a1b2c3d"],
            "exclude each other",
        ),
        (["", "--list"], "a host's name"),
        (["x" * 300, "--list"], "a host's name"),
    ],
)
def test_wrong_usage_is_said_with_what_is_right(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each flag has its limits in its message, and no aggregator is asked."""
    with pytest.raises(SystemExit) as ended:
        record.main(arguments)
    assert ended.value.code == cli.USAGE
    assert message in capsys.readouterr().err


def test_the_parquet_file_has_what_the_host_sent(answers: Answer, tmp_path: Path) -> None:
    """A row for each sample of each GPU; missing is NULL, states are text, and the file says whose it is."""
    path = tmp_path / "a.parquet"
    answers(encode_recording(made()), [])
    assert record.main(["gpu-017", "-o", str(path)]) == cli.OK
    rows = duckdb.sql(
        f"SELECT gpu, count(*), count(power_watts), max(power_watts), min(state), max(state), count(DISTINCT state), "
        f"epoch(max(time) - min(time)) FROM '{path}' GROUP BY gpu ORDER BY gpu"
    ).fetchall()
    assert rows == [
        (name, 100, 99, 100.0 * gpu + 99, "compute", "wait", 2, 14.9)
        for gpu, name in enumerate(made().devices)
    ]
    assert duckdb.sql(f"SELECT typeof(time) FROM '{path}' LIMIT 1").fetchone() == ("TIMESTAMP",)
    metadata = dict(duckdb.sql(f"SELECT key, value FROM parquet_kv_metadata('{path}')").fetchall())
    assert metadata[b"gangline.host"] == b"gpu-017" and metadata[b"gangline.simulated"] == b"false"


def test_the_picture_shows_the_clock_and_marks_the_finding() -> None:
    """The clock was the finding, but the picture had neither a clock nor a mark. Colors of curves
    differ from those of states.
    """
    recording = made(1)
    began_ns = recording.boottime_ns + 5_000_000_000
    with_finding = replace(recording, reason="thermal GPU-1", finding_ns=began_ns)
    late = Mark(with_finding.wall_time_ns + 3600 * 10**9, "an hour later")
    svg = recording_svg(
        with_finding, [Mark(with_finding.wall_time_ns + 10**9, "gpu-017, 31 % slow"), late]
    )
    texts = "".join(ElementTree.fromstring(svg).itertext())
    assert re.search("SM clock, to [0-9.e+]+ GHz", texts)
    assert "thermal GPU-1" in texts and "31 % slow" in texts and "an hour later" not in texts
    curves = {e.get("stroke") for e in ElementTree.fromstring(svg).iter() if e.get("stroke")}
    assert len(curves) == 4 and curves.isdisjoint(
        {color for _, _, color in job_story.STATES.values()}
    )


@pytest.mark.parametrize("gpus", [0, 1, GPUS_MAX + 2])
def test_the_picture_is_whole(gpus: int) -> None:
    """A row for each GPU up to a limit, the curves broken where nothing was sampled; hostile names are text."""
    svg = recording_svg(made(gpus, host="<script>&\x1b[31m"))
    root = ElementTree.fromstring(svg)
    texts = "".join(root.itertext())
    assert "<script>&?[31m" in texts and "<script>" not in svg
    assert sum(f"GPU {gpu}" in texts for gpu in range(gpus)) == min(gpus, GPUS_MAX)
    assert ("… 2 more GPUs" in texts) is (gpus > GPUS_MAX)
    if gpus == 1:
        curves = [e.get("d", "") for e in root.iter() if e.get("stroke-width") == "1.1"]
        assert {curve.count("M") for curve in curves} == {2}, "the gap of five seconds"
        bands = [e for e in root.iter() if e.get("height") == str(BAND)]
        assert len(bands) == 3, "compute, wait, and wait again after the gap"


def test_the_picture_stays_small() -> None:
    """States that change with each sample of five minutes stay small: a column shows its most frequent state."""
    recording = made(8, 3000)
    for index in range(len(recording.values)):
        recording.values[index] = index % 5
    assert len(recording_svg(recording)) < 2_000_000


@pytest.mark.parametrize("name", ["a.parquet", "a.svg"])
def test_a_file_that_cannot_be_written_is_not_there(
    answers: Answer, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 and an error line; the earlier file stays, without a partial file next to it."""
    answers(encode_recording(made()), [])
    (tmp_path / name).mkdir()
    assert record.main(["gpu-017", "-o", str(tmp_path / name)]) == cli.FAILED
    assert "cannot write" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert record.main(["gpu-017", "-o", str(tmp_path / "missing" / name)]) == cli.FAILED


def test_what_cannot_be_read_is_no_file(
    answers: Answer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A host whose agent writes a later format, or damaged bytes."""
    data = bytearray(encode_recording(made()))
    data[8] = 2
    answers(bytes(data), [])
    assert record.main(["gpu-017", "-o", str(tmp_path / "a.svg")]) == cli.FAILED
    assert "format version 2" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_list(answers: Answer, capsys: pytest.CaptureFixture[str]) -> None:
    """A table with time and reason, or one JSON document; a host's words move no cursor."""
    stored = StoredRecording(
        name="20260102T030405Z-0a1b2c3d", wall_time_ns=1_800_000_000 * 10**9, seconds=299.9,
        devices=8, bytes=312_345, reason="gpu.xid 79\x1b[2J",
    )  # fmt: skip
    answers(b"", [stored])
    assert record.main(["gpu-017", "--list"]) == cli.OK
    text = capsys.readouterr().out
    assert "01-15 08:00:00" in text and "gpu.xid 79" in text and "\x1b" not in text
    assert record.main(["gpu-017", "--list", "--json"]) == cli.OK
    assert '"name": "20260102T030405Z-0a1b2c3d"' in capsys.readouterr().out
    answers(b"", [])
    assert record.main(["gpu-017", "--list"]) == cli.OK
    assert "stored no recording" in capsys.readouterr().out


def test_nobody_answers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments: list[Any] = ["gpu-017", "-o", str(tmp_path / "a.svg"), "--aggregator", "127.0.0.1:9"]
    assert record.main(arguments) == cli.NO_ANSWER
    assert "no aggregator answers" in capsys.readouterr().err
    assert issubclass(CommandError, Exception)
