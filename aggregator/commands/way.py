"""The way to an aggregator: its address, TLS, and who we are; by options, environment, or a file."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from ... import cli
from ...fingerprints.settings import SettingsError, load, setting
from ...fingerprints.tls import (
    TlsError,
    TlsFiles,
    client_context,
    diagnosis,
    one_token,
    read_token,
    speaks_tls,
)
from ..addresses import is_loopback

ADDRESS_DEFAULT = "127.0.0.1:7600"
ADDRESS_VARIABLE = "GANGLINE_AGGREGATOR"
#: A token itself, for where there is no file (a CI job's secret). Never an option: every process list shows those.
TOKEN_VARIABLE = "GANGLINE_TOKEN"
FILE_VARIABLE = "GANGLINE_CLIENT_CONFIG"

#: Option -> environment variable.
VARIABLES = {
    "aggregator": ADDRESS_VARIABLE,
    "ca": "GANGLINE_CA",
    "certificate": "GANGLINE_CERT",
    "key": "GANGLINE_KEY",
    "token_file": "GANGLINE_TOKEN_FILE",
    "server_name": "GANGLINE_SERVER_NAME",
}


class CommandError(Exception):
    """Ends a command with words on stderr and an exit code."""

    def __init__(self, words: str, code: int) -> None:
        super().__init__(words)
        self.code = code


def check_address(address: str) -> None:
    """Raise ValueError unless *address* can be dialled."""
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    number = int(port) if port.isascii() and port.isdecimal() and len(port) <= 5 else 0
    if not host or not colon or (":" in host and not bracketed) or not 0 < number < 65536:
        raise ValueError(f"ADDRESS:PORT, such as {ADDRESS_DEFAULT}")


@dataclass(frozen=True)
class Way:
    """Paths are "" for none. Without a CA all is plain text."""

    aggregator: str = setting(ADDRESS_DEFAULT, check=check_address, says="where it listens")
    ca: str = setting("", says="the CA of its certificate, PEM: then all is said by TLS")
    certificate: str = setting("", says="your certificate, PEM")
    key: str = setting("", says="its key, PEM")
    token_file: str = setting("", says="a file with your token")
    server_name: str = setting("", says="the name in its certificate, if not the one dialled")

    @property
    def host(self) -> str:
        """What is dialled, without the port."""
        return self.aggregator.rpartition(":")[0].strip("[]")

    @property
    def files(self) -> TlsFiles | None:
        """What TLS needs; None for plain text."""
        if not self.ca:
            return None
        return TlsFiles(self.ca, self.certificate, self.key, self.server_name)

    def token(self) -> str:
        """Return the token, "" for none. Raises CommandError."""
        try:
            if self.token_file:
                token = read_token(self.token_file)
            else:
                token = os.environ.get(TOKEN_VARIABLE, "")
                token = token and one_token(token, TOKEN_VARIABLE)
        except TlsError as error:
            raise CommandError(str(error), cli.FAILED) from error
        if token and not self.ca and not is_loopback(self.host):
            raise CommandError(
                f"the token would be readable on its way to {self.aggregator}: name the CA of its "
                "certificate with --ca",
                cli.USAGE,
            )
        return token

    def diagnosis(self, seconds_max: float) -> str:
        """Return what is wrong with TLS on the way, "" if that is not it."""
        port = int(self.aggregator.rpartition(":")[2])
        if self.files is not None:
            words = diagnosis(self.host, port, self.files, seconds_max)
            return words + _out_of_date(self.certificate) if words else ""
        if not speaks_tls(self.host, port, seconds_max):
            return ""
        return "it speaks TLS: name the CA of its certificate with --ca (or GANGLINE_CA)"


def _out_of_date(certificate: str) -> str:
    """Return in words that ours does not hold now, "" if it does: the other side hangs up without telling."""
    from ..access.certificates import CertificateError, check_dates

    try:
        if certificate:
            check_dates(Path(certificate), datetime.now(UTC))
    except CertificateError as error:
        return f": {error}"
    return ""


def way_of(options: argparse.Namespace) -> Way:
    """Return the way that options, environment and file say, in this order. Raises CommandError."""
    file = _file()
    try:
        way = load(Way, file if file.exists() else None)
        given: dict[str, Any] = {}
        for name, variable in VARIABLES.items():
            value = getattr(options, name, None) or os.environ.get(variable)
            if value:
                given[name] = value
        way = dataclasses.replace(way, **given)
        check_address(way.aggregator)
    except SettingsError as error:
        raise CommandError(str(error), cli.USAGE) from error
    except ValueError as error:
        raise CommandError(f"{ADDRESS_VARIABLE}: expected {error}", cli.USAGE) from error
    if (way.certificate or way.key) and not way.ca:
        raise CommandError(
            "a certificate needs TLS: name the aggregator's CA with --ca too", cli.USAGE
        )
    return way


def _file() -> Path:
    if named := os.environ.get(FILE_VARIABLE):
        return Path(named)
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "gangline" / "client.toml"


def dialled(way: Way, options: Sequence[tuple[str, Any]] = ()) -> grpc.Channel:
    """Return a channel; each call on it bears the token, if there is one. Raises CommandError."""
    token, files = way.token(), way.files
    if files is None:
        channel = grpc.insecure_channel(way.aggregator, options=list(options))
    else:
        credentials, named = _credentials(files)
        channel = grpc.secure_channel(way.aggregator, credentials, options=[*options, *named])
    return grpc.intercept_channel(channel, _Bearer(token)) if token else channel


def dialled_aio(way: Way, options: Sequence[tuple[str, Any]] = ()) -> grpc.aio.Channel:
    """Return a channel for asyncio; its calls are given `login(way)` as metadata. Raises CommandError."""
    if way.files is None:
        return grpc.aio.insecure_channel(way.aggregator, options=list(options))
    credentials, named = _credentials(way.files)
    return grpc.aio.secure_channel(way.aggregator, credentials, options=[*options, *named])


def login(way: Way) -> tuple[tuple[str, str], ...]:
    """Return the metadata of each call that says who we are. Raises CommandError."""
    token = way.token()
    return (_bearer(token),) if token else ()


def _bearer(token: str) -> tuple[str, str]:
    return "authorization", f"Bearer {token}"


def _credentials(files: TlsFiles) -> tuple[grpc.ChannelCredentials, list[tuple[str, str]]]:
    """Return the credentials, and the channel's options that go with them. Raises CommandError."""
    try:
        client_context(files)  # for its words: gRPC has none
        ca = Path(files.ca).read_bytes()
        pair = [
            Path(path).read_bytes() if path else None for path in (files.key, files.certificate)
        ]
    except (TlsError, OSError) as error:
        raise CommandError(str(error), cli.FAILED) from error
    named = [("grpc.ssl_target_name_override", files.server_name)] if files.server_name else []
    return grpc.ssl_channel_credentials(ca, *pair), named


class _Bearer(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[type-arg, unused-ignore]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[type-arg, unused-ignore]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[type-arg, unused-ignore]
    grpc.StreamStreamClientInterceptor,  # type: ignore[type-arg, unused-ignore]
):
    """Adds the token to each call. gRPC's own way takes no plain connection, as on loopback."""

    def __init__(self, token: str) -> None:
        self._header = _bearer(token)

    def _with_token(self, details: Any) -> Any:
        return details._replace(metadata=[*(details.metadata or ()), self._header])

    def intercept_unary_unary(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        return continuation(self._with_token(client_call_details), request)

    def intercept_unary_stream(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        return continuation(self._with_token(client_call_details), request)

    def intercept_stream_unary(
        self, continuation: Any, client_call_details: Any, request_iterator: Any
    ) -> Any:
        return continuation(self._with_token(client_call_details), request_iterator)

    def intercept_stream_stream(
        self, continuation: Any, client_call_details: Any, request_iterator: Any
    ) -> Any:
        return continuation(self._with_token(client_call_details), request_iterator)


def parsed(address: str, otherwise: str = "") -> str:
    """Return *address* as it is if it can be one. Raises argparse.ArgumentTypeError with words."""
    try:
        check_address(address)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{address[:80]!r}: expected {error}{otherwise}"
        ) from error
    return address


def _parsed(address: str) -> str:
    return parsed(address, f" (without the option, {ADDRESS_VARIABLE} says it)")


def add_way(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where the aggregator is and who asks."""
    group = add_login(parser)
    group.add_argument(
        "--aggregator",
        "--server",  # as `gangline sql` has it, and its lines in `gangline explain`
        dest="aggregator",
        type=_parsed,
        metavar="ADDRESS:PORT",
        default=os.environ.get(ADDRESS_VARIABLE) or None,
        help=f"where it listens (else {ADDRESS_DEFAULT})",
    )


def add_login(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options that say who asks, and by which CA the aggregator is known; return their group."""
    group = parser.add_argument_group(
        "the way to the aggregator",
        f"else by {', '.join(VARIABLES.values())}, {TOKEN_VARIABLE}, else by {FILE_VARIABLE} or "
        "~/.config/gangline/client.toml (aggregator, ca, certificate, key, token_file, server_name)",
    )
    group.add_argument("--ca", metavar="FILE", help="the CA of its certificate, PEM: TLS")
    group.add_argument("--cert", dest="certificate", metavar="FILE", help="your certificate, PEM")
    group.add_argument("--key", metavar="FILE", help="its key, PEM")
    group.add_argument("--token-file", metavar="FILE", help="a file with your token")
    group.add_argument("--server-name", metavar="NAME", help="the name in its certificate")
    return group
