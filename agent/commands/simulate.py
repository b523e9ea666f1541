"""`gangline simulate`: hosts that do not exist, for trying Gangline where there is no GPU."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from ...cli import FAILED, OK
from ..clock import SystemClock
from ..main import Signals
from ..simulated.fleet import HOSTS_MAX, SimulatedFleet
from ..simulated.runner import Fleet, run
from ..simulated.world import truth
from ..simulated.world.live import LiveWorld
from ..simulated.world.loading import load
from ..simulated.world.settings import Settings, SettingsError
from ..simulated.world.world import World
from ..spool.folder import FolderError
from ..transport.client import TargetError, on_loopback, parse_target
from ..transport.credentials import Credentials

#: Without a scenario.
HOSTS, FAULTS_AFTER_SECONDS = 32, 20.0
ADDRESS = "127.0.0.1:7600"
SEED_MAX = 2**64 - 1


def main(arguments: list[str]) -> int:
    """Run simulated hosts until SIGTERM or SIGINT, and return the exit code."""
    options = _options(arguments)
    clock = SystemClock()
    signals = Signals(clock)
    login = Credentials(
        options.ca, options.certificate, options.key, options.server_name, options.token_file
    )
    try:
        login.check(beyond_loopback=not on_loopback(options.aggregator))
        fleet, log = _made(options, clock)
        if options.truth:
            options.truth.parent.mkdir(parents=True, exist_ok=True)
            options.truth.write_text("".join(line + "\n" for line in log))
        print(
            f"{len(fleet.names)} simulated hosts, seed {options.seed}, to {options.aggregator}; "
            f"data under {options.data}",
            flush=True,
        )
        with signals.caught():
            run(fleet, options.aggregator, options.data, clock, signals.stop, signals.wait, login)
    except (FolderError, TargetError, ValueError, OSError) as error:
        print(f"gangline simulate: {_words(error)}", file=sys.stderr)
        return FAILED
    return OK


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.scenario is None:
        if options.world is not None:
            parser.error("--world: expected --scenario NAME beside it, of those of the file")
        return options
    if options.faults_after is not None:
        parser.error(
            "--faults-after is of the three faults without --scenario; world.toml says when"
        )
    try:
        options.settings = load(options.world) if options.world else load()
        options.settings.scenario(options.scenario)
    except SettingsError as error:
        parser.error(str(error))
    return options


def _made(options: argparse.Namespace, clock: SystemClock) -> tuple[Fleet, Iterable[str]]:
    """Return the fleet and the lines of its truth log. Raises ValueError, in words, for what makes none."""
    wall_ns = clock.wall_ns()
    if options.scenario is None:
        fleet = SimulatedFleet(
            options.seed,
            options.hosts or HOSTS,
            FAULTS_AFTER_SECONDS if options.faults_after is None else options.faults_after,
            uptime_seconds=clock.boottime_ns() / 1e9,
        )
        return fleet, (fault.to_json(wall_ns) for fault in fleet.truth)
    settings = options.settings
    hosts = options.hosts or settings.scenario(options.scenario).hosts
    if hosts > HOSTS_MAX:
        raise ValueError(
            f"scenario {options.scenario} has {hosts} hosts: name at most {HOSTS_MAX} with --hosts"
        )
    world = World(
        options.scenario, options.seed, hosts=hosts, settings=settings, start_wall_ns=wall_ns
    )
    return LiveWorld(world), truth.lines(world)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline simulate",
        description="Run simulated eight-GPU hosts in one process, through the agent's own codec, "
        "spool and client. Three of them get a fault: thermal, RDMA retransmissions, XID 95. Or, with "
        "--scenario, a whole world (docs/simulation.md).",
    )
    settings = load()
    parser.add_argument("--scenario", metavar="NAME", help=_scenarios(settings))
    parser.add_argument(
        "--world", type=Path, metavar="FILE", help="rates and scenarios of your own, as world.toml"
    )
    parser.add_argument(
        "--hosts",
        type=_hosts,
        metavar="N",
        help=f"1 to {HOSTS_MAX} (default {HOSTS}, or the scenario's)",
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
        metavar="SECONDS",
        help=f"the faults begin within the ten seconds after this (default {FAULTS_AFTER_SECONDS:.0f})",
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


def _scenarios(settings: Settings) -> str:
    words = (f"{name}: {each.about}" for name, each in settings.scenarios.items())
    return "instead of the three faults, a scenario. " + "; ".join(words)


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
