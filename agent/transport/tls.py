"""TLS for the agent's line: a socket that does not block, and says what goes wrong in words.

The connection sees what it sees of a plain socket: `send` takes a part or raises BlockingIOError, `recv` too, and when
`poll` finds nothing to read there is nothing to read.
"""

from __future__ import annotations

import socket
import ssl

from ...contract.tls import TlsError, TlsFiles, client_context, explain_error, hangup_message
from .http2 import SessionError

__all__ = ["TlsFiles", "TlsSocket", "handshake"]

#: OpenSSL waits for the socket: for bytes, or for room.
_WOULD_BLOCK = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


def handshake(plain_socket: socket.socket, files: TlsFiles, name: str) -> TlsSocket:
    """Shake hands over *plain_socket*, within its timeout. Reads the files again. Raises SessionError with a message."""
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
    """What a line needs of a socket."""

    def __init__(self, wrapped: ssl.SSLSocket, files: TlsFiles, name: str) -> None:
        self._wrapped, self._files, self._name = wrapped, files, name
        self._received_any = False  # anything but the handshake

    def fileno(self) -> int:
        """Return the descriptor to be polled."""
        return self._wrapped.fileno()

    def setblocking(self, flag: bool, /) -> None:
        """From `setblocking(False)` on nothing waits."""
        self._wrapped.setblocking(flag)

    def close(self) -> None:
        """Close it, without a last word: what matters has had its receipt."""
        self._wrapped.close()

    def send(self, data: bytes) -> int:
        """Return how much was taken. Raises BlockingIOError when nothing can be now, SessionError.

        After BlockingIOError the same bytes are to be offered again, with or without more behind them.
        """
        try:
            return self._wrapped.send(data)
        except _WOULD_BLOCK as error:
            raise BlockingIOError from error
        except OSError as error:
            raise self._session_error(error) from error

    def recv(self, size: int) -> bytes:
        """Return what is there, b"" at the end. Raises BlockingIOError when nothing is, SessionError.

        It may be more than *size*, by less than a record of 16 KiB: what OpenSSL has decrypted, poll would not tell of.
        """
        try:
            data = self._wrapped.recv(size)
            while pending := self._wrapped.pending():
                data += self._wrapped.recv(pending)
        except _WOULD_BLOCK as error:
            raise BlockingIOError from error
        except OSError as error:
            raise self._session_error(error) from error
        if (
            not data and not self._received_any
        ):  # TLS 1.3: our certificate is looked at after the handshake
            raise SessionError(hangup_message(self._files))
        self._received_any = True
        return data

    def _session_error(self, error: OSError) -> SessionError:
        return SessionError(explain_error(error, self._files, self._name))
