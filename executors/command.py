"""`gangline executor SCHEDULER`: carries out accepted advisories in a scheduler, in its own process."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from ..cli import FAILED, OK, USAGE, json_object
from ..contract.client.command_line import add_connection_options
from ..contract.client.connection import (
    CommandError,
    command_error,
    guarded,
    open_channel,
    read_connection_options,
)
from ..contract.otlp_logs import OtlpLogExporter
from ..contract.settings import SettingsError, describe, load
from ..contract.wire import advisory_pb2
from ..contract.wire.advisory_pb2_grpc import AdvisoryServiceStub
from . import core
from .client import CALL_SECONDS, CHANNEL_OPTIONS, AggregatorClient
from .context import ExecutorContext
from .executor import Executor
from .flux.scheduler import FluxConfig, FluxSite
from .htcondor.scheduler import HTCondorConfig, HTCondorSite
from .kubernetes.settings import KubernetesConfig
from .kubernetes.site import KubernetesSite
from .launchers import segments as launcher_segments
from .launchers.launchers import Launchers
from .ledger import Entry, ExecutorLedger, LedgerError, locked
from .metrics import ExecutorFigures
from .model import DoctorFinding, DoctorLevel, SchedulerError, SchedulerState
from .ray.scheduler import RaySite
from .ray.settings import RayConfig
from .settings import ExecutorConfig, NodeNames
from .site import LEDGER_FILE, Companion, SchedulerSite
from .slurm.site import SlurmSite
from .step_log import StepLog
from .undo import undo_all

if TYPE_CHECKING:
    from types import FrameType

log = logging.getLogger(__name__)

#: The executor's other threads have this long to end: they may be in a call.
COMPANION_SECONDS_MAX = 15.0
SUBCOMMANDS = ("run", "doctor", "undo", "status", "extender")
WITH_JSON = ("doctor", "status")


SITES: dict[str, tuple[type[SchedulerSite], type[ExecutorConfig]]] = {
    "slurm": (SlurmSite, ExecutorConfig),
    "kubernetes": (KubernetesSite, KubernetesConfig),
    "htcondor": (HTCondorSite, HTCondorConfig),
    "ray": (RaySite, RayConfig),
    "flux": (FluxSite, FluxConfig),
}


def main(arguments: list[str]) -> int:
    """Run a subcommand, `run` by default. Exit codes: 1 failed, 2 wrong usage, 3 no aggregator."""
    parser = _parser()
    options = parser.parse_intermixed_args(arguments)
    site_kind, config_kind = SITES[options.scheduler]
    if options.help_settings:
        print(describe(config_kind))
        return OK
    try:
        config = load(config_kind, options.config, options.set)
        names = NodeNames(config.node_map)
    except (SettingsError, ValueError) as error:
        print(f"gangline executor: {error}", file=sys.stderr)
        return USAGE
    except OSError as error:
        print(f"gangline executor: node_map: {error.filename}: {error.strerror}", file=sys.stderr)
        return USAGE
    if options.what == "extender":
        if not isinstance(config, KubernetesConfig):
            parser.error("only Kubernetes has an extender: gangline executor kubernetes extender")
        return _extend(config, names)
    if options.json and options.what not in WITH_JSON:
        parser.error(f"--json is for {' and '.join(WITH_JSON)}")
    if options.what == "undo" and not options.all:
        parser.error("undo removes everything that executors set; confirm with --all")
    try:
        with closing(site_kind(config)) as site:
            return guarded("executor", lambda: _run(options, site, names))
    except (LedgerError, SchedulerError) as error:
        print(f"gangline executor: {error}", file=sys.stderr)
        return FAILED


def _run(options: argparse.Namespace, site: SchedulerSite, names: NodeNames) -> int:
    match options.what:
        case "undo":
            return _undo(site)
        case "status":
            return _status(options, site)
        case "doctor":
            return _doctor(options, site)
        case _:
            return _serve(options, site, names)


def _serve(options: argparse.Namespace, site: SchedulerSite, names: NodeNames) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    connection_options = read_connection_options(options)
    config, wake, stopped = site.config, threading.Event(), threading.Event()
    signaled = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        signaled.set()
        stopped.set()
        wake.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    figures = ExecutorFigures()
    with (
        serving_metrics(config.metrics_listen, figures),
        exporting(config) as exporter,
        site.own_ledger(stopped, options.shadow) as ledger,
        open_channel(connection_options, CHANNEL_OPTIONS) as channel,
    ):
        if ledger is None:
            return OK
        try:
            launchers = Launchers(config, shadow=options.shadow)
        except OSError as error:
            print(
                f"gangline executor: attribution_listen: {config.attribution_listen}: {error.strerror}",
                file=sys.stderr,
            )
            return FAILED
        client = AggregatorClient(channel, config.actor, wake.set, names.node_of)
        context = ExecutorContext(
            config, site.scheduler, client, ledger, names, shadow=options.shadow
        )
        executor = Executor(context, StepLog(context, figures, exporter), launchers, wake, stopped)
        client.start()
        launchers.start()
        figures.has_lease = not options.shadow
        log.info(
            "executor %s %s: aggregator %s, ledger %s",
            config.cluster,
            "shadow mode: nothing is changed" if options.shadow else "acts",
            connection_options.aggregator,
            ledger.place,
        )
        companions = () if options.shadow else site.companions(channel, names)
        with closing(client), closing(launchers), running(companions):
            executor.run()
    return OK if signaled.is_set() else FAILED


@contextmanager
def serving_metrics(address: str, figures: ExecutorFigures) -> Iterator[None]:
    """Serve /metrics at *address*, unless "". Raises CommandError if it cannot listen."""
    if not address:
        yield
        return
    # Imported here: it takes half a second, and most executors serve nothing.
    from ..contract.server.http_server import HttpLimits, HttpThread, listener, metrics_routes

    host, _, port = address.rpartition(":")
    limits = HttpLimits(connections_max=16)
    try:
        server = HttpThread(listener(host, int(port)), metrics_routes(figures.render), limits)
    except OSError as error:
        raise CommandError(
            f"metrics_listen = {address}: {error.strerror or error}; name a free port", FAILED
        ) from error
    server.start()
    try:
        yield
    finally:
        server.close()


@contextmanager
def exporting(config: ExecutorConfig) -> Iterator[OtlpLogExporter | None]:
    """Yield the exporter of steps, None if unset. Raises CommandError for malformed headers."""
    if not config.otlp_logs:
        yield None
        return
    try:
        exporter = OtlpLogExporter(config.otlp_logs, "gangline-executor", config.actor)
    except ValueError as error:
        raise CommandError(str(error), FAILED) from error
    with closing(exporter):
        exporter.start()
        yield exporter


@contextmanager
def running(companions: Iterable[Companion]) -> Iterator[None]:
    """Run each of *companions* in a thread."""
    with ExitStack() as stack:
        ended = threading.Event()
        for companion in companions:
            thread = threading.Thread(target=companion, args=(ended,), daemon=True)
            thread.start()
            stack.callback(thread.join, COMPANION_SECONDS_MAX)
        stack.callback(ended.set)
        yield


def _extend(config: KubernetesConfig, names: NodeNames) -> int:
    """Answer a scheduler until SIGTERM or SIGINT."""
    from .kubernetes import extender_server

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    extender = extender_server.Extender(Path(config.extender_mirror), names.node_of)
    host, _, port = config.extender_listen.rpartition(":")

    async def run() -> None:
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
        await extender_server.serve(
            extender, host.strip("[]"), int(port), ended,
            lambda chosen: log.info("extender at http://%s:%d/extender/v1, from %s", host, chosen, config.extender_mirror),
        )  # fmt: skip

    try:
        asyncio.run(run())
    except OSError as error:
        print(
            f"gangline executor: extender_listen = {config.extender_listen}: "
            f"{os.strerror(error.errno or 0)}",
            file=sys.stderr,
        )
        return FAILED
    return OK


def _undo(site: SchedulerSite) -> int:
    with ExitStack() as stack:
        ledger: ExecutorLedger | None = None
        if site.has_weights:
            try:
                ledger = site.read_ledger()
                if ledger.weights:
                    stack.enter_context(locked(Path(site.config.ledger)))
            except LedgerError as error:  # everything else is found without the ledger
                print(f"gangline executor: the weights are unchanged: {error}", file=sys.stderr)
                ledger = None
        done, failed = undo_all(site.scheduler, ledger)
    done += site.undo_companions()
    if site.config.segment_health_dir:
        folder = Path(site.config.segment_health_dir)
        try:
            names = launcher_segments.managed_files(folder)
            launcher_segments.remove(folder, names)
            done += [f"{folder / name}" for name in names]
        except OSError as error:
            failed.append(f"segment_health_dir {folder}: {error.strerror}")
    for line in done:
        print(f"undone: {line}")
    for line in failed:
        print(f"gangline executor: not undone: {line}", file=sys.stderr)
    if not done and not failed:
        print(f"nothing in {site.title} was set by an executor")
    return FAILED if failed else OK


def _status(options: argparse.Namespace, site: SchedulerSite) -> int:
    ledger, now, missing = site.read_ledger(), time.time(), set[str]()
    entries = sorted(ledger, key=lambda item: item.accepted)
    if not entries and not options.json:
        print("nothing is set")
        return OK
    try:
        scheduler = site.scheduler
        state = SchedulerState(scheduler.read_nodes(), {}, scheduler.read_holds())
        missing = core.missing_marks(ledger, state)
    except SchedulerError as error:
        print(f"gangline executor: from the ledger alone: {error}", file=sys.stderr)
    if options.json:
        documents = [_entry_document(entry, now, missing) for entry in entries]
        print(json_object({"entries": documents}))
        return OK
    for entry in entries:
        what = entry.hold or entry.mark or "-"
        left = max(0.0, entry.expires - now)
        jobs = ", ".join(job.note or f"job {name} {job.state}" for name, job in entry.jobs.items())
        phase = _phase(entry, missing)
        print(
            f"{entry.advisory}  {entry.node}  {entry.action}  {what}  {phase}  ends in {left:.0f} s"
            + (f"  {jobs}" if jobs else "")
        )
    return OK


def _phase(entry: Entry, missing: Collection[str]) -> str:
    return "no longer set" if entry.advisory in missing else entry.phase


def _entry_document(entry: Entry, now: float, missing: Collection[str]) -> dict[str, object]:
    return {
        "advisory": entry.advisory,
        "node": entry.node,
        "action": entry.action,
        "mark": entry.mark or None,
        "hold": entry.hold or None,
        "phase": _phase(entry, missing),
        "seconds_left": round(max(0.0, entry.expires - now), 1),
        "jobs": [
            {"job": name, "state": job.state, "note": job.note} for name, job in entry.jobs.items()
        ],
    }


def _doctor(options: argparse.Namespace, site: SchedulerSite) -> int:
    findings = list(site.findings(options.attempt))
    if site.config.ledger:
        findings.append(_ledger_finding(Path(site.config.ledger)))
    findings.append(_aggregator_finding(options))
    if options.json:
        rows = [{"level": finding.level, "text": finding.text} for finding in findings]
        print(json_object({"findings": rows}))
    else:
        for finding in findings:
            print(f"{finding.level:<8}{finding.text}")
    return FAILED if any(finding.level == DoctorLevel.MISSING for finding in findings) else OK


def _ledger_finding(folder: Path) -> DoctorFinding:
    """Return whether the ledger is writable.

    Run as another user, this creates nothing: the executor could not write to it.
    """
    parent = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    if not os.path.exists(folder) and (os.geteuid() == 0 or not os.access(parent, os.W_OK)):
        return DoctorFinding(
            DoctorLevel.NOTE,
            f"ledger: {folder} does not exist yet; the unit creates it, or create it for the user "
            "of the executor",
        )
    if os.geteuid() == 0 and folder.stat().st_uid != 0:
        return DoctorFinding(
            DoctorLevel.NOTE,
            f"ledger: {folder} belongs to another user; run doctor as the user of the executor to "
            "test it",
        )
    try:
        with locked(folder):
            ExecutorLedger(folder / LEDGER_FILE).save()
    except LedgerError as error:
        level = DoctorLevel.NOTE if "another executor" in str(error) else DoctorLevel.MISSING
        return DoctorFinding(level, f"ledger: {error}")
    return DoctorFinding(DoctorLevel.OK, f"ledger in {folder} can be written")


def _aggregator_finding(options: argparse.Namespace) -> DoctorFinding:
    connection_options = read_connection_options(options)
    try:
        with open_channel(connection_options) as channel:
            stub = AdvisoryServiceStub(channel)  # type: ignore[no-untyped-call]
            try:
                # Only a login with permission to answer advisories may report.
                stub.ReportGangs(
                    advisory_pb2.ReportGangsRequest(actor="doctor", validate_only=True),
                    timeout=CALL_SECONDS,
                )
            except grpc.RpcError as error:
                raise command_error(error, connection_options) from error
    except CommandError as error:
        return DoctorFinding(DoctorLevel.MISSING, str(error))
    return DoctorFinding(
        DoctorLevel.OK,
        f"the aggregator at {connection_options.aggregator} accepts this executor's reports",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline executor",
        description=(
            "Carries out advisories in Slurm, Kubernetes, HTCondor, Ray or Flux: accepts them, "
            "keeps new work off bad nodes, and moves jobs. Removes only what it set itself. "
            "Everything that it sets expires with its advisory."
        ),
        epilog=(
            "commands: run (the default); doctor: show what costs time and what is missing; "
            "status: show what is set; undo --all: remove everything that executors set, "
            "without the aggregator; extender: answer a kube-scheduler or Volcano from the "
            "mirror file, in a separate process. Exit codes: 0 done, 1 failed, 2 wrong usage, "
            "3 no aggregator answers"
        ),
    )
    add = parser.add_argument
    add("scheduler", choices=list(SITES), help="which scheduler")
    add("what", nargs="?", choices=SUBCOMMANDS, default="run", help="default: run")
    add(
        "--shadow",
        action="store_true",
        help="shadow mode: print what would be done, change nothing",
    )
    add("--all", action="store_true", help="undo: remove everything that executors set")
    add(
        "--try",
        dest="attempt",
        action="store_true",
        help=(
            "doctor: test whether marks can be set; in Slurm with a reservation that begins "
            "tomorrow and is deleted at once, in Kubernetes with a dry run"
        ),
    )
    add("--json", action="store_true", help="doctor, status: one JSON object")
    add("--config", type=Path, metavar="FILE", help="settings, TOML")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="one setting")
    add("--help-settings", action="store_true", help="list all settings")
    add_connection_options(parser)
    return parser
