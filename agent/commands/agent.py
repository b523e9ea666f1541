"""`gangline agent`: runs the agent of this host in the foreground."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from pathlib import Path

from ... import cli
from ...contract.options import add_former_names
from ...contract.settings import SettingsError, describe, load
from ...ext import process
from .. import log, service_manager
from ..clock import SystemClock
from ..config import AgentConfig, check_address
from ..prefork import prefork
from ..spool.lockdir import FolderError

#: Environment variable with the aggregator's address, for every command.
ENVIRONMENT = "GANGLINE_AGGREGATOR"


def main(arguments: list[str]) -> int:
    """Run until SIGTERM or SIGINT, or show the status; with --config SIGHUP starts over.

    Returns 0 after a requested end, 1 if a folder cannot be used, 2 for a wrong setting.
    """
    if arguments[:1] == ["status"]:
        from . import agent_status

        return agent_status.main(arguments[1:])
    options = _parser().parse_args(arguments)
    if options.help_settings:
        print(describe(AgentConfig))
        return cli.OK
    handler = log.start(sys.stderr)
    try:
        restart = _run(options)
    except (SettingsError, FolderError) as error:
        print(f"gangline agent: {log.redact(str(error))}", file=sys.stderr)
        return cli.USAGE if isinstance(error, SettingsError) else cli.FAILED
    finally:
        log.stop(handler)
    if restart:
        service_manager.reexec()
    return cli.OK


def _run(options: argparse.Namespace) -> bool:
    """Return whether the agent must start over. Raises SettingsError and FolderError."""
    config = _settings(options)
    preforked = prefork(config, SystemClock())
    try:
        from ..main import run  # after the fork of the fork server: samplers do not need it

        gc.collect()  # garbage of the imports
        gc.freeze()  # later collections skip the objects that remain
        process.trim()
        # Without a settings file, a reload could not change anything.
        return run(config, (lambda: _settings(options)) if options.config else None, preforked)
    finally:
        preforked.fork_server.kill_all()


def _settings(options: argparse.Namespace) -> AgentConfig:
    """Return the present settings. Raises SettingsError."""
    return load(AgentConfig, options.config, _assignments(options))


def _assignments(options: argparse.Namespace) -> list[str]:
    """Return the environment's, `--set` and `--server`: the last wins. Raises SettingsError."""
    environment = _address(ENVIRONMENT, os.environ.get(ENVIRONMENT) or None)
    return [*environment, *options.set, *_address("--server", options.aggregator)]


def _address(origin: str, address: str | None) -> list[str]:
    """Return the assignment of a valid address, so that an error can name its origin."""
    if address is None:
        return []
    try:
        check_address(address)
    except ValueError as error:
        raise SettingsError(f"{origin}: {address!r}: expected {error}") from error
    return [f"aggregator={address}"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline agent",
        usage="gangline agent [--config FILE] [--set KEY=VALUE] [--server ADDRESS:PORT] [--help-settings]\n"
        "       gangline agent status [--json] [--run-folder FOLDER]",
        description="Samples the hardware of this host and sends the readings. Keeps them on disk until the "
        "aggregator has stored them.",
        epilog=f"Settings: defaults, then the file, then {ENVIRONMENT} for the address, then "
        "--set, then --server. `gangline agent status` shows the state of the running agent.",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings in TOML")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="one setting; may repeat"
    )
    server = parser.add_argument(
        "--server", dest="aggregator", metavar="ADDRESS:PORT", help="the aggregator's address"
    )
    add_former_names(parser, server, "--aggregator")
    parser.add_argument(
        "--help-settings", action="store_true", help="list every setting with default and range"
    )
    return parser
