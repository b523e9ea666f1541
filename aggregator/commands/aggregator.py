"""`gangline aggregator`: runs the service."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import re
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ...cli import FAILED, OK, USAGE
from ...contract.settings import SettingsError, describe, load
from ...ext.process import keep_large_apart
from ..config import AggregatorConfig

if TYPE_CHECKING:
    from ..server import Aggregator

#: Objects made before the garbage collector looks, and how many such looks before it goes through all.
#: Frames that wait for a commit are no garbage: with Python's own 700, to look at them is a tenth of all.
GC_OBJECTS, GC_GENERATION_THRESHOLDS = 50_000, (50, 20)
#: A file in the data folder by which `gangline run` knows that it began the store there, and that no other aggregator was
#: started on it since: such a folder it empties at its next start. The file contains the process id of that run.
DEMONSTRATION = "demonstration"


def owner_of(folder: Path) -> int:
    """Return the process id of the `gangline run` that began the store in *folder*; 0 if none did."""
    try:
        text = (folder / DEMONSTRATION).read_text()
    except (OSError, ValueError):
        return 0
    return int(text) if re.fullmatch(r"[1-9][0-9]{0,9}\n", text) else 0


def main(arguments: list[str]) -> int:
    """Serve until SIGTERM or SIGINT; SIGHUP reads what is declared again. 1 with words when it cannot start or store, 2 for a wrong setting."""
    options = _parser().parse_args(arguments)
    if options.help_settings:
        print(describe(AggregatorConfig))
        return OK
    try:
        config = load(AggregatorConfig, options.config, _assignments(options))
    except SettingsError as error:
        return _print_error(error, USAGE)
    return _run(config)


def _run(config: AggregatorConfig) -> int:
    if owner_of(config.data) != os.getppid():  # else it is the aggregator of that run
        with suppress(OSError):  # a folder that cannot be used is refused below, with words
            (config.data / DEMONSTRATION).unlink()
    gc.set_threshold(
        GC_OBJECTS, *GC_GENERATION_THRESHOLDS
    )  # first: what is imported stays, and is no garbage
    # The service: a second of CPU, which a wrong setting and a look at all of them must not cost.
    from ..server import StartError
    from ..store.duckdb_file import StoreError

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        keep_large_apart()  # DuckDB's pages: beside the fleet's small objects they would never go back
        return asyncio.run(_serve(config))
    except SettingsError as error:
        return _print_error(error, USAGE)
    except (StoreError, StartError) as error:
        return _print_error(error, FAILED)


def _print_error(message: object, status: int) -> int:
    print(f"gangline aggregator: {message}", file=sys.stderr)
    return status


def _exit_status(status: int) -> int:
    """Return *status*, or end with it at once where a thread of the store is still in DuckDB or in the disk.

    All that is due is closed by then. Python's own end would unwind that thread through C++, which aborts, and asyncio's
    would wait without end for the calls that wait for it.
    """
    from ..store.duckdb_file import THREAD_NAME_PREFIX

    if any(thread.name.startswith(THREAD_NAME_PREFIX) for thread in threading.enumerate()):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


async def _serve(config: AggregatorConfig) -> int:
    from ..server import Aggregator, serve

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    aggregator = Aggregator(config)
    loop.add_signal_handler(signal.SIGHUP, aggregator.reload)
    unstored = await serve(aggregator, stop, lambda it: _print_listening(config, it))
    return _exit_status(_print_error(unstored, FAILED) if unstored else OK)


def _print_listening(config: AggregatorConfig, aggregator: Aggregator) -> None:
    address = config.listen.rpartition(":")[0]
    scores = (
        f", scores and plans also on {aggregator.scores.address}:{aggregator.scores.port}"
        if aggregator.scores
        else ""
    )
    print(
        f"gangline aggregator: listening on {address}:{aggregator.port}, data in {config.data}{scores}",
        flush=True,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline aggregator",
        description="Runs the service: receives readings from agents, stores them, and scores hosts.",
        epilog="Without options, the service listens on 127.0.0.1:7600, serves scores and plans on 127.0.0.1:7601 too, and stores under ./var/aggregator.",
    )
    parser.add_argument("--data", metavar="DIR", help="folder of the store")
    parser.add_argument(
        "--listen", metavar="ADDRESS:PORT", help="address to listen on; port 0: any free port"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings, as TOML")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting")
    parser.add_argument("--help-settings", action="store_true", help="every setting and its range")
    return parser


def _assignments(options: argparse.Namespace) -> list[str]:
    named = [("data", options.data), ("listen", options.listen)]
    given: list[str] = options.set
    return [f"{key}={value}" for key, value in named if value is not None] + given
