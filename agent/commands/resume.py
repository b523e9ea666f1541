"""`gangline resume`: makes the agent reopen released GPUs before their release expires."""

from __future__ import annotations

import argparse
import sys

from ...cli import FAILED, OK, USAGE, json_object
from ...contract.wire import agent_pb2 as pb
from ..local.agent_call import add_socket_options, call_agent, sockets
from ..local.agent_service import RESUME, NotAGpu, canonical_name
from ..transport.unary_call import CallFailed, NoListener
from .release import ANSWER_SECONDS_MAX, remove_from_release_file


def main(arguments: list[str]) -> int:
    """Return 0: resumed, or no agent runs; 1: refused; 2: wrong usage."""
    options = _parser().parse_args(arguments)
    try:
        names = [canonical_name(name) for name in options.gpus]
        answer = _request_resume(options, names)
    except NotAGpu as error:
        print(f"gangline resume: {error}", file=sys.stderr)
        return USAGE
    except CallFailed as error:
        print(f"gangline resume: {error}", file=sys.stderr)
        return USAGE if error.status == "INVALID_ARGUMENT" else FAILED
    if options.json:
        resumed = list(answer.resumed) if answer else []
        print(json_object({"agent_runs": answer is not None, "resumed": resumed}))
        return OK
    if answer is None:
        return OK
    names = ["all GPUs" if name == "all" else name for name in answer.resumed]
    print(f"resumed: {', '.join(names)}" if names else "nothing was released")
    return OK


def _request_resume(options: argparse.Namespace, names: list[str]) -> pb.ResumeResponse | None:
    """Return the agent's response; None without an agent, whose file is then corrected."""
    request = pb.ResumeRequest(gpus=names)
    try:
        return call_agent(
            sockets(options.socket), RESUME, request, pb.ResumeResponse, ANSWER_SECONDS_MAX
        )
    except NoListener as error:
        remove_from_release_file(options, names)
        if not options.json:
            print(f"nothing to resume: {error}")
        return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline resume",
        description="Makes the agent of this host reopen released GPUs before their time is up.",
        epilog="exit codes: 0 done, or no agent runs, 1 refused, 2 wrong usage",
    )
    parser.add_argument(
        "gpus", nargs="*", metavar="GPU", help="UUID or PCI address (default: all released GPUs)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    add_socket_options(parser)
    return parser
