"""`gangline recover`: compares ways to continue after a failure, or reports the outcome."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from google.protobuf.json_format import Parse, ParseError

from ...cli import json_object
from ...contract.client import command_line, connection
from ...contract.client.command_line import seconds_of
from ...contract.client.plan_text import (
    DEADLINE_SECONDS,
    fold_names,
    message_json,
    node_dictionary,
    price_lines,
    tier_title,
    wrapped,
)
from ...contract.client.terminal import table
from ...contract.text import counted
from ...contract.wire import recovery_pb2 as wire
from ...contract.wire.recovery_pb2_grpc import RecoveryServiceStub
from .plan import add_gang_options, candidates_of, count_of, gang_of, node_indexes, read_host_names

KIND_TITLES = {
    wire.RECOVERY_IN_PROCESS: "restart processes in place",
    wire.RECOVERY_HOT_SPARE: "replace by hot spares",
    wire.RECOVERY_FREE_NODE: "replace by free nodes",
    wire.RECOVERY_BORROW: "borrow",
    wire.RECOVERY_SHRINK: "shrink",
    wire.RECOVERY_WAIT_FOR_REPAIR: "wait for repairs",
    wire.RECOVERY_RESTART_ELSEWHERE: "restart elsewhere",
}
#: Replacements in the text output; --json has all.
REPLACEMENTS_SHOWN_MAX = 16
#: Maximum size of a report's JSON.
REPORT_BYTES_MAX = 1 << 16


def main(arguments: list[str]) -> int:
    """Print the ways to continue, or store an outcome.

    Exit codes: 1 no way to continue, or refused; 3 no aggregator answers.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.report:
        return connection.guarded("recover", lambda: _report(options))
    if not (options.job or options.members):
        parser.error("name the gang: --job NAME, or --members HOSTS with its hosts in rank order")
    return connection.guarded("recover", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    with connection.connected(connection.read_connection_options(options)) as channel:
        recovery: Any = RecoveryServiceStub(channel)  # type: ignore[no-untyped-call]
        dictionary = node_dictionary(channel)
        reply = recovery.PlanRecovery(_request(options, dictionary), timeout=DEADLINE_SECONDS)
    if options.json:
        print(message_json(reply))
    else:
        print(recovery_text(reply, dictionary.names, shown=options.show, explain=options.explain))
    return connection.OK if reply.options else connection.FAILED


def _report(options: argparse.Namespace) -> int:
    request = report_of(options.report)
    with connection.connected(connection.read_connection_options(options)) as channel:
        recovery: Any = RecoveryServiceStub(channel)  # type: ignore[no-untyped-call]
        reply = recovery.ReportRecovery(request, timeout=DEADLINE_SECONDS)
    if options.json:
        print(json_object({"incident": request.incident, "known": bool(reply.known)}))
    elif reply.known:
        print(f"incident {request.incident} was reported before: nothing changed")
    else:
        print(f"incident {request.incident} is stored; ops.calibration shows what plans assume now")
    return connection.OK


def report_of(file: str) -> wire.ReportRecoveryRequest:
    """Return the report in *file* ("-": standard input). Raises CommandError."""
    try:
        if file == "-":
            data = sys.stdin.buffer.read(REPORT_BYTES_MAX + 1)
        else:
            with open(file, "rb") as opened:
                data = opened.read(REPORT_BYTES_MAX + 1)
    except OSError as error:
        raise connection.CommandError(
            f"{file}: {error.strerror or error}", connection.FAILED
        ) from error
    if len(data) > REPORT_BYTES_MAX:
        reason = f"more than {REPORT_BYTES_MAX} bytes, expected the fields of ReportRecoveryRequest"
        raise connection.CommandError(f"{file}: {reason}", connection.FAILED)
    try:
        return Parse(data, wire.ReportRecoveryRequest())
    except (ParseError, UnicodeDecodeError) as error:
        raise connection.CommandError(
            f"{file}: {error}; expected JSON of ReportRecoveryRequest (contract/wire/recovery.proto)",
            connection.FAILED,
        ) from error


def _request(options: argparse.Namespace, dictionary: Any) -> wire.PlanRecoveryRequest:
    gang: Any = gang_of(options)
    candidates: Any = candidates_of(options, dictionary)
    members = read_host_names(options.members) if options.members else []
    if options.members and not members:
        raise connection.CommandError(
            f"{options.members}: no names, expected the gang's hosts", connection.FAILED
        )
    request = wire.PlanRecoveryRequest(
        gang=gang,
        dictionary_version=dictionary.version,
        current_node_index=node_indexes(dictionary, members),
        failed_node_index=node_indexes(dictionary, options.failed),
        suspect_node_index=node_indexes(dictionary, options.suspect),
        hot_spare_node_index=node_indexes(dictionary, options.hot_spares),
        candidates=candidates,
        goes_on_in_process=options.in_process,
        nodes_min=options.shrink_to,
        failures_at_step=options.failures_at_step,
        application_error=options.error,
        explain=options.explain,
    )
    for name, hosts in options.borrow:
        request.lenders.add(
            workload=name, node_index=node_indexes(dictionary, read_host_names(hosts))
        )
    if options.checkpoint_age is not None:
        request.checkpoint.age.FromSeconds(options.checkpoint_age)
    return request


def recovery_text(
    reply: wire.PlanRecoveryResponse, names: Sequence[str], *, shown: int = 1, explain: bool = False
) -> str:
    """Return a table of the ways to continue, then number *shown* in full."""
    failed = [names[index] for index in reply.failed_node_index]
    lines = [f"degraded: {reply.degraded_reason}"] if reply.degraded else []
    lines += [f"{len(failed)} failed: {' '.join(fold_names(failed))}"] if failed else []
    for domain in reply.domains:
        lines.append(
            f"suspected: {tier_title(int(domain.tier))} {domain.name}, {domain.failed_nodes} of the gang's {domain.member_nodes} nodes in it "
            f"failed (chance {domain.chance:.2g}); no replacement is placed there"
        )
    if reply.restart_is_futile:
        lines.append(f"a restart is likely to fail again: {reply.futile_reason}")
    if reply.culprit_probability >= 0.5:
        culprit = names[reply.culprit_node_index]
        lines.append(
            f"most likely cause: {culprit} (probability {reply.culprit_probability:.2f}, by hazards)"
        )
    if reply.options:
        lines += ["", _options_table(reply), ""]
        shown = min(shown, len(reply.options))
        lines.append(f"option {shown}, {_title(reply.options[shown - 1])} (--show N: another)")
        lines += _option_lines(reply.options[shown - 1], names, explain=explain)
    else:
        lines.append("no way to continue was found; name candidates, hot spares, or --shrink-to")
    lines += [f"note: {note}" for note in reply.notes]
    lines.append(
        f"decision {reply.decision_id}, snapshot {reply.score_version}; candidates: {reply.candidates_source}"
    )
    return "\n".join(lines)


def _options_table(reply: wire.PlanRecoveryResponse) -> str:
    """Return a table of the options, after the loss without a failure, which old servers omit."""
    rows = [
        ("OPTION", "LOST GPU-H", "P50", "P90", "RUNS IN", "STOPS", "NODES", "SECOND FAILURE", "SPEED", "WHAT")
    ]  # fmt: skip
    if reply.HasField("undisturbed"):
        before = reply.undisturbed
        rows.append(
            (
                "-", f"{before.price.total_gpu_hours.value:.1f}", f"{before.p50_gpu_hours:.1f}", f"{before.p90_gpu_hours:.1f}",
                "-", "-", "-", f"{before.interruption_probability.value:.3f}", f"{before.speed.value:.3f}", "if no member had failed",
            )
        )  # fmt: skip
    for number, option in enumerate(reply.options, 1):
        steps = option.detect_hours, option.decide_hours, option.act_hours, option.resume_hours
        minutes = 60.0 * sum(step.value for step in steps)
        waits = option.kind == wire.RECOVERY_WAIT_FOR_REPAIR
        rows.append(
            (
                str(number), f"{option.price.total_gpu_hours.value:.1f}", f"{option.p50_gpu_hours:.1f}", f"{option.p90_gpu_hours:.1f}",
                f"{'repair + ' if waits else ''}{minutes:.0f} min", str(len(option.stopped_node_index)), str(len(option.node_index)),
                f"{option.second_failure_probability.value:.3f}", f"{option.speed.value:.3f}", _title(option),
            )
        )  # fmt: skip
    return table(rows)


def _title(option: wire.RecoveryOption) -> str:
    title = KIND_TITLES.get(option.kind, wire.RecoveryKind.Name(option.kind))
    return f"{title} from {option.lender}" if option.lender else title


def _option_lines(option: wire.RecoveryOption, names: Sequence[str], *, explain: bool) -> list[str]:
    price: Any = option.price
    lines = [*price_lines(price, explain=explain), "steps:"]
    lines += [f"  {number}. {step}" for number, step in enumerate(option.steps, 1)]
    for replacement in option.replacements[:REPLACEMENTS_SHOWN_MAX]:
        leaves = [
            what for what, held in (("segment", replacement.keeps_segment), ("rails", replacement.keeps_rails)) if not held
        ]  # fmt: skip
        more = f"; not in the {' and '.join(leaves)} of the others" if leaves else ""
        lines.append(
            f"rank {replacement.rank}: {names[replacement.failed_node_index]} -> {names[replacement.by_node_index]}{more}"
        )
    if (left := len(option.replacements) - REPLACEMENTS_SHOWN_MAX) > 0:
        lines.append(f"and {left} more; --json has all")
    lines.append(f"{counted(len(option.node_index), 'node')} afterwards, in rank order:")
    return lines + wrapped(fold_names([names[index] for index in option.node_index]))


def _lender(text: str) -> tuple[str, str]:
    name, equals, hosts = text.partition("=")
    if not (name and equals and hosts):
        raise argparse.ArgumentTypeError(
            f"{text[:100]!r}: expected JOB=HOSTS: a job and its hosts, as a set or a file of sets"
        )
    return name, hosts


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline recover",
        description="Compares the ways to continue after members of a gang failed, by the GPU-hours that each is expected to "
        "lose from the failure to the job's end. Does not start, move or stop anything.",
        epilog="exit codes: 0 an answer, 1 no way, or refused, 2 wrong usage, 3 no aggregator answers",
    )
    command_line.add_options(parser)
    add_gang_options(parser)
    add = parser.add_argument
    add(
        "--members",
        metavar="HOSTS",
        help="the gang's hosts in rank order, as a set or a file of sets; default: those on which --job is seen",
    )
    add("--failed", type=command_line.host_set_option, default=[], metavar="HOSTS",
        help="failed members; default: members that are UNHEALTHY, in maintenance, or gone")  # fmt: skip
    add(
        "--suspect",
        type=command_line.host_set_option,
        default=[],
        metavar="HOSTS",
        help="hosts that must not be used",
    )
    add("--hot-spares", type=command_line.host_set_option, default=[], metavar="HOSTS",
        help="reserved for this gang, with the program loaded")  # fmt: skip
    add("--borrow", type=_lender, action="append", default=[], metavar="JOB=HOSTS",
        help="a job that may give up nodes, and its hosts; may be repeated")  # fmt: skip
    add("--shrink-to", type=count_of, default=0, metavar="N",
        help="the gang can continue with N nodes or more; default: it cannot shrink")  # fmt: skip
    add(
        "--in-process",
        action="store_true",
        help="healthy processes wait for the others and need no restart",
    )
    add(
        "--checkpoint-age",
        type=seconds_of,
        metavar="20m",
        help="age of the last complete checkpoint",
    )
    add("--failures-at-step", type=count_of, default=0, metavar="N",
        help="how often the job failed at this step, including this time")  # fmt: skip
    add(
        "--error",
        default="",
        metavar="TEXT",
        help="the error of the workload itself, if that ended the job",
    )
    add(
        "--show",
        type=count_of,
        default=1,
        metavar="N",
        help="which way to print in full (default 1)",
    )
    add("--explain", action="store_true", help="show the inputs of each part of the price")
    add(
        "--report",
        default="",
        metavar="FILE",
        help="instead, store the result of a recovery: JSON of ReportRecoveryRequest, - for standard input; each incident counts once",
    )
    return parser
