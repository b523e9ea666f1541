"""`gangline job [JOB]`: phases and pace of a job, its verdicts, and a picture.

The last minutes come from the aggregator's memory (`job_client.py`). --last, --from, --to and
--tags read the history by SQL.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import math
import shlex
import statistics
import sys
import textwrap
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...cli import json_object
from ...contract.client import command_line, connection
from ...contract.client.terminal import printable, table, wants_colour, width_of
from ...contract.options import duration, moment
from ..query import messages
from ..query.messages import Question
from .job_client import JobClient
from .job_queries import (
    LIST_QUERY,
    RECENT_SECONDS,
    PastStory,
    TimeRange,
    pace_query,
    phases_query,
    quoted,
    ranks_query,
    run_query,
)
from .job_story import (
    STEP_PARTS,
    clock,
    culprits_of,
    forecast_line,
    lost_by_cause,
    make_timeline,
    pace_text,
    parts_text,
    rank_lines,
    run_line,
    seconds_of,
    straggler_lines,
    timeline_lines,
    verdict_text,
)
from .job_tags import FORMS, parse_target, read_tags, replace_file, write_tags
from .sql_backends import QuerySession, RemoteBackend
from .time_pictures import timeline_svg

#: Row limit of a query: a day of the largest job. The aggregator limits the time (`query_seconds`).
ROWS_MAX = 2_000_000
#: Maximum columns of a timeline: on a terminal, and in a picture.
COLUMNS_MAX, PICTURE_COLUMNS = 160, 240
#: Stragglers in a story; `ops.stragglers` has all.
STRAGGLERS_MAX = 8
NAME_CHARACTERS_MAX = 512
ENDINGS = (".svg", ".png")

#: A part of the step is shown if at least half of the GPUs with a step have it.
_PARTS_SQL = ", ".join(
    f"if(2 * count(g.step_{part}_ratio) >= count(g.step_seconds), median(g.step_{part}_ratio), NULL) AS step_{part}_ratio"
    for part in STEP_PARTS
)

Ask = Callable[[str], list[dict[str, Any]]]


def main(arguments: list[str]) -> int:
    """List jobs or show a job. Exit codes: 3 no aggregator, 4 unknown job or no readings."""
    parser = _parser()
    options = parser.parse_args(arguments)
    shown = options.output or options.last or options.begin or options.end
    if options.job is None and (shown or options.tags):
        parser.error("--last, --from, --to, --output and --tags need a JOB")
    if options.tags and shown:
        parser.error("--tags covers the whole run; it excludes --last, --from, --to and --output")
    if options.last and options.begin:
        parser.error("--last and --from exclude each other")
    if options.begin and options.end and options.begin >= options.end:
        parser.error("--from must be before --to")
    if options.output and options.output.suffix not in ENDINGS:
        parser.error(
            f"--output {options.output}: expected a file that ends in {' or '.join(ENDINGS)}"
        )
    return connection.guarded("job", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    connection_options = connection.read_connection_options(options)
    if options.tags or options.last or options.begin or options.end:
        with QuerySession(RemoteBackend(connection_options)) as session:
            return show_past(options, lambda sql: ask_session(session, sql))
    with JobClient(connection_options) as client:
        if options.job is not None:
            return show_story(options, client.story(options.job))
        jobs = client.jobs()
        document = json_object({"jobs": [_plain(job) for job in jobs]})
        print(document if options.json else jobs_text(jobs))
        return connection.OK


def ask_session(session: QuerySession, sql: str) -> list[dict[str, Any]]:
    """Return the rows of *sql*. Raises CommandError."""
    import pyarrow.ipc  # 0.1 s: imported after the arguments are validated

    try:
        with session.answer(Question(sql, 0.0, rows_max=ROWS_MAX)) as answer:
            rows: list[dict[str, Any]] = pyarrow.ipc.open_stream(answer).read_all().to_pylist()
            answer.finish()
    except messages.QueryError as error:
        raise connection.CommandError(str(error), connection.FAILED) from error
    return rows


def show_past(options: argparse.Namespace, ask: Ask) -> int:
    """Print or tag the past of a job; *ask* runs a query. Raises CommandError."""
    if options.tags:
        return _tag(options, ask)
    time_range = TimeRange(
        options.begin or -math.inf, options.end or math.inf, options.last or math.inf
    )
    return show_story(options, read_story(ask, options.job, time_range))


def show_story(options: argparse.Namespace, story: dict[str, Any]) -> int:
    """Print a story, or write its picture. Raises CommandError."""
    if not story["phases"]:
        raise connection.CommandError(
            f"job {options.job!r} has no readings of the last minutes yet: try again in 20 s, or read its history "
            "with --last 1h",
            connection.NOT_FOUND,
        )
    if options.output:
        write_picture(story, options.output)
    if options.json:
        print(json_object({name: _plain(value) for name, value in story.items()}))
    elif options.output:
        print(f"wrote {options.output}")
    else:
        print(story_text(story, width_of(sys.stdout), colour=wants_colour()))
    return connection.OK


def _tag(options: argparse.Namespace, ask: Ask) -> int:
    """Set the tags of a job. Raises CommandError."""
    tags = read_tags(ask, options.job)
    if not tags:
        raise connection.CommandError(_unknown(options.job, ask), connection.NOT_FOUND)
    done = write_tags(options.tags, tags)
    if options.json:
        print(json_object(tags))
    else:
        print(done + ("; the job still runs: as of now" if tags["until"] is None else ""))
    return connection.OK


def read_story(ask: Ask, job: str, time_range: TimeRange) -> dict[str, Any]:
    """Return members, phases by host, pace, stragglers and advice of *job*. Raises CommandError."""
    name = quoted(job)
    jobs = [row for row in ask(LIST_QUERY) if row["job"] == job]
    if not jobs:
        raise connection.CommandError(_unknown(job, ask), connection.NOT_FOUND)
    phases, pace = _phases_and_pace(ask, jobs[0], time_range)
    if not phases:
        raise connection.CommandError(
            f"no readings of job {job!r} in that time: it ran {_when(jobs[0])}, and readings "
            "are kept for 14 days. Omit --from and --to to see its last minutes",
            connection.NOT_FOUND,
        )
    stragglers = ask(
        f"FROM ops.stragglers WHERE job = {name} ORDER BY until IS NOT NULL, slowdown_ratio DESC, lost_gpu_hours DESC LIMIT 200"
    )
    hosts = (
        ", ".join(
            sorted({quoted(straggler["host"]) for straggler in stragglers if straggler["host"]})
        )
        or "''"
    )
    advice = ask(
        "SELECT advisory, subject, state, action, message FROM ops.advice "
        f"WHERE list_has_any(hosts, [{hosts}]) AND action IS NOT NULL LIMIT 5"
    )
    step = ask(
        "SELECT median(g.step_seconds) AS step_seconds, median(g.checkpoint_interval_seconds) AS checkpoint_seconds, "
        f"{_PARTS_SQL}, median(g.step_parts_confidence_ratio) AS step_parts_confidence_ratio "
        "FROM readings.gpu_fast_10s AS g JOIN ops.job_members AS m ON g.host = m.host AND g.device = m.gpu "
        f"WHERE m.job = {name}"
    )
    ranks = ask(ranks_query(job))
    reported = [rank["step_seconds"] for rank in ranks if rank["step_seconds"]]
    if reported:
        step = [{**(step[0] if step else {}), "step_seconds": statistics.median(reported)}]
    run = ask(run_query(job))
    forecast = ask(
        "SELECT *, ops.taken() AS now FROM ops.job_forecast "
        f"WHERE job = {name} AND source = (SELECT any_value(source) FROM ops.job_forecast WHERE job = {name}) "
        "ORDER BY horizon_seconds"
    )
    return {
        "job": jobs[0],
        "run": run[0] if run else None,
        "forecast": forecast,
        **(step[0] if step else {}),
        "ranks": ranks,
        "phases": phases,
        "pace": pace,
        "stragglers": stragglers,
        "advice": advice,
    }


def _phases_and_pace(
    ask: Ask, job: dict[str, Any], time_range: TimeRange
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return phases by host and pace: recent ones from `ops`, older ones from the history."""
    name, now = str(job["job"]), ask("SELECT ops.taken() AS now")[0]["now"].replace(tzinfo=UTC)
    until = seconds_of(job["until"] or now)
    wanted = time_range.within(seconds_of(job["since"]), until)
    if wanted.begin >= now.timestamp() - RECENT_SECONDS:
        return ask(phases_query(name, wanted)), ask(pace_query(name, wanted))
    if wanted.begin >= wanted.end:
        return [], []
    past = PastStory(name, job["gpus_count"], wanted, now)
    return ask(past.phases_query()), ask(past.pace_query())


def _when(job: dict[str, Any]) -> str:
    until = "" if job["until"] is None else f" until {job['until']:%Y-%m-%d %H:%M}"
    return f"from {job['since']:%Y-%m-%d %H:%M}{until} UTC"


def jobs_text(jobs: list[dict[str, Any]]) -> str:
    """Return the table of jobs."""
    if not jobs:
        return "no agent sees a job on a GPU, and no scheduler reported one"
    rows = [("JOB", "HOSTS", "GPUS", "SINCE (UTC)", "PACE", "LOST GPU-HOURS", "VERDICT")]
    for job in jobs:
        ended = "" if job["until"] is None else f" to {job['until']:%H:%M}"
        pace = "-" if job["pace"] is None else f"{100 * min(job['pace'], 1.0):.0f} %"
        rows.append(
            (
                printable(job["job"]),
                str(job["hosts_count"]),
                str(job["gpus_count"]),
                f"{job['since']:%m-%d %H:%M}{ended}",
                pace,
                f"{job['lost_gpu_hours']:.2f}",
                printable(verdict_text(job["verdict"])) if job["verdict"] else "-",
            )
        )
    return table(rows, width_of(sys.stdout), one_line=True)


def _headline(story: dict[str, Any]) -> str:
    job = story["job"]
    until = "still runs" if job["until"] is None else f"ended {job['until']:%m-%d %H:%M}"
    headline = (
        f"job {job['job']}: {job['hosts_count']} hosts, {job['gpus_count']} GPUs, "
        f"since {job['since']:%Y-%m-%d %H:%M} UTC, {until}{pace_text(job)}"
    )
    if story.get("step_seconds"):
        by = ", as its ranks report" if any(r["step_seconds"] for r in story["ranks"]) else ""
        headline += f"; a step takes {story['step_seconds']:.3g} s{by}{parts_text(story)}"
    if story.get("checkpoint_seconds"):
        headline += f"; a checkpoint every {story['checkpoint_seconds'] / 60:.3g} min"
    return printable(headline)


def _notes(story: dict[str, Any]) -> list[str]:
    stragglers = story["stragglers"]
    notes = [printable(line) for line in straggler_lines(stragglers[:STRAGGLERS_MAX])]
    if len(stragglers) > STRAGGLERS_MAX:
        notes.append(f"{len(stragglers) - STRAGGLERS_MAX} more in ops.stragglers")
    notes = notes or ["Nothing is known to slow it down."]
    if story["run"]:
        notes.append(run_line(story["run"]))
        if message := story["run"]["memory_message"]:
            notes.append(printable(f"memory: {message}"))
    return notes + ([forecast_line(story["forecast"])] if story["forecast"] else [])


def story_text(story: dict[str, Any], width: int, *, colour: bool) -> str:
    """Return the story for a terminal of *width* columns."""
    stragglers = story["stragglers"]
    names = max(len(row["host"]) for row in story["phases"])
    columns = max(10, min(COLUMNS_MAX, width - max(names, 4) - 2))
    culprits = culprits_of(stragglers)
    timeline = make_timeline(story["phases"], story["pace"], culprits, columns)
    lines = [_wrapped(_headline(story), width), "", *timeline_lines(timeline, colour=colour)]
    if any(row["source"] == "estimated" for row in story["phases"]):
        lines.append("phases are estimated from utilization, SM activity and power: no checkpoints")
    lines += [
        f"{clock(seconds_of(row['time']))} pace changed by {100 * row['change_ratio']:+.0f} %"
        for row in story["pace"]
        if row["is_change"] and row["change_ratio"] is not None
    ]
    if ranks := rank_lines(story["ranks"]):
        lines += ["", *(printable(line) for line in ranks)]
    lines += ["", *_notes(story)]
    if lost := lost_by_cause(stragglers):
        causes = ", ".join(f"{cause} {hours:.2f}" for cause, hours in lost.items())
        lines.append(f"GPU-hours lost by cause: {causes}")
    lines += [
        printable(
            f"advice {advisory['advisory']}: {advisory['action']} for {advisory['subject']}: {advisory['message']}"
        )
        for advisory in story["advice"]
    ]
    return "\n".join(lines[:2] + [_wrapped(line, width) for line in lines[2:]])


def _wrapped(line: str, width: int) -> str:
    """Wrap prose; leave timeline rows alone: they fit, and their color codes must not be split."""
    if "\x1b" in line or len(line) <= width or not line.strip():
        return line
    indent = " " * (3 + len(line) - len(line.lstrip()))
    return "\n".join(textwrap.wrap(line, max(width, 40), subsequent_indent=indent))


def worst_job_text(client: JobClient, command: str, width: int, *, colour: bool) -> str:
    """Return the story of the running job with the largest loss, or ""; *command* shows more."""
    jobs = [job for job in client.jobs() if job["verdict"] and job["lost_gpu_hours"] > 0]
    if not jobs:
        return ""
    name = str(jobs[0]["job"])
    text = story_text(client.story(name), width, colour=colour)
    return f"{text}\nmore: {command} {shlex.quote(name)}"


def write_picture(story: dict[str, Any], output: Path) -> None:
    """Write the timeline to *output*, completely or not at all. Raises CommandError."""
    culprits = culprits_of(story["stragglers"])
    timeline = make_timeline(story["phases"], story["pace"], culprits, PICTURE_COLUMNS)
    svg = timeline_svg(timeline, _headline(story), _notes(story))
    data = svg.encode() if output.suffix == ".svg" else _png(svg)
    replace_file(output, data)


def _png(svg: str) -> bytes:
    try:
        cairosvg = importlib.import_module("cairosvg")
    except (ImportError, OSError) as error:  # OSError: the package is present, libcairo is missing
        raise connection.CommandError(
            "a PNG needs cairosvg and libcairo: pip install cairosvg; or name a file that ends in .svg",
            connection.FAILED,
        ) from error
    png: bytes = cairosvg.svg2png(bytestring=svg.encode(), scale=2)
    return png


def _unknown(job: str, ask: Ask) -> str:
    names = [str(row["job"]) for row in ask(LIST_QUERY)]
    if near := difflib.get_close_matches(job, names, 3, 0.5):
        return f"no job {job!r}; did you mean {', '.join(near)}?"
    if not names:
        return f"no job {job!r}: no job is known to this aggregator"
    return f"no job {job!r} among the {len(names)} known; `gangline job` lists them"


def _plain(value: Any) -> Any:
    """Return *value* for JSON: times as text, NaN as null."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _job(text: str) -> str:
    if not text or len(text) > NAME_CHARACTERS_MAX or "\0" in text:
        raise argparse.ArgumentTypeError(
            f"{text[:32]!r}: expected a job's name of 1 to {NAME_CHARACTERS_MAX} characters"
        )
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline job",
        description="Shows a job: phases of its hosts over time, its pace, which host slows it down and what that costs. "
        "Without JOB, lists all jobs. See docs/fingerprints.md.",
    )
    add = parser.add_argument
    add("job", nargs="?", type=_job, metavar="JOB", help="a job's name, as the list shows it")
    add("--last", type=duration(1), metavar="2h", help="only the last 90s, 30m, 2h")
    add("--from", dest="begin", type=moment, metavar="TIME", help="start (UTC)")
    add("--to", dest="end", type=moment, metavar="TIME", help="end (UTC)")
    add("-o", "--output", type=Path, metavar="FILE", help="write a picture: FILE.svg or FILE.png")
    add(
        "--tags",
        type=parse_target,
        metavar="TARGET",
        help=(
            "write its hosts, verdicts and lost GPU-hours as tags to its run in an experiment "
            f"tracker: {FORMS}"
        ),
    )
    command_line.add_options(parser)
    return parser
