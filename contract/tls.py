"""TLS for clients of the aggregator, by the standard library: its files and its error messages.

Used by the agent and the commands. Importing `ssl` takes several megabytes: import this module only if TLS is
requested.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime

#: ALPN protocols: gRPC servers refuse a handshake without h2 (RFC 7301, RFC 9113).
PROTOCOLS = ["h2"]
#: Limit of a token file, which has one line.
TOKEN_BYTES_MAX = 4096

#: X509_V_ERR_* of OpenSSL's x509_vfy.h.
_NOT_YET_VALID, _EXPIRED, _NAME_MISMATCH, _ADDRESS_MISMATCH = 9, 10, 62, 64
_UNKNOWN_CA = (2, 18, 19, 20, 21, 24)
#: OpenSSL's reasons if the answer is not TLS.
_PLAIN = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
#: Meaning of the alerts of the other side about our certificate (RFC 8446, 6.2), by OpenSSL's names.
_ALERTS = {
    "CERTIFICATE_REQUIRED": "it requires a client certificate, and none is set",
    "CERTIFICATE_EXPIRED": "it reports that the client certificate has expired",
    "UNKNOWN_CA": "it does not know the CA of our certificate",
    "BAD_CERTIFICATE": "it does not accept our certificate",
    "CERTIFICATE_UNKNOWN": "it does not accept our certificate",
    "CERTIFICATE_REVOKED": "it reports that the client certificate is revoked",
    "UNSUPPORTED_CERTIFICATE": "the certificate is not valid for a client",
    "HANDSHAKE_FAILURE": "no common TLS version or cipher, or it requires a client certificate",
    "PROTOCOL_VERSION": "it supports no common TLS version",
    "NO_APPLICATION_PROTOCOL": "it does not speak HTTP/2: no aggregator listens there",
}


class TlsError(Exception):
    """TLS cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files; "" for none. `server_name`: name in the certificate if other than the dialed name."""

    ca: str
    certificate: str = ""
    key: str = ""
    server_name: str = ""


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a context with the present contents of the files. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(PROTOCOLS)
    try:
        context.load_verify_locations(cafile=files.ca)
    except (OSError, ssl.SSLError) as error:
        raise TlsError(f"the CA in {files.ca}: {_file_error(error)}") from error
    if files.certificate or files.key:
        try:
            context.load_cert_chain(files.certificate, files.key or None, password=_no_password)
        except (OSError, ssl.SSLError, TlsError) as error:
            raise TlsError(
                f"{files.certificate} with {files.key or 'no key'}: {_file_error(error)}"
            ) from error
    return context


def _no_password() -> str:
    """Raise TlsError: OpenSSL would ask for the password at the terminal of a daemon."""
    raise TlsError("the key is encrypted. Store it unencrypted")


def _file_error(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key does not match the certificate"
        return f"not a valid PEM file ({error.reason or 'no certificate or no key in it'})"
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def explain_error(error: Exception, files: TlsFiles, name: str, now: datetime | None = None) -> str:
    """Return the meaning of a failed handshake or a broken connection to *name*, and the remedy."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _verification_error(
            error, files, files.server_name or name, now or datetime.now(UTC)
        )
    reason = str(getattr(error, "reason", None) or "")
    if reason in _PLAIN:
        return "the server uses plain text, but this side uses TLS. Configure both alike"
    for alert, message in _ALERTS.items():
        if reason.endswith(f"ALERT_{alert}"):
            return f"TLS: {message}"
    if isinstance(error, ssl.SSLEOFError | ConnectionError):
        return "TLS: it closed the connection during the handshake" + _client_auth_hint(files)
    if isinstance(error, TimeoutError):
        return "TLS: no answer to the handshake in time: another program, or one that hangs"
    return f"TLS: {reason or error}"


def _client_auth_hint(files: TlsFiles) -> str:
    if files.certificate:
        return ": it does not accept our certificate, or does not use TLS"
    return ": it does not use TLS, or requires a client certificate, and none is set"


def _verification_error(
    error: ssl.SSLCertVerificationError, files: TlsFiles, name: str, now: datetime
) -> str:
    clock = f"this machine's clock says {now:%Y-%m-%d %H:%M} UTC"
    if error.verify_code == _EXPIRED:
        return f"TLS: its certificate has expired ({clock}). Renew it there, or set the clock here"
    if error.verify_code == _NOT_YET_VALID:
        return f"TLS: its certificate is not valid yet ({clock}). Set the clock, here or where it was made"
    if error.verify_code in _UNKNOWN_CA:
        return (
            f"TLS: its certificate is from no CA in {files.ca}: another CA, or another aggregator"
        )
    if error.verify_code in (_NAME_MISMATCH, _ADDRESS_MISMATCH):
        return f"TLS: its certificate is not for {name!r}. Connect to a name that it has, or set the server name"
    return f"TLS: its certificate is not accepted: {error.verify_message}"


def read_token(path: str) -> str:
    """Return the token in a file. Raises TlsError; its message never has the token."""
    try:
        with open(path, "rb") as file:
            return parse_token(file.read(TOKEN_BYTES_MAX + 1).decode("latin-1"), path)
    except OSError as error:
        raise TlsError(f"the token in {path}: {error.strerror}") from error


def parse_token(text: str, origin: str) -> str:
    """Return the token that *text* from *origin* consists of. Raises TlsError; its message never has the token."""
    text = text.strip()
    is_printable = text.isascii() and text.isprintable() and " " not in text
    if not text or len(text) > TOKEN_BYTES_MAX or not is_printable:
        raise TlsError(
            f"{origin} does not contain a token. Expected one line, as `gangline admin token new` "
            "writes it"
        )
    return text


def diagnosis(host: str, port: int, files: TlsFiles, seconds_max: float) -> str:
    """Try a handshake and return an explanation of its failure, "" on success. Raises TlsError."""
    context = client_context(files)
    try:
        with (
            socket.create_connection((host, port), seconds_max) as connection,
            context.wrap_socket(connection, server_hostname=files.server_name or host) as wrapped,
        ):
            # TLS 1.3: a server rejects our certificate only after the handshake.
            return "" if wrapped.recv(1) else hangup_message(files)
    except OSError as error:
        return explain_error(error, files, host)


def hangup_message(files: TlsFiles) -> str:
    """Return the meaning of a connection that the other side closed after the handshake without an error."""
    if files.certificate:
        return "TLS: it closed the connection without an error: it rejects the client certificate"
    return "TLS: it closed the connection without an error: it requires a client certificate, and none is set"


def speaks_tls(host: str, port: int, seconds_max: float) -> bool:
    """Return whether any TLS server answers at *host* and *port*."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(PROTOCOLS)
    try:
        with (
            socket.create_connection((host, port), seconds_max) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            return True
    except OSError as error:
        return "ALERT" in str(getattr(error, "reason", ""))


def is_loopback(address: str) -> bool:
    """Return whether *address*, possibly in brackets, is reachable from this machine only."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False
