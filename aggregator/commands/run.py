"""`gangline run`: one aggregator, one agent for this machine, simulated hosts beside it, and the table."""

from __future__ import annotations

import argparse
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ...fingerprints.settings import SettingsError
from ..access.tokens import TokensError
from ..addresses import parse_listen
from .children import Child, ChildError, Children
from .client import ADDRESS_DEFAULT, FAILED, OK, Client, CommandError, Listing, Way
from .demonstration import Truth, missing, read_truth
from .ownlogin import OwnLogin
from .table import render, wants_colour, width_of
from .watch import show

SIMULATED_MAX = 512
#: What `gangline simulate` takes.
SEED_MAX = 2**64 - 1
#: The service must answer by then; DuckDB replays its log first.
START_SECONDS_MAX = 60.0
#: `--once` gives up here: faults begin 20 to 30 s after the start and show within half a minute.
ONCE_SECONDS_MAX = 120.0
ONCE_SECONDS_LIMIT = 3600.0
LOOK_SECONDS = 1.0


def main(arguments: list[str]) -> int:
    """Run until Ctrl-C, or with `--once` until the table is complete. 1 with the reason if it fails."""
    options = _parser().parse_args(arguments)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    if _in_use(options.listen):
        print(
            f"gangline run: something already listens on {options.listen}; if it is another "
            "`gangline run`, use it with `gangline watch` or end it; else say --listen 127.0.0.1:PORT",
            file=sys.stderr,
        )
        return FAILED
    own = OwnLogin(options.data / "aggregator", options.data / "run.token")
    try:
        try:
            with Children(options.data) as children:
                own.begin()
                return _run(options, children, own.token_file, stop)
        finally:
            own.end()
    except (ChildError, CommandError, TokensError, OSError) as error:
        print(f"gangline run: {error}", file=sys.stderr)
        return FAILED


def _run(
    options: argparse.Namespace, children: Children, token_file: str, stop: threading.Event
) -> int:
    print(f"data and logs under {options.data}; starting the aggregator ...", flush=True)
    children.start(_aggregator(options))
    truth = options.data / "simulated" / "truth.jsonl"
    with Client(Way(options.listen, token_file=token_file)) as client:
        _answering(client, children, stop)
        children.start(_agent(options, token_file))
        if options.simulated:
            truth.unlink(missing_ok=True)
            children.start(_simulated(options, truth, token_file))
        if options.once:
            return _once(options, client, children, stop, truth)
        return _watch(client, children, stop)


def _watch(client: Client, children: Children, stop: threading.Event) -> int:
    terminal = sys.stdout.isatty()
    listing = Listing([], 0, "")
    while not stop.wait(LOOK_SECONDS):
        children.check()
        words = "Ctrl-C ends everything"
        try:
            listing = client.hosts()
        except CommandError as error:  # a machine short of breath; a first token, made meanwhile
            words = f"what you see is old: {error}; {words}"
        show(listing, words, as_json=False, in_place=terminal)
    print("ending ...", flush=True)
    return OK


def _once(
    options: argparse.Namespace,
    client: Client,
    children: Children,
    stop: threading.Event,
    truth: Path,
) -> int:
    """Wait for the complete table, print it, return 0; what is missing at the end is the reason."""
    end = time.monotonic() + options.seconds_max
    lacking = "no table yet"
    listing = Listing([], 0, "")
    while time.monotonic() < end:
        if stop.wait(LOOK_SECONDS):
            print("gangline run: ended before the table was complete", file=sys.stderr)
            return FAILED
        children.check()
        try:
            listing = client.hosts()
        except CommandError as error:
            lacking = str(error)
            continue
        # Scores of before a restart are no answer to what is so now.
        lacking = listing.degraded_reason or missing(
            listing.scores, 1 + options.simulated, _truth(options, truth)
        )
        if not lacking:
            break
    print(render(listing.scores, width_of(sys.stdout), colour=wants_colour()))
    if lacking:
        print(f"gangline run: after {options.seconds_max:g} s: {lacking}", file=sys.stderr)
    return FAILED if lacking else OK


def _truth(options: argparse.Namespace, file: Path) -> Sequence[Truth]:
    return read_truth(file) if options.simulated else ()


def _answering(client: Client, children: Children, stop: threading.Event) -> None:
    """Return once the service has a first snapshot. Raises ChildError when it never will."""
    end = time.monotonic() + START_SECONDS_MAX
    while not stop.wait(0.2):
        children.check()
        try:
            client.hosts()
            return
        except CommandError:
            if time.monotonic() > end:
                raise


def _aggregator(options: argparse.Namespace) -> Child:
    data = options.data / "aggregator"
    return Child("aggregator", ("--data", str(data), "--listen", options.listen), ends_seconds=15.0)


def _agent(options: argparse.Namespace, token_file: str) -> Child:
    folders = ("spool", "events", "state")
    settings = [f"{name}_folder={options.data / 'agent' / name}" for name in folders]
    settings += [f"token_file={token_file}"] if token_file else []
    assignments = [word for setting in settings for word in ("--set", setting)]
    return Child("agent", ("--aggregator", options.listen, *assignments))


def _simulated(options: argparse.Namespace, truth: Path, token_file: str) -> Child:
    return Child(
        "simulate",
        (
            *("--hosts", str(options.simulated), "--seed", str(options.seed)),
            *("--aggregator", options.listen, "--data", str(options.data / "simulated")),
            *("--truth", str(truth)),
            *(("--token-file", token_file) if token_file else ()),
        ),
    )


def _in_use(listen: str) -> bool:
    address, _, port = listen.rpartition(":")
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((address, int(port))) == 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline run",
        description="Try Gangline on this machine: one aggregator on loopback, one agent for this "
        "machine, simulated 8-GPU hosts beside it (three of which get a fault after 20 s), and the "
        "table of hosts, worst last. Ctrl-C ends everything.",
    )
    parser.add_argument(
        "--simulated", type=_count, default=32, metavar="N", help="simulated hosts, 0 to 512"
    )
    parser.add_argument("--seed", type=_seed, default=1, metavar="N", help="which hosts, and when")
    parser.add_argument("--once", action="store_true", help="wait, print the table once, exit")
    parser.add_argument("--data", type=Path, default=Path("var"), metavar="DIR")
    parser.add_argument("--listen", type=_address, default=ADDRESS_DEFAULT, metavar="ADDRESS:PORT")
    parser.add_argument(
        "--seconds-max", type=_patience, default=ONCE_SECONDS_MAX, metavar="N", help="for --once"
    )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) > SIMULATED_MAX:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number, 0 to {SIMULATED_MAX}")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) > SEED_MAX:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number, 0 to {SEED_MAX}")
    return int(text)


def _patience(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1.0 <= seconds <= ONCE_SECONDS_LIMIT:
        raise argparse.ArgumentTypeError(f"{text}: expected 1 to {ONCE_SECONDS_LIMIT:g} seconds")
    return seconds


def _address(text: str) -> str:
    try:
        _, port = parse_listen(text, beyond_loopback=False)
    except SettingsError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not port:
        raise argparse.ArgumentTypeError(f"{text}: a port of its own is needed, such as 7600")
    return text
