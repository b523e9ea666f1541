"""Credentials for TLS and login between agent and aggregator."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .http2 import SessionError

if TYPE_CHECKING:
    from .tls import TlsSocket


@dataclass(frozen=True, slots=True)
class Credentials:
    """Paths from the settings, or ""; read for each connection. Without a CA: plain text."""

    tls_ca_file: str = ""
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    tls_server_name: str = ""
    token_file: str = ""

    def check(self, *, beyond_loopback: bool) -> None:
        """Raise ValueError if the settings do not fit together."""
        if (self.tls_certificate_file or self.tls_key_file) and not self.tls_ca_file:
            raise ValueError("a certificate needs TLS. Set tls_ca_file to the aggregator's CA, too")
        if bool(self.tls_certificate_file) != bool(self.tls_key_file):
            raise ValueError(
                "tls_certificate_file and tls_key_file go together: set both, or neither"
            )
        if self.token_file and beyond_loopback and not self.tls_ca_file:
            raise ValueError(
                "the token would be sent unencrypted. Set tls_ca_file to the aggregator's CA"
            )

    def token(self) -> str:
        """Return the token; "" without a token. Raises SessionError."""
        if not self.token_file:
            return ""
        from ...contract.tls import TlsError, read_token

        try:
            return read_token(self.token_file)
        except TlsError as error:
            raise SessionError(str(error)) from error

    def wrap(self, plain_socket: socket.socket, name: str) -> socket.socket | TlsSocket:
        """Return *plain_socket*, or TLS to *name* over it. Raises SessionError, OSError."""
        if not self.tls_ca_file:
            return plain_socket
        from ...contract.tls import TlsFiles
        from .tls import handshake  # imported only for TLS: it takes megabytes

        files = TlsFiles(
            self.tls_ca_file, self.tls_certificate_file, self.tls_key_file, self.tls_server_name
        )
        return handshake(plain_socket, files, name)


#: Plain text without a login, for loopback.
NO_CREDENTIALS = Credentials()
