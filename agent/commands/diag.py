"""`gangline diag import`: imports the result of a GPU diagnostic that an operator ran on this host."""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from pathlib import Path
from typing import NamedTuple

from ...cli import FAILED, OK, USAGE, json_object
from ...contract.wire import agent_pb2 as pb
from ..diagnostic import REPORT_BYTES_MAX, DiagnosticReport, GpuDiagnostic, NotAReport, parse_report
from ..local.agent_call import add_socket_options, call_agent, sockets
from ..local.agent_service import DIAGNOSTIC, NotAGpu, canonical_name
from ..transport.unary_call import CallFailed, NoListener
from .release import ANSWER_SECONDS_MAX

OUTCOMES = ("passed", "warned", "failed")
NAMES_CHARACTERS_MAX = 500
_GPU = re.compile(r"([0-9]{1,4})=(.+)")


def main(arguments: list[str]) -> int:
    """Return 0: accepted; 1: no agent, a refusal, or inconclusive; 2: no report, or wrong usage."""
    options = _parser().parse_args(arguments)
    try:
        content = _read(options.file)
        report = parse_report(content)
        gpus = {number: canonical_name(name) for number, name in options.gpus}
        _check_names(report, gpus)
    except (OSError, NotAReport, NotAGpu) as error:
        where = "standard input" if options.file == "-" else options.file
        text = error.strerror if isinstance(error, OSError) else error
        print(f"gangline diag: {where}: {text}", file=sys.stderr)
        return USAGE
    report_id = hashlib.sha256(content).hexdigest()[:32]
    imports = [
        _report(options, report, gpu, gpus.get(gpu.number, ""), report_id) for gpu in report.gpus
    ]
    if options.json:
        rows = [row._asdict() for row in imports]
        print(json_object({"gpus": rows, "other_failures": report.other_failures}))
    else:
        _print(report, imports)
    return OK if all(row.imported for row in imports) else FAILED


class _Import(NamedTuple):
    """Outcome of the import for a GPU. `error`: why the call to the agent failed; "": no error."""

    gpu: str
    serial: str
    outcome: str | None
    message: str
    imported: bool
    error: str = ""


def _print(report: DiagnosticReport, imports: list[_Import]) -> None:
    for text in report.other_failures:
        print(f"gangline diag: not imported, because it is about no GPU: {text}", file=sys.stderr)
    for row, gpu in zip(imports, report.gpus, strict=True):
        name = row.gpu or f"GPU {gpu.number}, serial {row.serial}"
        if row.imported:
            print(f"{name} {row.outcome}: {row.message}")
        elif row.error:
            print(f"gangline diag: {name}: {row.error}", file=sys.stderr)
        else:
            print(f"{name}: not imported: {row.message}", file=sys.stderr)


def _report(
    options: argparse.Namespace,
    report: DiagnosticReport,
    gpu: GpuDiagnostic,
    uuid: str,
    report_id: str,
) -> _Import:
    if gpu.outcome is None:
        return _Import(uuid, gpu.serial, None, gpu.message, imported=False)
    outcome = OUTCOMES[gpu.outcome]
    request = pb.ReportDiagnosticRequest(
        gpu=uuid,
        serial=gpu.serial,
        report_id=report_id,
        outcome=gpu.outcome,
        message=f"dcgmi diag: {gpu.message}",
        attributes={
            "source": "dcgmi diag",
            "dcgm_version": report.dcgm_version,
            "driver_version": report.driver_version,
            "passed": _names(gpu.passed),
            "skipped": _names(gpu.skipped),
            "warned": _names(gpu.warned),
            "failed": _names(gpu.failed),
        },
    )
    try:
        answer = call_agent(
            sockets(options.socket),
            DIAGNOSTIC,
            request,
            pb.ReportDiagnosticResponse,
            ANSWER_SECONDS_MAX,
        )
    except (NoListener, CallFailed) as error:
        return _Import(uuid, gpu.serial, outcome, gpu.message, imported=False, error=str(error))
    return _Import(answer.gpu, gpu.serial, outcome, gpu.message, imported=True)


def _names(tests: list[str]) -> str:
    return ", ".join(tests)[:NAMES_CHARACTERS_MAX]


def _read(name: str) -> bytes:
    """Return the report, cut to a byte over the limit."""
    if name == "-":
        return sys.stdin.buffer.read(REPORT_BYTES_MAX + 1)
    with Path(name).open("rb") as file:
        return file.read(REPORT_BYTES_MAX + 1)


def _check_names(report: DiagnosticReport, gpus: dict[str, str]) -> None:
    """Raise NotAReport if a GPU has only DCGM's number, which other tools do not know."""
    unnamed = [gpu.number for gpu in report.gpus if not gpu.serial and gpu.number not in gpus]
    if unnamed:
        raise NotAReport(
            f"no serial number for GPU {', '.join(unnamed)}. Give its UUID: --gpu {unnamed[0]}=GPU-..., "
            "as `dcgmi discovery -l` shows it"
        )


def _gpu_option(text: str) -> tuple[str, str]:
    match = _GPU.fullmatch(text)
    if not match or not match[2].upper().startswith("GPU-"):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected NUMBER=UUID, for example 0=GPU-5e1c0b7a-..."
        )
    return match[1], match[2]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline diag",
        description=(
            "Imports the result of a diagnostic that you ran, as evidence about each GPU. A "
            "failure counts against the host for a day, or until a diagnostic of the GPU "
            "passes. Gangline itself never runs a diagnostic."
        ),
        epilog=(
            "exit codes: 0 the agent accepted it, 1 no agent answers, it refused, or a result proves nothing, 2 no "
            "report or wrong usage"
        ),
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    importer = commands.add_parser(
        "import",
        help="import the output of `dcgmi diag -j` (DCGM 3 or 4)",
        description=(
            "Reads the output of `dcgmi diag -j` (DCGM 3 or 4) and reports it to the agent of "
            "this host."
        ),
        epilog="example: dcgmi diag -r 2 -j | gangline diag import -",
    )
    importer.add_argument("file", metavar="FILE", help="the report; - for standard input")
    importer.add_argument(
        "--gpu", dest="gpus", type=_gpu_option, action="append", default=[], metavar="NUMBER=UUID",
        help="UUID of DCGM's GPU NUMBER, if the report has no serial number for it",
    )  # fmt: skip
    importer.add_argument("--json", action="store_true", help="one JSON object")
    add_socket_options(importer)
    return parser
