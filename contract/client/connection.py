"""How commands connect to an aggregator: address, TLS, credentials and errors."""

from __future__ import annotations

import argparse
import dataclasses
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from ... import cli
from .. import tls
from ..settings import SettingsError, load, setting

ADDRESS_DEFAULT = "127.0.0.1:7600"
ADDRESS_VARIABLE = "GANGLINE_AGGREGATOR"
#: A token itself, if there is no file (a CI secret). Never an option: process lists show options.
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

#: Exit codes of the client commands.
OK, FAILED, NO_ANSWER, NOT_FOUND = cli.OK, cli.FAILED, cli.NO_ANSWER, cli.NOT_FOUND
#: Time limit of a call from an interactive command.
DEADLINE_SECONDS = 5.0
#: Time limit of a TCP connect that tests whether anything listens.
PROBE_SECONDS = 1.0
#: Enough for a page of 1,000 nodes in full view.
REPLY_BYTES_MAX = 64 << 20
#: Statuses that gRPC reports when it received no valid response.
NO_ANSWER_CODES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
#: Hint how to select another aggregator.
ANOTHER = f"name another with --server ADDRESS:PORT or {ADDRESS_VARIABLE}"


class CommandError(Exception):
    """Ends a command with a message on stderr and an exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def check_address(address: str) -> None:
    """Raise ValueError unless *address* is a valid ADDRESS:PORT."""
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    number = int(port) if port.isascii() and port.isdecimal() and len(port) <= 5 else 0
    if not host or not colon or (":" in host and not bracketed) or not 0 < number < 65536:
        raise ValueError(f"ADDRESS:PORT, such as {ADDRESS_DEFAULT}")


@dataclass(frozen=True)
class ConnectionOptions:
    """Connection settings. Paths: "" for none. Without `ca` the connection is plain text."""

    aggregator: str = setting(ADDRESS_DEFAULT, "where it listens", check=check_address)
    ca: str = setting("", "the CA of its certificate, PEM; turns TLS on")
    certificate: str = setting("", "your certificate, PEM")
    key: str = setting("", "its key, PEM")
    token_file: str = setting("", "a file with your token")
    server_name: str = setting("", "the host name in its certificate, if not the address")

    @property
    def host(self) -> str:
        """The aggregator's host, without port and brackets."""
        return self.aggregator.rpartition(":")[0].strip("[]")

    @property
    def files(self) -> tls.TlsFiles | None:
        """The TLS files; None for plain text."""
        if not self.ca:
            return None
        return tls.TlsFiles(self.ca, self.certificate, self.key, self.server_name)

    def token(self) -> str:
        """Return the token, "" for none. Raises CommandError."""
        try:
            if self.token_file:
                token = tls.read_token(self.token_file)
            else:
                token = os.environ.get(TOKEN_VARIABLE, "")
                token = token and tls.parse_token(token, TOKEN_VARIABLE)
        except tls.TlsError as error:
            raise CommandError(str(error), cli.FAILED) from error
        if token and not self.ca and not tls.is_loopback(self.host):
            raise CommandError(
                f"the token would be sent unencrypted to {self.aggregator}. Name the CA of its "
                "certificate with --ca",
                cli.USAGE,
            )
        return token

    def diagnosis(self, seconds_max: float) -> str:
        """Return the TLS problem of this connection; "" if there is none."""
        port = int(self.aggregator.rpartition(":")[2])
        if self.files is not None:
            message = tls.diagnosis(self.host, port, self.files, seconds_max)
            return message + _expiry_message(self.certificate) if message else ""
        if not tls.speaks_tls(self.host, port, seconds_max):
            return ""
        return "it speaks TLS: name the CA of its certificate with --ca (or GANGLINE_CA)"


def _expiry_message(certificate: str) -> str:
    """Return a message if our certificate is not valid now: the server just disconnects."""
    try:
        from ..certificates import CertificateError, check_dates
    except ModuleNotFoundError:  # the extra `executor` has no cryptography
        return ""
    try:
        if certificate:
            check_dates(Path(certificate), datetime.now(UTC))
    except CertificateError as error:
        return f": {error}"
    return ""


def read_connection_options(options: argparse.Namespace) -> ConnectionOptions:
    """Return the settings from options, else environment, else file. Raises CommandError."""
    file = _file()
    try:
        connection_options = load(ConnectionOptions, file if _exists(file) else None)
        given: dict[str, Any] = {}
        for name, variable in VARIABLES.items():
            value = getattr(options, name, None) or os.environ.get(variable)
            if value:
                given[name] = value
        connection_options = dataclasses.replace(connection_options, **given)
        check_address(connection_options.aggregator)
    except SettingsError as error:
        raise CommandError(str(error), cli.USAGE) from error
    except ValueError as error:
        raise CommandError(f"{ADDRESS_VARIABLE}: expected {error}", cli.USAGE) from error
    if (connection_options.certificate or connection_options.key) and not connection_options.ca:
        raise CommandError(
            "a certificate needs TLS. Name the aggregator's CA with --ca, too", cli.USAGE
        )
    return connection_options


def _file() -> Path:
    if named_file := os.environ.get(FILE_VARIABLE):
        return Path(named_file)
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "gangline" / "client.toml"


def _exists(file: Path) -> bool:
    """Return whether *file* exists. Raises SettingsError if FILE_VARIABLE names a missing file."""
    try:
        exists = file.exists()
    except OSError as error:
        if os.environ.get(FILE_VARIABLE):
            raise SettingsError(f"{FILE_VARIABLE}={file}: {error.strerror}") from error
        return False
    if not exists and os.environ.get(FILE_VARIABLE):
        raise SettingsError(f"{FILE_VARIABLE}={file}: No such file")
    return exists


def open_channel(
    connection_options: ConnectionOptions, options: Sequence[tuple[str, Any]] = ()
) -> grpc.Channel:
    """Return a channel that adds the token, if any, to each call. Raises CommandError."""
    token, files = connection_options.token(), connection_options.files
    if files is None:
        channel = grpc.insecure_channel(connection_options.aggregator, options=list(options))
    else:
        credentials, channel_options = _credentials(files)
        channel = grpc.secure_channel(
            connection_options.aggregator, credentials, options=[*options, *channel_options]
        )
    return grpc.intercept_channel(channel, _Bearer(token)) if token else channel


@contextmanager
def connected(connection_options: ConnectionOptions) -> Iterator[grpc.Channel]:
    """Yield a channel for large replies; raise a failed call's RpcError as CommandError."""
    large_replies = [("grpc.max_receive_message_length", REPLY_BYTES_MAX)]
    with open_channel(connection_options, large_replies) as channel:
        try:
            yield channel
        except grpc.RpcError as error:
            raise command_error(error, connection_options) from error


def open_aio_channel(
    connection_options: ConnectionOptions, options: Sequence[tuple[str, Any]] = ()
) -> grpc.aio.Channel:
    """Return an asyncio channel; pass `login_metadata` to its calls. Raises CommandError."""
    if connection_options.files is None:
        return grpc.aio.insecure_channel(connection_options.aggregator, options=list(options))
    credentials, channel_options = _credentials(connection_options.files)
    return grpc.aio.secure_channel(
        connection_options.aggregator, credentials, options=[*options, *channel_options]
    )


def login_metadata(connection_options: ConnectionOptions) -> tuple[tuple[str, str], ...]:
    """Return the metadata that carries the token in a call. Raises CommandError."""
    token = connection_options.token()
    return (_bearer(token),) if token else ()


def _bearer(token: str) -> tuple[str, str]:
    return "authorization", f"Bearer {token}"


def _credentials(files: tls.TlsFiles) -> tuple[grpc.ChannelCredentials, list[tuple[str, str]]]:
    """Return the credentials and their channel options. Raises CommandError."""
    try:
        tls.client_context(files)  # reports a bad file; gRPC gives no message
        ca = Path(files.ca).read_bytes()
        pair = [
            Path(path).read_bytes() if path else None for path in (files.key, files.certificate)
        ]
    except (tls.TlsError, OSError) as error:
        raise CommandError(str(error), cli.FAILED) from error
    channel_options = (
        [("grpc.ssl_target_name_override", files.server_name)] if files.server_name else []
    )
    return grpc.ssl_channel_credentials(ca, *pair), channel_options


class _Bearer(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[type-arg, unused-ignore]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[type-arg, unused-ignore]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[type-arg, unused-ignore]
    grpc.StreamStreamClientInterceptor,  # type: ignore[type-arg, unused-ignore]
):
    """Adds the token to each call; gRPC's own call credentials reject plain-text connections."""

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


def command_error(
    error: Any, connection_options: ConnectionOptions, another: str = ANOTHER
) -> CommandError:
    """Return the CommandError for a failed call; *another*: hint to select an aggregator."""
    address, code, details = connection_options.aggregator, error.code(), error.details() or ""
    if code is grpc.StatusCode.NOT_FOUND:
        return CommandError(details, NOT_FOUND)
    if code is grpc.StatusCode.UNAVAILABLE and details.startswith("no snapshot yet"):
        return CommandError(f"the aggregator at {address} has just started: {details}", NO_ANSWER)
    if (
        code in NO_ANSWER_CODES
        and accepts_connections(address)
        and (message := connection_options.diagnosis(PROBE_SECONDS))
    ):
        return CommandError(f"the aggregator at {address}: {message}", FAILED)
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return CommandError(f"the aggregator at {address} rejected the login: {details}", FAILED)
    if code in NO_ANSWER_CODES and accepts_connections(address):
        return CommandError(
            f"something listens at {address}, but it does not answer as an aggregator does: "
            f"another program, or an aggregator that hangs; {another}",
            NO_ANSWER,
        )
    if code in NO_ANSWER_CODES and not _is_known(connection_options.host):
        return CommandError(
            f"cannot resolve {connection_options.host!r} (typo?); {another}", NO_ANSWER
        )
    if code in NO_ANSWER_CODES:
        return CommandError(
            f"no aggregator answers at {address}; start one with: gangline aggregator, or {another}",
            NO_ANSWER,
        )
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return CommandError(
            f"what listens at {address} speaks gRPC, but is not an aggregator of this version; "
            f"{another}",
            NO_ANSWER,
        )
    return CommandError(f"the aggregator at {address} answered {code.name}: {details}", FAILED)


def _is_known(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):
        return False


def accepts_connections(address: str) -> bool:
    """Return whether *address*, as `parse_address` returns it, accepts a TCP connection."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), PROBE_SECONDS):
            return True
    except (OSError, ValueError):
        return False


def guarded(name: str, run: Callable[[], int]) -> int:
    """Run a command's body; print a CommandError to stderr and return its exit code."""
    try:
        return run()
    except CommandError as error:
        print(f"gangline {name}: {error}", file=sys.stderr)
        return error.code
