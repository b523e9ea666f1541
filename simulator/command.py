"""`gangline simulate`: simulated hosts, for trying Gangline without a GPU."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from ..agent.clock import SystemClock
from ..agent.main import ProcessSignals
from ..agent.spool.lockdir import FolderError
from ..agent.transport.client import TargetError, on_loopback, parse_target
from ..agent.transport.credentials import Credentials
from ..cli import FAILED, OK
from ..contract.options import add_former_names
from . import night, truth
from .runner import HOSTS_MAX, LiveWorld, run
from .scenario import ScenarioError, WorldSettings
from .scenario_file import load
from .world import World

SCENARIO = "three"
ADDRESS = "127.0.0.1:7600"
SEED_MAX = 2**64 - 1


def main(arguments: list[str]) -> int:
    """Run simulated hosts until SIGTERM or SIGINT, and return the exit code."""
    options = _options(arguments)
    clock = SystemClock()
    signals = ProcessSignals(clock)
    login = Credentials(
        options.ca, options.certificate, options.key, options.server_name, options.token_file
    )
    try:
        login.check(beyond_loopback=not on_loopback(options.aggregator))
        if options.scenario == night.SCENARIO:
            live: LiveWorld = night.NightWorld(clock.boottime_ns() / 1e9, clock.wall_ns())
            world = live.world
        else:
            world = _build_world(options, clock)
            live = LiveWorld(world, clock.boottime_ns() / 1e9)
        if options.truth:
            options.truth.parent.mkdir(parents=True, exist_ok=True)
            options.truth.write_text("".join(line + "\n" for line in truth.lines(world)))
        print(
            f"{len(live.names)} simulated hosts, scenario {options.scenario}, seed {world.seed}, "
            f"to {options.aggregator}; "
            f"data under {options.data}",
            flush=True,
        )
        with signals.caught():
            run(live, options.aggregator, options.data, clock, signals.stop, signals.wait, login)
    except (FolderError, TargetError, ValueError, OSError) as error:
        print(f"gangline simulate: {_error_message(error)}", file=sys.stderr)
        return FAILED
    return OK


def _error_message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        options.settings = load(options.world) if options.world else load()
        options.settings.scenario(options.scenario)
    except ScenarioError as error:
        parser.error(str(error))
    return options


def _build_world(options: argparse.Namespace, clock: SystemClock) -> World:
    """Return the world of *options*. Raises ValueError with a message for invalid options."""
    settings = options.settings
    hosts = options.hosts or settings.scenario(options.scenario).hosts
    if hosts > HOSTS_MAX:
        raise ValueError(
            f"scenario {options.scenario} has {hosts} hosts: name at most {HOSTS_MAX} with --hosts"
        )
    return World(
        options.scenario,
        options.seed,
        hosts=hosts,
        settings=settings,
        start_wall_ns=clock.wall_ns(),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline simulate",
        description="Runs simulated eight-GPU hosts in one process, with the agent's own codec, "
        "spool and client (docs/simulation.md).",
    )
    parser.add_argument("--scenario", default=SCENARIO, metavar="NAME", help=_scenarios(load()))
    parser.add_argument(
        "--world",
        type=Path,
        metavar="FILE",
        help="your own rates and scenarios, in the format of world.toml",
    )
    parser.add_argument(
        "--hosts", type=_hosts, metavar="N", help=f"1 to {HOSTS_MAX} (default: the scenario's)"
    )
    parser.add_argument(
        "--seed",
        type=_seed,
        default=1,
        metavar="N",
        help="the same seed gives the same hosts and faults",
    )
    server = parser.add_argument(
        "--server",
        dest="aggregator",
        type=_address,
        default=os.environ.get("GANGLINE_AGGREGATOR", ADDRESS),
        metavar="ADDRESS:PORT",
        help=f"the aggregator's address (default $GANGLINE_AGGREGATOR, else {ADDRESS})",
    )
    add_former_names(parser, server, "--aggregator")
    parser.add_argument(
        "--data", type=Path, default=Path("var/simulated"), metavar="DIR", help="spools, by host"
    )
    parser.add_argument(
        "--truth", type=Path, metavar="FILE", help="write what goes wrong, when, as JSON lines"
    )
    group = parser.add_argument_group(
        "login", "if the aggregator requires one: with the role admin, which may write as any host"
    )
    group.add_argument("--ca", default="", metavar="FILE", help="the CA of its certificate: TLS")
    group.add_argument(
        "--cert", dest="certificate", default="", metavar="FILE", help="your certificate (PEM)"
    )
    group.add_argument("--key", default="", metavar="FILE", help="its key, PEM")
    group.add_argument("--token-file", default="", metavar="FILE", help="a file with a token")
    group.add_argument(
        "--server-name", default="", metavar="NAME", help="the name in its certificate"
    )
    return parser


def _scenarios(settings: WorldSettings) -> str:
    descriptions = (f"{name}: {each.about}" for name, each in settings.scenarios.items())
    return f"which faults happen (default {SCENARIO}). " + "; ".join(descriptions)


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number") from None


def _hosts(text: str) -> int:
    hosts = _integer(text)
    if not 1 <= hosts <= HOSTS_MAX:
        raise argparse.ArgumentTypeError(f"{hosts}: expected 1 to {HOSTS_MAX} hosts")
    return hosts


def _seed(text: str) -> int:
    seed = _integer(text)
    if not 0 <= seed <= SEED_MAX:
        raise argparse.ArgumentTypeError(f"{seed}: expected 0 or more, below 2**64")
    return seed


def _address(text: str) -> str:
    try:
        parse_target(text, allow_plaintext=True)  # whether it needs TLS is seen with the options
    except TargetError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text
