"""`gangline executor slurm`: carries out accepted advisories in Slurm, in a process of its own."""

from __future__ import annotations

import argparse
import getpass
import logging
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from ...cli import FAILED, OK, USAGE
from ...contract.settings import SettingsError, describe, load
from ...contract.wire import advisory_pb2
from ...contract.wire.advisory_pb2_grpc import AdvisoryServiceStub
from ..executors import slurm_doctor
from ..executors.client import CALL_SECONDS, CHANNEL_OPTIONS, AggregatorClient
from ..executors.executor import Executor, undo_all
from ..executors.ledger import ExecutorLedger, LedgerError, locked
from ..executors.model import SchedulerError
from ..executors.settings import ExecutorConfig, NodeNames
from ..executors.slurm import Slurm, run_command
from .connection import (
    CommandError,
    add_connection_options,
    command_error,
    guarded,
    open_channel,
    read_connection_options,
)

if TYPE_CHECKING:
    from types import FrameType

log = logging.getLogger(__name__)

LEDGER_FILE = "ledger.json"
SUBCOMMANDS = ("run", "doctor", "undo", "status")


def main(arguments: list[str]) -> int:
    """Run (without a word), doctor, undo, status. 1: failed, with a message; 2: wrong usage; 3: no aggregator answers."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.help_settings:
        print(describe(ExecutorConfig))
        return OK
    try:
        config = load(ExecutorConfig, options.config, options.set)
        names = NodeNames(config.node_map)
    except (SettingsError, ValueError) as error:
        print(f"gangline executor: {error}", file=sys.stderr)
        return USAGE
    except OSError as error:
        print(f"gangline executor: node_map: {error.filename}: {error.strerror}", file=sys.stderr)
        return USAGE
    if options.what == "undo" and not options.all:
        parser.error("undo takes away everything that executors set: say so with --all")
    try:
        return guarded("executor", lambda: _run(options, config, names))
    except (LedgerError, SchedulerError) as error:
        print(f"gangline executor: {error}", file=sys.stderr)
        return FAILED


def _run(options: argparse.Namespace, config: ExecutorConfig, names: NodeNames) -> int:
    scheduler = Slurm(run_command, config.reset_command, config.release_command)
    folder = Path(config.ledger)
    match options.what:
        case "undo":
            return _undo(scheduler)
        case "status":
            return _status(ExecutorLedger(folder / LEDGER_FILE))
        case "doctor":
            return _doctor(options, scheduler, folder)
        case _:
            return _serve(options, config, names, scheduler, folder)


def _serve(
    options: argparse.Namespace,
    config: ExecutorConfig,
    names: NodeNames,
    scheduler: Slurm,
    folder: Path,
) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    connection_options = read_connection_options(options)
    wake = threading.Event()
    with locked(folder), open_channel(connection_options, CHANNEL_OPTIONS) as channel:
        client = AggregatorClient(channel, config.actor, wake.set, names.node_of)
        executor = Executor(
            config, scheduler, client, ExecutorLedger(folder / LEDGER_FILE), names, shadow=options.shadow, wake=wake,
        )  # fmt: skip

        def end(number: int, frame: FrameType | None) -> None:
            executor.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)
        client.start()
        log.info(
            "executor %s %s: aggregator %s, ledger %s", config.cluster,
            "in shadow: nothing is changed" if options.shadow else "acts", connection_options.aggregator, folder,
        )  # fmt: skip
        executor.run()
        client.close()
    return OK


def _undo(scheduler: Slurm) -> int:
    done, failed = undo_all(scheduler)
    for line in done:
        print(f"undone: {line}")
    for line in failed:
        print(f"gangline executor: not undone: {line}", file=sys.stderr)
    if not done and not failed:
        print("nothing in Slurm was set by an executor")
    return FAILED if failed else OK


def _status(ledger: ExecutorLedger) -> int:
    now = time.time()
    if not ledger.entries:
        print("nothing is set")
    for entry in sorted(ledger, key=lambda one: one.accepted):
        what = entry.hold or entry.mark or "-"
        left = max(0.0, entry.expires - now)
        jobs = ", ".join(f"job {name} {one.state}" for name, one in entry.jobs.items())
        print(
            f"{entry.advisory}  {entry.node}  {entry.action}  {what}  {entry.phase}  ends in {left:.0f} s"
            + (f"  {jobs}" if jobs else "")
        )
    return OK


def _doctor(options: argparse.Namespace, scheduler: Slurm, folder: Path) -> int:
    findings: list[slurm_doctor.DoctorFinding] = []
    try:
        capabilities = scheduler.capabilities()
        config = slurm_doctor.parse_config(run_command(["scontrol", "show", "config"]))
        findings += slurm_doctor.config_findings(config, capabilities, getpass.getuser())
        nodes = scheduler.read_nodes()
        findings.append(slurm_doctor.DoctorFinding(slurm_doctor.OK, f"{len(nodes)} nodes"))
        if options.attempt and nodes:
            findings.append(slurm_doctor.rights_finding(run_command, next(iter(nodes))))
    except SchedulerError as error:
        findings.append(slurm_doctor.DoctorFinding(slurm_doctor.MISSING, str(error)))
    findings.append(_ledger_finding(folder))
    findings.append(_aggregator_finding(options))
    for finding in findings:
        print(f"{finding.level:<8}{finding.text}")
    return FAILED if any(one.level == slurm_doctor.MISSING for one in findings) else OK


def _ledger_finding(folder: Path) -> slurm_doctor.DoctorFinding:
    try:
        with locked(folder):
            ExecutorLedger(folder / LEDGER_FILE).save()
    except LedgerError as error:
        level = slurm_doctor.NOTE if "another executor" in str(error) else slurm_doctor.MISSING
        return slurm_doctor.DoctorFinding(level, f"ledger: {error}")
    return slurm_doctor.DoctorFinding(slurm_doctor.OK, f"ledger in {folder} can be written")


def _aggregator_finding(options: argparse.Namespace) -> slurm_doctor.DoctorFinding:
    connection_options = read_connection_options(options)
    try:
        with open_channel(connection_options) as channel:
            stub = AdvisoryServiceStub(channel)  # type: ignore[no-untyped-call]
            try:
                # Only a login that may answer advisories may report.
                stub.ReportGangs(
                    advisory_pb2.ReportGangsRequest(actor="doctor", validate_only=True),
                    timeout=CALL_SECONDS,
                )
            except grpc.RpcError as error:
                raise command_error(error, connection_options) from error
    except CommandError as error:
        return slurm_doctor.DoctorFinding(slurm_doctor.MISSING, str(error))
    return slurm_doctor.DoctorFinding(
        slurm_doctor.OK, f"the aggregator at {connection_options.aggregator} takes our reports"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline executor",
        description="Carries out advisories in Slurm: accepts them, keeps new work off bad nodes, moves jobs, and takes back only what it set. "
        "Everything that it sets ends by itself at the advisory's expiry.",
        epilog="words: run (the default); doctor: what costs time, and what is missing; status: what is set; undo --all: take everything away, "
        "without the aggregator. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no aggregator answers",
    )  # fmt: skip
    parser.add_argument("scheduler", choices=["slurm"], help="which scheduler")
    parser.add_argument("what", nargs="?", choices=SUBCOMMANDS, default="run", help="default: run")
    parser.add_argument(
        "--shadow", action="store_true", help="say what would be done, change nothing"
    )
    parser.add_argument("--all", action="store_true", help="of undo: everything that executors set")
    parser.add_argument(
        "--try", dest="attempt", action="store_true",
        help="of doctor: make a reservation that begins tomorrow and delete it, to see whether that is allowed",
    )  # fmt: skip
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings, TOML")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="one setting"
    )
    parser.add_argument("--help-settings", action="store_true", help="list all settings")
    add_connection_options(parser)
    return parser
