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
from ..config import SETTINGS_BY_TASK, AggregatorConfig

if TYPE_CHECKING:
    from ..server import Aggregator

#: Thresholds of the garbage collector: allocations per collection, and collections of the younger
#: generations before the next older. Frames that wait for a commit are not garbage: with Python's
#: default of 700, scanning them takes a tenth of the CPU time.
GC_OBJECTS, GC_GENERATION_THRESHOLDS = 50_000, (50, 20)
#: File with the process id of the `gangline run` that created the store. Its absence means that
#: another aggregator used the folder since; otherwise the next `gangline run` empties the folder.
DEMONSTRATION = "demonstration"


def owner_of(folder: Path) -> int:
    """Return the process id of the `gangline run` that created the store in *folder*; 0 if none."""
    try:
        text = (folder / DEMONSTRATION).read_text()
    except (OSError, ValueError):
        return 0
    return int(text) if re.fullmatch(r"[1-9][0-9]{0,9}\n", text) else 0


def main(arguments: list[str]) -> int:
    """Serve until SIGTERM or SIGINT; SIGHUP reloads the declarations.

    Exit codes: 1 cannot start or store, with a message; 2 wrong setting.
    """
    options = _parser().parse_args(arguments)
    if options.help_settings:
        print(describe(AggregatorConfig, SETTINGS_BY_TASK))
        return OK
    try:
        config = load(AggregatorConfig, options.config, _assignments(options))
    except SettingsError as error:
        return _print_error(error, USAGE)
    return _run(config)


def _run(config: AggregatorConfig) -> int:
    if owner_of(config.data) != os.getppid():  # otherwise this is the run's own aggregator
        with suppress(OSError):  # an unusable folder is rejected below, with a message
            (config.data / DEMONSTRATION).unlink()
    gc.set_threshold(
        GC_OBJECTS, *GC_GENERATION_THRESHOLDS
    )  # first, so that imported objects are covered
    # Imported here: the service takes a second of CPU, too much for --help or a wrong setting.
    from ..server import StartError
    from ..store.store_folder import StoreError

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        keep_large_apart()  # DuckDB's pages, mixed with small objects, would never be returned to the system
        return asyncio.run(_serve(config))
    except SettingsError as error:
        return _print_error(error, USAGE)
    except (StoreError, StartError) as error:
        return _print_error(error, FAILED)


def _print_error(message: object, status: int) -> int:
    print(f"gangline aggregator: {message}", file=sys.stderr)
    return status


def _exit_status(status: int) -> int:
    """Return *status*; exit at once if a store thread is still in DuckDB or waits for the disk.

    Everything else is closed by then. Python's own exit would unwind that thread through C++, which
    aborts, and asyncio would wait forever for its calls.
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
    scores = ""
    if aggregator.scores:
        scores = f", scores and plans also on {aggregator.scores.address}:{aggregator.scores.port}"
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
    add = parser.add_argument
    add("--data", metavar="DIR", help="folder of the store")
    add("--listen", metavar="ADDRESS:PORT", help="address to listen on; port 0: any free port")
    add("--config", type=Path, metavar="FILE", help="settings, as TOML")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting")
    add("--help-settings", action="store_true", help="every setting and its range")
    return parser


def _assignments(options: argparse.Namespace) -> list[str]:
    named = [("data", options.data), ("listen", options.listen)]
    given: list[str] = options.set
    return [f"{key}={value}" for key, value in named if value is not None] + given
