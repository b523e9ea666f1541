"""`gangline simulate`: hosts that do not exist, for trying Gangline where there is no GPU."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from ...cli import FAILED, OK
from ..clock import SystemClock
from ..main import Signals
from ..simulated.fleet import HOSTS_MAX, SimulatedFleet
from ..simulated.runner import run
from ..spool.folder import FolderError
from ..transport.client import TargetError, on_loopback, parse_target
from ..transport.credentials import Credentials

ADDRESS = "127.0.0.1:7600"
SEED_MAX = 2**64 - 1


def main(arguments: list[str]) -> int:
    """Run simulated hosts until SIGTERM or SIGINT, and return the exit code."""
    options = _parser().parse_args(arguments)
    clock = SystemClock()
    fleet = SimulatedFleet(
        options.seed,
        options.hosts,
        options.faults_after,
        uptime_seconds=clock.boottime_ns() / 1e9,
    )
    signals = Signals(clock)
    login = Credentials(
        options.ca, options.certificate, options.key, options.server_name, options.token_file
    )
    try:
        login.check(beyond_loopback=not on_loopback(options.aggregator))
        if options.truth:
            _write_truth(options.truth, fleet, clock.wall_ns())
        print(
            f"{options.hosts} simulated hosts, seed {options.seed}, to {options.aggregator}; "
            f"data under {options.data}",
            flush=True,
        )
        with signals.caught():
            run(fleet, options.aggregator, options.data, clock, signals.stop, signals.wait, login)
    except (FolderError, TargetError, ValueError, OSError) as error:
        print(f"gangline simulate: {error}", file=sys.stderr)
        return FAILED
    return OK


def _write_truth(path: Path, fleet: SimulatedFleet, started_wall_ns: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(fault.to_json(started_wall_ns) + "\n" for fault in fleet.truth))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline simulate",
        description="Run simulated eight-GPU hosts in one process, through the agent's own codec, "
        "spool and client. Three of them get a fault: thermal, RDMA retransmissions, XID 95.",
    )
    parser.add_argument(
        "--hosts", type=_hosts, default=32, metavar="N", help=f"1 to {HOSTS_MAX} (default 32)"
    )
    parser.add_argument(
        "--seed",
        type=_seed,
        default=1,
        metavar="N",
        help="the same seed, the same fleet and faults",
    )
    parser.add_argument(
        "--aggregator",
        type=_address,
        default=os.environ.get("GANGLINE_AGGREGATOR", ADDRESS),
        metavar="ADDRESS",
        help=f"host:port (default $GANGLINE_AGGREGATOR, else {ADDRESS})",
    )
    parser.add_argument(
        "--data", type=Path, default=Path("var/simulated"), metavar="DIR", help="spools, by host"
    )
    parser.add_argument(
        "--truth", type=Path, metavar="FILE", help="write what goes wrong, when, as JSON lines"
    )
    parser.add_argument(
        "--faults-after",
        type=_seconds,
        default=20.0,
        metavar="SECONDS",
        help="the faults begin within the ten seconds after this (default 20)",
    )
    group = parser.add_argument_group(
        "login", "where the aggregator asks for one: of the role admin, which may write as any host"
    )
    group.add_argument("--ca", default="", metavar="FILE", help="the CA of its certificate: TLS")
    group.add_argument("--cert", dest="certificate", default="", metavar="FILE", help="ours, PEM")
    group.add_argument("--key", default="", metavar="FILE", help="its key, PEM")
    group.add_argument("--token-file", default="", metavar="FILE", help="a file with a token")
    group.add_argument(
        "--server-name", default="", metavar="NAME", help="the name in its certificate"
    )
    return parser


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number") from None


def _hosts(text: str) -> int:
    hosts = _whole(text)
    if not 1 <= hosts <= HOSTS_MAX:
        raise argparse.ArgumentTypeError(f"{hosts}: expected 1 to {HOSTS_MAX} hosts")
    return hosts


def _seed(text: str) -> int:
    seed = _whole(text)
    if not 0 <= seed <= SEED_MAX:
        raise argparse.ArgumentTypeError(f"{seed}: expected 0 or more, below 2**64")
    return seed


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, 0 or more")
    return seconds


def _address(text: str) -> str:
    try:
        parse_target(text, allow_plaintext=True)  # whether it needs TLS is seen with the options
    except TargetError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text
