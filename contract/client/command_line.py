"""Options and option types that the client commands share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from math import nan

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
#: Range of a score's horizon, in hours.
HOURS_MIN, HOURS_MAX = 0.1, 168.0
#: Seconds of each unit of a duration.
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the aggregator's address and the login."""
    group = add_login(parser)
    group.add_argument(
        "--aggregator",
        "--server",  # the name that `gangline sql` uses
        dest="aggregator",
        type=_parse_aggregator_address,
        metavar="ADDRESS:PORT",
        default=os.environ.get(ADDRESS_VARIABLE) or None,
        help=f"its address (default {ADDRESS_DEFAULT})",
    )


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
        type=_hours,
        metavar="H",
        help="horizon of the score, in hours: 0.1 to 168 (default 8)",
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


_hours = number_option(
    HOURS_MIN, HOURS_MAX, f", expected hours from {HOURS_MIN:g} to {HOURS_MAX:g}, as 24"
)


def host_set_option(text: str) -> list[str]:
    """Return the hosts of a set such as gpu[001-016,020],head. Raises ArgumentTypeError."""
    from ..host_sets import HostSetError, expand_hosts

    try:
        return expand_hosts(text, HOSTS_OPTION_MAX)
    except HostSetError as error:
        raise argparse.ArgumentTypeError(f"{text[:60]!r}: {error}") from error


def seconds_of(text: str) -> int:
    """Return a duration such as 8h or 900s in seconds. Raises ArgumentTypeError."""
    number, unit = (text[:-1], text[-1:]) if text[-1:] in UNITS else (text, "s")
    if not (number.isascii() and number.isdecimal() and len(number) <= 6) or not int(number):
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: expected a duration, such as 8h or 900s")
    return int(number) * UNITS[unit]


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
