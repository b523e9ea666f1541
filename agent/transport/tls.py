"""TLS for the agent's connection: a non-blocking socket with readable errors.

It behaves like a plain socket: `send` takes part of the data or raises BlockingIOError, `recv` too,
and if `poll` finds nothing to read there is nothing to read.
"""

from __future__ import annotations

import socket
import ssl

from ...contract.tls import TlsError, TlsFiles, client_context, explain_error, hangup_message
from .http2 import SessionError

__all__ = ["TlsFiles", "TlsSocket", "handshake"]

#: OpenSSL waits for the socket to become readable or writable.
_WOULD_BLOCK = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


def handshake(plain_socket: socket.socket, files: TlsFiles, name: str) -> TlsSocket:
    """Return TLS over *plain_socket*, within its timeout. Raises SessionError."""
    try:
        context = client_context(files)
    except TlsError as error:
        raise SessionError(str(error)) from error
    try:
        wrapped = context.wrap_socket(plain_socket, server_hostname=files.server_name or name)
    except (OSError, ValueError) as error:
        raise SessionError(explain_error(error, files, name)) from error
    return TlsSocket(wrapped, files, name)


class TlsSocket:
    """The socket methods that a connection needs."""

    def __init__(self, wrapped: ssl.SSLSocket, files: TlsFiles, name: str) -> None:
        self._wrapped, self._files, self._name = wrapped, files, name
        self._received_any = False  # bytes after the handshake

    def fileno(self) -> int:
        return self._wrapped.fileno()

    def setblocking(self, flag: bool, /) -> None:
        """Set the mode; with False no call blocks."""
        self._wrapped.setblocking(flag)

    def close(self) -> None:
        """Close without a TLS close_notify: everything important was acknowledged."""
        self._wrapped.close()

    def send(self, data: bytes) -> int:
        """Return the number of bytes taken. Raises BlockingIOError if none, SessionError.

        After BlockingIOError pass the same bytes again, with or without more after them.
        """
        try:
            return self._wrapped.send(data)
        except _WOULD_BLOCK as error:
            raise BlockingIOError from error
        except OSError as error:
            raise self._session_error(error) from error

    def recv(self, size: int) -> bytes:
        """Return received bytes, b"" at the end. Raises BlockingIOError if none, SessionError.

        May exceed *size* by less than a record of 16 KiB: `poll` does not report bytes that OpenSSL
        has already decrypted.
        """
        try:
            data = self._wrapped.recv(size)
            while pending := self._wrapped.pending():
                data += self._wrapped.recv(pending)
        except _WOULD_BLOCK as error:
            raise BlockingIOError from error
        except OSError as error:
            raise self._session_error(error) from error
        # With TLS 1.3 the server checks our certificate after the handshake.
        if not data and not self._received_any:
            raise SessionError(hangup_message(self._files))
        self._received_any = True
        return data

    def _session_error(self, error: OSError) -> SessionError:
        return SessionError(explain_error(error, self._files, self._name))
