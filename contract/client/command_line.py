"""Options and option types that the client commands share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from math import nan

from ..options import UNITS, add_former_names, duration, whole_duration
from .connection import (
    ADDRESS_DEFAULT,
    ADDRESS_VARIABLE,
    FILE_VARIABLE,
    TOKEN_VARIABLE,
    VARIABLES,
    check_address,
)

#: Maximum number of hosts in one argument.
HOSTS_OPTION_MAX = 10_000
HOSTS_FILE_BYTES_MAX = 16 << 20
#: Range of a score's horizon, in hours.
HOURS_MIN, HOURS_MAX = 0.1, 168.0
#: Option type of a duration in whole seconds, such as 8h or 900s.
seconds_of = whole_duration(1)


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the aggregator's address and the login."""
    group = add_login(parser)
    server = group.add_argument(
        "--server",
        dest="aggregator",
        type=_parse_aggregator_address,
        metavar="ADDRESS:PORT",
        default=os.environ.get(ADDRESS_VARIABLE) or None,
        help=f"its address (default {ADDRESS_DEFAULT})",
    )
    add_former_names(parser, server, "--aggregator")


def add_login(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options for TLS and the login; return their group."""
    group = parser.add_argument_group(
        "connection to the aggregator",
        f"An option wins over the environment ({', '.join(VARIABLES.values())}, {TOKEN_VARIABLE}), and that over the "
        f"file {FILE_VARIABLE} names, by default ~/.config/gangline/client.toml (keys: aggregator, ca, certificate, key, token_file, server_name)",
    )
    add = group.add_argument
    add("--ca", metavar="FILE", help="the CA that signed its certificate (PEM); turns TLS on")
    add("--cert", dest="certificate", metavar="FILE", help="your certificate (PEM)")
    add("--key", metavar="FILE", help="the key of your certificate (PEM)")
    add("--token-file", metavar="FILE", help="the file that contains your token")
    add(
        "--server-name", metavar="NAME", help="the host name in its certificate, if not the address"
    )
    return group


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options common to all client commands."""
    add_connection_options(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")


def add_hours(parser: argparse.ArgumentParser) -> None:
    """Add the option for a score's horizon."""
    parser.add_argument(
        "--hours",
        type=duration(HOURS_MIN * UNITS["h"], HOURS_MAX * UNITS["h"], unit="h"),
        metavar="H",
        help="horizon of the score, in hours or as 2d: 0.1 to 168 hours (default 8)",
    )


def number_option(low: float, high: float, message: str) -> Callable[[str], float]:
    """Return an option type for numbers from *low* to *high*; *message* ends its error."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text[:40]!r}{message}")
        return value

    return parse


def host_set_option(text: str) -> list[str]:
    """Return the hosts of `read_hosts`. Raises ArgumentTypeError."""
    from ..host_sets import HostSetError

    try:
        return read_hosts(text, HOSTS_OPTION_MAX)
    except HostSetError as error:
        raise argparse.ArgumentTypeError(f"{text[:60]!r}: {error}") from error


def read_hosts(text: str, hosts_max: int) -> list[str]:
    """Return the hosts of a set such as gpu[001-016,020],head, or of a file of sets; "-" is standard input.

    The path of a file begins with / or a dot, which no host name does. Raises HostSetError.
    """
    from ..host_sets import HostSetError, expand_hosts

    if text != "-" and not text.startswith(("/", ".")):
        return expand_hosts(text, hosts_max)
    try:
        with open("/dev/stdin" if text == "-" else text, "rb") as file:
            content = file.read(HOSTS_FILE_BYTES_MAX + 1)
        if len(content) > HOSTS_FILE_BYTES_MAX:
            raise HostSetError(f"expected at most {HOSTS_FILE_BYTES_MAX >> 20} MiB")
        sets = content.decode().split()
    except (OSError, UnicodeDecodeError) as error:
        message = error.strerror if isinstance(error, OSError) else "not text"
        raise HostSetError(f"{message}; expected a file of host names") from error
    names = [name for host_set in sets for name in expand_hosts(host_set)]
    if len(names) > hosts_max:
        raise HostSetError(f"{len(names):,} hosts, expected at most {hosts_max:,}")
    return names


def parse_address(address: str, otherwise: str = "") -> str:
    """Return *address* unchanged if it is valid. Raises ArgumentTypeError."""
    try:
        check_address(address)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{address[:80]!r}: expected {error}{otherwise}"
        ) from error
    return address


def _parse_aggregator_address(address: str) -> str:
    return parse_address(address, f" (without the option, {ADDRESS_VARIABLE} sets it)")
