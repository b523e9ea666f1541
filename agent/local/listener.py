"""The socket in the file system: made whole, a dead agent's replaced, a live one's left alone."""

from __future__ import annotations

import os
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path

from .calls import Peer

#: Of sockaddr_un.sun_path, without the zero at its end.
PATH_BYTES_MAX = 107
BACKLOG_CONNECTIONS = 64
_CREDENTIALS = struct.Struct("iII")


class InUse(OSError):
    """Somebody answers at that path; the words say who."""


def peer_of(connection: socket.socket) -> Peer:
    """Return who made a connection of a Unix socket, or listens at its other end. Raises OSError."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(data))


class Listener:
    """A listening Unix socket at a path. `socket` does not block."""

    def __init__(self, path: Path, mode: int = 0o666) -> None:
        """*mode*: who may connect; who may ask for what is the server's decision, by SO_PEERCRED.

        Raises InUse when a live process answers at *path*, OSError in words when it cannot be made.
        """
        self.path = path
        made = path.with_name(f".{path.name}.{os.getpid()}")
        if len(os.fsencode(made)) > PATH_BYTES_MAX:
            raise OSError(
                f"{path}: too long for a Unix socket ({PATH_BYTES_MAX} bytes with "
                f"{made.name}); set run_folder, or metrics_listen, to a shorter one"
            )
        _make_way(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            with suppress(FileNotFoundError):
                made.unlink()
            self.socket.bind(str(made))
            made.chmod(mode)
            self.socket.listen(BACKLOG_CONNECTIONS)
            self._file = _identity(made)
            made.rename(path)  # it appears when it answers, and the dead one's is gone with that
        except OSError:
            self.socket.close()
            raise

    def close(self) -> None:
        """Close it, and remove its file if that is still its own. Never raises."""
        self.socket.close()
        with suppress(OSError):
            if _identity(self.path) == self._file:
                self.path.unlink()


def _make_way(path: Path) -> None:
    """Make the folder; raise where something lives at *path*."""
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True)
        path.parent.chmod(0o755)
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(f"{path} is there and is no socket: move it away, or set another path")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except BlockingIOError:  # its queue is full: it lives
            raise InUse(f"another process answers at {path}") from None
        except (ConnectionRefusedError, FileNotFoundError):
            return  # nobody listens: left behind by one that was killed
        raise InUse(f"process {peer_of(probe).process_id} answers at {path}")


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino
