"""The socket on which the kernel tells what happens to links (NETLINK_ROUTE, RTMGRP_LINK)."""

from __future__ import annotations

import contextlib
import errno
import select
import socket

from . import netlink

#: What the kernel may keep for us; at about 1.5 KiB a message, some 1,300 of them. Then ENOBUFS.
RECEIVE_BUFFER_BYTES = 2 << 20

_SO_RCVBUFFORCE = 33


class Overrun(Exception):
    """Messages were lost: what is known of links may be out of date until they are asked for again."""


class LinkSocket:
    """Reads what is told; `wake` ends a wait from another thread. One reader at a time."""

    def __init__(self, receive_buffer_bytes: int = RECEIVE_BUFFER_BYTES) -> None:
        """Open and subscribe. Raises OSError (a container's seccomp filter, no netlink)."""
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE
        )
        self._woken, self._waker = socket.socketpair()
        try:
            self._set_buffer(receive_buffer_bytes)
            self._socket.bind((0, netlink.GROUP_LINK))
            self._socket.setblocking(False)
        except OSError:
            self.close()
            raise

    def _set_buffer(self, size: int) -> None:
        """Beyond the host's limit (net.core.rmem_max) only with CAP_NET_ADMIN; else what it allows."""
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, size)
        except PermissionError:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)

    def ask_for_all(self, sequence: int) -> None:
        """Ask for a dump of all links. Raises OSError (EBUSY while the last one is not read out)."""
        self._socket.sendto(netlink.all_links(sequence), (0, 0))

    def receive(self) -> bytes | None:
        """Return a datagram, or None when none is there. Raises Overrun, OSError.

        What another process sent is not the kernel's word, and is passed over as empty.
        """
        try:
            data, address = self._socket.recvfrom(netlink.DATAGRAM_BYTES_MAX)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                raise Overrun from error
            raise
        return data if address[0] == 0 else b""

    def wait(self, seconds: float) -> bool:
        """Wait for a datagram, `wake` or *seconds*; return False when woken."""
        poll = (
            select.poll()
        )  # select() knows no descriptor above 1,023, and counter files keep thousands
        poll.register(self._socket, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        return self._woken.fileno() not in {number for number, _ in poll.poll(seconds * 1000)}

    def wake(self) -> None:
        """End the wait, now and for ever. From any thread; never raises."""
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def close(self) -> None:
        """Close. For the reader's thread."""
        for each in (self._socket, self._woken, self._waker):
            each.close()
