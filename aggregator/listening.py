"""Where the aggregator listens, by its settings; and in words why it cannot listen there, and what would be right."""

from __future__ import annotations

import errno
import socket
from typing import NamedTuple

from .addresses import parse_listen
from .config import AggregatorConfig
from .service.metrics import listener


class StartError(Exception):
    """The service cannot start; the words say why and what to do."""


class Place(NamedTuple):
    """Where something is to listen. *option*: what is written before an address to name another place."""

    address: str
    port: int
    option: str


def places(config: AggregatorConfig) -> list[Place]:
    """Return where to listen: for all, and for those with a token if that is another place. Raises SettingsError."""
    named = [("listen", "--listen "), ("listen_tokens", "--set listen_tokens=")]
    return [_place(config, name, option) for name, option in named if getattr(config, name)]


def scores_place(config: AggregatorConfig) -> Place | None:
    """Return where a process of its own is to answer for scores; None: nowhere. Raises SettingsError."""
    if not config.listen_scores:
        return None
    return _place(config, "listen_scores", "--set listen_scores=")


def _place(config: AggregatorConfig, name: str, option: str) -> Place:
    beyond = config.listen_beyond_loopback or bool(config.tls_certificate_file)
    return Place(*parse_listen(getattr(config, name), beyond_loopback=beyond, name=name), option)


def metrics_socket(config: AggregatorConfig) -> socket.socket | None:
    """Return what /metrics is served on, if it is. Raises StartError."""
    if not config.metrics_listen:
        return None
    address, port = parse_listen(config.metrics_listen, beyond_loopback=True)
    try:
        return listener(address, port)
    except OSError as error:
        raise StartError(
            f"metrics_listen = {config.metrics_listen!r} cannot be listened on: {error}; "
            "name another address or port, or leave it empty"
        ) from error


def refuse_taken(place: Place) -> None:
    """Raise StartError if nobody could listen there."""
    try:
        _probe(place.address, place.port)
    except OSError as error:
        raise cannot_listen(place, error) from error


def cannot_listen(place: Place, error: Exception) -> StartError:
    """Return *error*, of who tried to listen there, with what to do about it."""
    address, port, option = place
    number = getattr(error, "errno", None)
    if isinstance(error, socket.gaierror) or number == errno.EADDRNOTAVAIL:
        remedy = f"No address of this machine? `ip address` lists those: name one with {option}ADDRESS:{port}"
    elif number == errno.EACCES:
        remedy = f"Ports below 1024 are root's: name a higher one with {option}{address}:PORT"
    else:
        remedy = (
            f"If another program has the port, `ss -ltnp 'sport = :{port}'` names it: stop that one, or give "
            f"this one another port with {option}{address}:PORT"
        )
    return StartError(f"cannot listen on {address}:{port}: {error}. {remedy}")


def _probe(address: str, port: int) -> None:
    """Raise OSError if nobody could listen there: gRPC would write its own words to stderr."""
    family, kind, _, _, where = socket.getaddrinfo(
        address.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(where)
        probe.listen(1)
