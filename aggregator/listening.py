"""Where the aggregator listens, by its settings; and in words why it cannot listen there, and what would be right."""

from __future__ import annotations

import errno
import socket

from .config import AggregatorConfig, parse_listen
from .service.metrics import listener


class StartError(Exception):
    """The service cannot start; the words say why and what to do."""


def addresses(config: AggregatorConfig) -> list[tuple[str, int]]:
    """Return where to listen: for all, and for those with a token if that is another place. Raises SettingsError."""
    texts = filter(None, (config.listen, config.listen_tokens))
    return [parse_listen(text, beyond_loopback=_beyond_loopback(config)) for text in texts]


def scores_address(config: AggregatorConfig) -> tuple[str, int] | None:
    """Return where a process of its own is to answer for scores; None: nowhere. Raises SettingsError."""
    if not config.listen_scores:
        return None
    beyond = _beyond_loopback(config)
    return parse_listen(config.listen_scores, beyond_loopback=beyond, name="listen_scores")


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


def refuse_taken(address: str, port: int, option: str = "--listen ") -> None:
    """Raise StartError if nobody could listen there. *option*: how another place is named."""
    try:
        _probe(address, port)
    except OSError as error:
        raise cannot_listen(address, port, error, option) from error


def cannot_listen(
    address: str, port: int, error: Exception, option: str = "--listen "
) -> StartError:
    """Return *error*, of who tried to listen there, with what to do about it."""
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


def _beyond_loopback(config: AggregatorConfig) -> bool:
    return config.listen_beyond_loopback or bool(config.tls_certificate_file)


def _probe(address: str, port: int) -> None:
    """Raise OSError if nobody could listen there: gRPC would write its own words to stderr."""
    family, kind, _, _, where = socket.getaddrinfo(
        address.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(where)
        probe.listen(1)
