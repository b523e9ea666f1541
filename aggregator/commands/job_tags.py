"""`gangline job JOB --tags TARGET`: writes a job's result as tags to MLflow, W&B or a file.

The libraries of both trackers are optional: they are imported when a target names them.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ...cli import json_object
from ...contract.client.connection import FAILED, CommandError
from ...contract.host_sets import fold_hosts
from .job_queries import members_query, run_query, stragglers_query

MLFLOW, WANDB, FILE = "mlflow", "wandb", "file"
FORMS = "mlflow:RUN_ID, wandb:[ENTITY/]PROJECT/RUN_ID or FILE.json"
PREFIX = "gangline."
TARGET_CHARACTERS_MAX = 4096
#: MLflow before 2.20 rejects longer values, and the databases behind it still may.
VALUE_CHARACTERS_MAX = 5000
#: Stragglers in a tag, and in the file.
STRAGGLERS_LISTED, STRAGGLERS_MAX = 20, 200
#: An unresponsive tracker fails after these limits, about a minute; variables of the environment
#: take precedence.
MLFLOW_LIMITS = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "15", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
WANDB_SECONDS_MAX = 60.0
#: Length of a tracker's error message; some end with the remedy.
MESSAGE_CHARACTERS_MAX = 600

#: Tag -> column of `ops.runs`.
RUN_COLUMNS = {
    "run_id": "run_id",
    "workload_class": "workload_class",
    "pace_ratio": "pace_ratio",
    "pace_verdict": "verdict",
}

_RUN = r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}"
_MLFLOW_RUN = re.compile(_RUN, re.ASCII)
_WANDB_RUN = re.compile(rf"(?:([\w.-]{{1,128}})/)?([\w.-]{{1,128}})/({_RUN})", re.ASCII)

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TagTarget:
    """Destination of tags. `project` and `entity` apply to Weights & Biases."""

    kind: str
    name: str
    project: str = ""
    entity: str = ""


def parse_target(text: str) -> TagTarget:
    """Return the target that *text* names. Raises argparse.ArgumentTypeError."""
    shown = f"{text[:60]!r}: expected {FORMS}"
    if len(text) > TARGET_CHARACTERS_MAX or "\0" in text:
        raise argparse.ArgumentTypeError(f"{shown} of at most {TARGET_CHARACTERS_MAX} characters")
    kind, colon, name = text.partition(":")
    if colon and kind == MLFLOW:
        if not _MLFLOW_RUN.fullmatch(name):
            raise argparse.ArgumentTypeError(f"{shown}; RUN_ID is run.info.run_id of MLflow")
        return TagTarget(MLFLOW, name)
    if colon and kind == WANDB:
        match = _WANDB_RUN.fullmatch(name)
        if not match:
            raise argparse.ArgumentTypeError(f"{shown}; RUN_ID is run.id of wandb")
        return TagTarget(WANDB, match[3], match[2], match[1] or "")
    if not text.endswith(".json") or text == ".json":
        raise argparse.ArgumentTypeError(shown)
    return TagTarget(FILE, text)


def read_tags(ask: Callable[[str], list[dict[str, Any]]], job: str) -> dict[str, Any]:
    """Return the tags of *job*; {} if unknown. The pace, the costliest query, is not read."""
    hosts = ask(members_query(job))
    if not hosts:
        return {}
    stragglers = ask(stragglers_query(job, STRAGGLERS_MAX))
    runs = ask(run_query(job))
    lost = stragglers[0]["all_lost_gpu_hours"] if stragglers else 0.0
    tags = {
        "job": job, "hosts": [member["host"] for member in hosts], "hosts_count": len(hosts),
        "gpus_count": sum(member["gpus_count"] for member in hosts), "since": _time(min(member["since"] for member in hosts)),
        "until": None if any(member["until"] is None for member in hosts) else _time(max(member["until"] for member in hosts)),
        "lost_gpu_hours": round(float(lost), 4),
        "stragglers": [
            {key: _json_value(value) for key, value in straggler.items() if key != "all_lost_gpu_hours"} for straggler in stragglers
        ],
    }  # fmt: skip
    for key, column in RUN_COLUMNS.items():
        if runs and runs[0].get(column) is not None:
            tags[key] = _json_value(runs[0][column])
    return tags


def tag_texts(tags: Mapping[str, Any]) -> dict[str, str]:
    """Return *tags* as texts of at most VALUE_CHARACTERS_MAX, without prefix or unknown values."""
    texts: dict[str, str] = {}
    for key, value in tags.items():
        match key:
            case "hosts":
                text = fold_hosts(value)
            case "stragglers":
                text = "; ".join(_straggler(straggler) for straggler in value[:STRAGGLERS_LISTED])
                if more := len(value) - STRAGGLERS_LISTED:
                    text += f"; {more} more" if more > 0 else ""
            case "pace_ratio":
                text = f"{value:.3f}"
            case _:
                text = "" if value is None else str(value)
        text = "".join(c if c.isprintable() else "?" for c in text)
        if len(text) > VALUE_CHARACTERS_MAX:
            text = f"{text[: VALUE_CHARACTERS_MAX - 3]}..."
        if text:
            texts[key] = text
    return texts


def _straggler(row: Row) -> str:
    slow = row["slowdown_ratio"]
    how = "stopped it" if slow is not None and slow >= 1 else f"{100 * (slow or 0.0):.0f} % slow"
    return f"{row['host']}: {row['verdict']}, {row['cause']}, {how}, {row['lost_gpu_hours']:.2f} GPU-hours"


def write_tags(target: TagTarget, tags: Mapping[str, Any]) -> str:
    """Set *tags* at *target*; return what was done. Raises CommandError."""
    if target.kind == MLFLOW:
        return _write_mlflow(target, tag_texts(tags))
    if target.kind == WANDB:
        return _write_wandb(target, tag_texts(tags))
    replace_file(Path(target.name), f"{json_object(tags, indent=2)}\n".encode())
    return f"wrote {target.name}"


def _write_mlflow(target: TagTarget, texts: Mapping[str, str]) -> str:
    for variable, value in MLFLOW_LIMITS.items():
        os.environ.setdefault(variable, value)
    mlflow = _library("mlflow", "mlflow-skinny")
    try:
        # MLFLOW_TRACKING_URI selects the tracking server or folder.
        client = mlflow.MlflowClient()
        tags = [mlflow.entities.RunTag(PREFIX + key, text) for key, text in texts.items()]
        client.log_batch(target.name, tags=tags)
        place = mlflow.get_tracking_uri()
    except Exception as error:
        raise CommandError(
            f"MLflow run {target.name}: {_first_line(error)}; is MLFLOW_TRACKING_URI right?", FAILED
        ) from error
    return f"set {len(tags)} tags of MLflow run {target.name} at {place}"


def _write_wandb(target: TagTarget, texts: Mapping[str, str]) -> str:
    wandb = _library("wandb", "wandb")
    try:
        # `config` merges by key; tags of W&B would replace the run's list.
        run = wandb.init(
            entity=target.entity or None, project=target.project, id=target.name, resume="allow",
            settings=wandb.Settings(
                silent=True, console="off", disable_git=True, save_code=False, init_timeout=WANDB_SECONDS_MAX,
                x_disable_stats=True, x_disable_meta=True,
            ),
        )  # fmt: skip
        try:
            values = {PREFIX + key: text for key, text in texts.items()}
            run.config.update(values, allow_val_change=True)
        finally:
            run.finish()
        offline, folder = bool(run.settings._offline), str(run.settings.sync_dir)
    except Exception as error:
        raise CommandError(
            f"W&B run {target.project}/{target.name}: {_first_line(error)}; log in with `wandb "
            "login`, or set WANDB_MODE=offline",
            FAILED,
        ) from error
    what = f"set {len(texts)} values in the config of W&B run {target.project}/{target.name}"
    return f"{what}, offline: wandb sync --append {folder}" if offline else what


def _library(module: str, package: str) -> Any:
    """Import an optional library. Raises CommandError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        reason = "" if error.name == module else f" ({_first_line(error)})"
        raise CommandError(
            f"this needs {package}{reason}: {sys.executable} -m pip install {package}; or name a file: --tags FILE.json",
            FAILED,
        ) from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:MESSAGE_CHARACTERS_MAX]


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return _time(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _time(time: datetime | None) -> str | None:
    return None if time is None else time.replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def replace_file(output: Path, data: bytes) -> None:
    """Write *data* to *output*, completely or not at all. Raises CommandError."""
    partial = output.with_name(f".{output.name[:200]}.{os.getpid()}")
    try:
        partial.write_bytes(data)
        partial.replace(output)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise CommandError(f"cannot write {output}: {error.strerror}", FAILED) from error
