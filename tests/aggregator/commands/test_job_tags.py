"""`gangline job JOB --tags`: the created tags, and that MLflow and Weights & Biases accept them."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from gangline.aggregator.commands import job, job_tags
from gangline.aggregator.commands.job_queries import LIST_QUERY
from gangline.aggregator.commands.job_tags import (
    STRAGGLERS_LISTED,
    TARGET_CHARACTERS_MAX,
    VALUE_CHARACTERS_MAX,
    TagTarget,
    parse_target,
    tag_texts,
    write_tags,
)
from gangline.contract.client.connection import CommandError
from tests.processes import GUARD_SECONDS

BEGIN, END = datetime(2026, 1, 1, 3), datetime(2026, 1, 2, 5, 30)
JOB = {
    "job": "4711", "hosts_count": 3, "gpus_count": 24, "since": BEGIN, "until": END, "pace": 0.8, "straggler": None,
    "lost_gpu_hours": 1.53,
}  # fmt: skip
STRAGGLER = {
    "host": "gpu2", "device": "GPU-2", "verdict": "node", "cause": "gang.slow_host", "reason": "SLOW", "slowdown_ratio": 0.2,
    "lost_gpu_hours": 1.5, "since": BEGIN, "until": END, "message": "computes \x1b[31mlonger",
}  # fmt: skip
STOPPED = STRAGGLER | {
    "host": "gpu3",
    "cause": "xid79",
    "slowdown_ratio": 1.0,
    "lost_gpu_hours": 0.03,
}

TEXTS = {
    "job": "4711", "hosts": "gpu[1-3]", "hosts_count": "3", "gpus_count": "24", "since": "2026-01-01T03:00:00Z",
    "until": "2026-01-02T05:30:00Z", "lost_gpu_hours": "1.53",
    "stragglers": "gpu2: node, gang.slow_host, 20 % slow, 1.50 GPU-hours; gpu3: node, xid79, stopped it, 0.03 GPU-hours; "
    "gpu2: node, gang.slow_host, 0 % slow, 0.00 GPU-hours",
    "run_id": "r-1", "workload_class": "training", "pace_ratio": "0.810", "pace_verdict": "slower: a host",
}  # fmt: skip
VARIABLE = "GANGLINE_TRACKERS"
TRACKERS = Path(os.environ.get(VARIABLE) or "/nowhere")
needs_trackers = pytest.mark.skipif(
    not (TRACKERS / "mlflow").is_dir(),
    reason=f"no MLflow or W&B: tests/rigs/trackers.sh FOLDER; export {VARIABLE}=FOLDER",
)
BEGINNING = """
import json, sys
sys.path.append(sys.argv[1])  # behind what the product brings
from gangline.contract.client.connection import CommandError
from gangline.aggregator.commands.job_tags import parse_target, write_tags
tags = json.loads(sys.argv[2])
"""
WITH_MLFLOW = """
import mlflow
client = mlflow.MlflowClient()
run = client.create_run("0", tags={"mine": "stays"})
print(write_tags(parse_target("mlflow:" + run.info.run_id), tags))
print(json.dumps(client.get_run(run.info.run_id).data.tags))
try:
    write_tags(parse_target("mlflow:" + "0" * 32), tags)
except CommandError as error:
    print(error)
"""
#: As a site's epilog does, in a process without the run's own. The file is a log of LevelDB: blocks of 32 KiB, records cut at their ends.
WITH_WANDB = """
print(write_tags(parse_target("wandb:llm/run7"), tags))
"""
#: In a process of its own: W&B's writes the file to its end when the process that tags ends.
READ_WANDB = """
import glob, struct
from wandb.proto import wandb_internal_pb2
(file,) = glob.glob("wandb/offline-run-*/run-run7.wandb")
data = open(file, "rb").read()
at, found, record = 7, {}, b""
while at < len(data):
    if (left := 32768 - at % 32768) < 7:
        at += left
        continue
    _, size, kind = struct.unpack_from("<IHB", data, at)
    record += data[at + 7 : at + 7 + size]
    at += 7 + size
    if kind in (1, 4):
        parsed, record = wandb_internal_pb2.Record.FromString(record), b""
        for one in [*parsed.run.config.update, *parsed.config.update]:
            found[one.key or one.nested_key[0]] = json.loads(one.value_json)
print(json.dumps(found))
"""


def answers(query: str) -> list[dict[str, Any]]:
    if query == LIST_QUERY:
        return [JOB]
    if "FROM ops.job_members" in query:
        return [
            {"host": f"gpu{number}", "gpus_count": 8, "since": BEGIN, "until": END}
            for number in (1, 2, 3)
        ]
    if "FROM ops.runs" in query:
        return [
            {
                "run_id": "r-1",
                "workload_class": "training",
                "pace_ratio": 0.81,
                "verdict": "slower: a host",
            }
        ]
    assert "FROM ops.stragglers" in query and "'4711'" in query
    rows = [STRAGGLER, STOPPED, STRAGGLER | {"slowdown_ratio": math.nan, "lost_gpu_hours": 0.0}]
    return [row | {"all_lost_gpu_hours": 1.53} for row in rows]


def read() -> dict[str, Any]:
    return job_tags.read_tags(answers, "4711")


def test_the_file_has_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tracker of our own was fed by a screen scraper."""
    file = tmp_path / "tags.json"
    options = argparse.Namespace(
        job="4711", tags=parse_target(str(file)), json=False, begin=None, end=None, last=None
    )
    assert job.show_past(options, answers) == 0
    assert capsys.readouterr().out == f"wrote {file}\n"
    tags = json.loads(file.read_text(), parse_constant=pytest.fail)
    assert tags["hosts"] == ["gpu1", "gpu2", "gpu3"] and tags["lost_gpu_hours"] == 1.53
    assert (tags["since"], tags["until"]) == ("2026-01-01T03:00:00Z", "2026-01-02T05:30:00Z")
    assert tags["stragglers"][0]["verdict"] == "node" and tags["pace_verdict"] == "slower: a host"
    assert list(tmp_path.iterdir()) == [file]


def test_of_a_job_that_runs_it_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last hour of a run was missing in its tags."""
    options = argparse.Namespace(
        job="4711", tags=TagTarget("file", str(tmp_path / "t.json")), json=False, begin=None, end=None, last=None
    )  # fmt: skip
    still = {"host": "gpu9", "gpus_count": 8, "since": BEGIN, "until": None}
    job.show_past(
        options, lambda query: answers(query) + [still] * ("FROM ops.job_members" in query)
    )
    assert capsys.readouterr().out.endswith("; the job still runs: as of now\n")
    options.job = "471"
    with pytest.raises(CommandError, match="did you mean 4711"):
        job.show_past(options, lambda query: [JOB] if query == LIST_QUERY else [])


def test_each_tag_is_a_short_text() -> None:
    """A tracker shows them in a table."""
    assert tag_texts(read()) == TEXTS


def test_a_tag_is_no_longer_than_trackers_take() -> None:
    """A run on 4,000 hosts had no tags at all: MLflow refused the batch."""
    names = [f"r{index}x{index * 7919 % 997}" for index in range(4000)]
    many = read() | {"hosts": names, "stragglers": read()["stragglers"][:1] * 100, "until": None}
    texts = tag_texts(many | {"job": "a\nb"})
    assert len(texts["hosts"]) == VALUE_CHARACTERS_MAX and texts["hosts"].endswith("...")
    assert texts["stragglers"].endswith(f"; {100 - STRAGGLERS_LISTED} more")
    assert texts["job"] == "a?b" and "until" not in texts


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("mlflow:0a1b2c", TagTarget("mlflow", "0a1b2c")),
        ("wandb:llm/run-7", TagTarget("wandb", "run-7", "llm")),
        ("wandb:team.a/llm/x1", TagTarget("wandb", "x1", "llm", "team.a")),
        ("out/t.json", TagTarget("file", "out/t.json")),
        ("mlflow:", None), ("mlflow:a/../b", None), ("wandb:run-7", None), ("wandb:a/b/c/d", None), ("t.yaml", None), (".json", None),
        ("comet:1", None), ("", None), ("x" * TARGET_CHARACTERS_MAX + ".json", None), ("a\0.json", None),
    ],
)  # fmt: skip
def test_targets(text: str, target: TagTarget | None) -> None:
    if target is None:
        with pytest.raises(argparse.ArgumentTypeError, match=r"expected mlflow:RUN_ID, wandb:"):
            parse_target(text)
    else:
        assert parse_target(text) == target


def test_tags_go_with_a_job_and_are_about_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    """`--last 1h --tags` tagged the run with the hosts of an hour."""
    for arguments in (["--tags", "t.json"], ["4711", "--tags", "t.json", "--last", "1h"]):
        with pytest.raises(SystemExit):
            job.main(arguments)
    err = capsys.readouterr().err
    assert "need a JOB" in err and "covers the whole run" in err


@pytest.mark.parametrize(("kind", "package"), [("mlflow", "mlflow-skinny"), ("wandb", "wandb")])
def test_without_the_library_it_says_how_to_have_it(
    kind: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trackers are optional dependencies."""
    monkeypatch.setitem(sys.modules, kind, None)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    with pytest.raises(CommandError, match=f"-m pip install {package}; or name a file"):
        write_tags(TagTarget(kind, "r", "p"), read())


def test_a_file_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    """The folder was mistyped."""
    with pytest.raises(CommandError, match="cannot write"):
        write_tags(TagTarget("file", str(tmp_path / "none" / "t.json")), read())


def with_the_real_library(script: str, folder: Path, **environment: str) -> list[str]:
    """Run *script* in *folder*; return the lines that it prints."""
    ended = subprocess.run(
        [sys.executable, "-c", BEGINNING + script, str(TRACKERS), json.dumps(read())], check=False, capture_output=True, text=True,
        cwd=folder, env=os.environ | environment, timeout=4 * GUARD_SECONDS,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout.splitlines()


@needs_trackers
@pytest.mark.slow
def test_mlflow_takes_them(tmp_path: Path) -> None:
    """MLflow's own client, over its local store; the run's own tags stay."""
    store = str(tmp_path / "mlruns")
    done, tags, missing = with_the_real_library(
        WITH_MLFLOW, tmp_path, MLFLOW_TRACKING_URI=store, MLFLOW_ALLOW_FILE_STORE="true"
    )
    assert done.startswith(f"set {len(TEXTS)} tags of MLflow run ")
    document = json.loads(tags)
    assert {key: document[f"gangline.{key}"] for key in TEXTS} == TEXTS and document[
        "mine"
    ] == "stays"
    assert "is MLFLOW_TRACKING_URI right?" in missing and "not found" in missing


@needs_trackers
@pytest.mark.slow
def test_wandb_takes_them(tmp_path: Path) -> None:
    """W&B's own library, offline; read back from the file that `wandb sync` uploads."""
    (done,) = with_the_real_library(WITH_WANDB, tmp_path, WANDB_MODE="offline")
    (config,) = with_the_real_library(READ_WANDB, tmp_path)
    assert "W&B run llm/run7, offline: wandb sync --append " in done
    assert Path(done.split()[-1]).is_dir()
    document = json.loads(config)
    assert {key: document[f"gangline.{key}"] for key in TEXTS} == TEXTS
