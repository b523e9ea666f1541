"""The agent's Unix socket: its path, its permissions and the identity of a peer."""

from __future__ import annotations

import os
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path

from .grpc_session import Peer

#: Size of sockaddr_un.sun_path without the zero at its end.
PATH_BYTES_MAX = 107
BACKLOG_CONNECTIONS = 64
_CREDENTIALS = struct.Struct("iII")


class SocketInUse(OSError):
    """A process listens at the path; the message names the process."""


def peer_of(connection: socket.socket) -> Peer:
    """Return the process that opened a connection, or listens at its other end. Raises OSError."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(data))


class UnixListener:
    """A listening Unix socket at a path. `socket` does not block."""

    def __init__(self, path: Path, mode: int = 0o666) -> None:
        """Listen at *path*. *mode*: permission to connect; calls are authorized by SO_PEERCRED.

        Raises SocketInUse if a live process listens at *path*, OSError for other failures.
        """
        self.path = path
        temporary_path = path.with_name(f".{path.name}.{os.getpid()}")
        if len(os.fsencode(temporary_path)) > PATH_BYTES_MAX:
            raise OSError(
                f"{path}: too long for a Unix socket ({PATH_BYTES_MAX} bytes with "
                f"{temporary_path.name}); set run_folder, or metrics_listen, to a shorter one"
            )
        _prepare_path(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            with suppress(FileNotFoundError):
                temporary_path.unlink()
            self.socket.bind(str(temporary_path))
            temporary_path.chmod(mode)
            self.socket.listen(BACKLOG_CONNECTIONS)
            self._file_identity = _identity(temporary_path)
            # Renamed last: the path appears when it answers, and replaces a dead agent's socket.
            temporary_path.rename(path)
        except OSError:
            self.socket.close()
            raise

    def close(self) -> None:
        """Close the socket, and remove its file unless it was replaced. Never raises."""
        self.socket.close()
        with suppress(OSError):
            if _identity(self.path) == self._file_identity:
                self.path.unlink()


def _prepare_path(path: Path) -> None:
    """Create the folder. Raises SocketInUse or OSError if *path* is taken."""
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True)
        path.parent.chmod(0o755)
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(f"{path} exists and is not a socket. Move it, or set another path")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except BlockingIOError:  # its queue is full, so the process lives
            raise SocketInUse(f"another process already listens at {path}") from None
        except (ConnectionRefusedError, FileNotFoundError):
            return  # a leftover of a killed process
        raise SocketInUse(f"process {peer_of(probe).process_id} answers at {path}")


def _identity(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino
