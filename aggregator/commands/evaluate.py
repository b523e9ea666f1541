"""`gangline admin evaluate`: measures the quality of scores and hazards on recordings."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from ...cli import json_object
from ...contract.client.connection import FAILED, OK, CommandError, guarded
from ...contract.client.terminal import ProgressBar
from ...contract.options import UNITS, add_former_names, duration
from ..hazard.evaluation import EvaluationTerms, evaluate
from ..hazard.evaluation_page import markdown
from ..hazard.events import NODES_MAX, EventsError, nodes_in_file_name, read_events

DRAWS_MAX = 10_000


def main(arguments: list[str]) -> int:
    """Print the tables. Exit code 1, with a message: no recording of faults, or too short."""
    options = _parser().parse_args(arguments)
    return guarded("admin evaluate hazard", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    path: Path = options.events
    if (
        options.out is not None and not options.out.parent.is_dir()
    ):  # checked before minutes of work
        raise CommandError(f"{options.out}: there is no folder {options.out.parent}", FAILED)
    if options.out is not None and options.out.is_dir():
        raise CommandError(f"{options.out}: is a folder; name a file in it", FAILED)
    progress = ProgressBar(quiet=options.quiet)
    try:
        faults = read_events(path)
        if options.from_day:
            faults = faults.since(float(options.from_day))
        nodes = options.nodes or nodes_in_file_name(path) or len(faults.nodes)
        faults = faults.with_nodes(nodes)
        gang = options.gang_nodes or nodes
        terms = EvaluationTerms(
            options.train_until, gang, options.lost_hours, options.draws, options.seed, options.from_day
        )  # fmt: skip
        evaluation = evaluate(faults, terms, lambda what: progress.begin(what, 0))
    except EventsError as error:
        raise CommandError(f"{path}: {error}", FAILED) from error
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}", FAILED) from error
    finally:
        progress.end()
    if options.json:
        text = json_object(_known(evaluation.as_dict()), indent=1)
    else:
        text = markdown(evaluation)
    if options.out is None:
        print(text)
        return OK
    try:
        options.out.write_text(text + "\n")
    except OSError as error:
        print(text)  # keep the result of minutes of work
        raise CommandError(f"{options.out}: {error.strerror}", FAILED) from error
    return OK


def _known(value: Any) -> Any:
    """Return *value* with null for NaN and infinity, which JSON lacks."""
    if isinstance(value, dict):
        return {key: _known(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_known(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _whole(low: int, high: int) -> Any:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(
                f"{text[:20]!r}: expected a whole number from {low} to {high}"
            )
        return value

    return parse


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline admin evaluate",
        description="Measures the quality of scores on recordings. Needs no aggregator.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_hazard(commands)
    return parser


def _add_hazard(commands: Any) -> None:
    hazard = commands.add_parser(
        "hazard",
        help="the model of hazard and its baselines on a recording of faults",
        description=(
            "Trains a hazard model on the faults of a recording up to a day, and evaluates it "
            "and simpler rankings on the days after. docs/hazard.md explains each figure."
        ),
        epilog="exit codes: 0 done, 1 failed, 2 wrong usage",
    )
    add = hazard.add_argument
    add(
        "events",
        type=Path,
        metavar="EVENTS.json",
        help="a list of {node_id, event_time (days), event_type (fault_start, fault_end), fault_type {Level, Class, Desc}}",
    )
    add(
        "--train-until",
        type=_whole(1, 10_000),
        required=True,
        metavar="DAY",
        help="the last training day; days count from 0, or from --from",
    )
    add(
        "--from",
        dest="from_day",
        type=_whole(0, 10_000),
        default=0,
        metavar="DAY",
        help=(
            "the day of the file on which its recording begins, if not 0. This day becomes day "
            "0, also for --train-until; faults that ended earlier are ignored"
        ),
    )
    add(
        "--nodes",
        type=_whole(1, NODES_MAX),
        metavar="N",
        help=(
            "nodes of the fleet, including nodes that never failed and are not in the file "
            "(default: from the file's name, ..._400_nodes_...; else the nodes in the file)"
        ),
    )
    add(
        "--gang-nodes",
        type=_whole(1, NODES_MAX),
        metavar="N",
        help="nodes of the job that a fault interrupts (default: the whole fleet)",
    )
    add(
        "--lost-hours",
        type=duration(0.001, 1000.0 * UNITS["h"], unit="h"),
        default=1.0,
        metavar="H",
        help=(
            "hours that each of these nodes loses: detect, decide, restart, half a checkpoint "
            "interval (default: 1, assumed)"
        ),
    )
    add(
        "--bootstrap",
        dest="draws",
        type=_whole(2, DRAWS_MAX),
        default=200,
        metavar="N",
        help="bootstrap samples of the fleet for the intervals (default: 200)",
    )
    add(
        "--seed",
        type=_whole(0, 2**32),
        default=1,
        metavar="N",
        help="seed of the bootstrap samples",
    )
    output = add(
        "-o",
        "--output",
        dest="out",
        type=Path,
        metavar="FILE",
        help="write to this file instead of the terminal",
    )
    add_former_names(hazard, output, "--out")
    add("--json", action="store_true", help="one JSON object instead of tables")
    add("--quiet", action="store_true", help="show no progress")
