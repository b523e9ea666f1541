"""A wire between two real sockets that can be cut: afterwards nothing passes and neither end is
notified.
"""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import suppress

CHUNK_BYTES = 1 << 16


class Cable:
    """Forwards a loopback port to another, in one thread. A cut closes no connection."""

    def __init__(self, to_port: int) -> None:
        self._to = ("127.0.0.1", to_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._through = threading.Event()
        self._through.set()
        self._closed = False
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._thread = threading.Thread(target=self._pass_on, name="cable", daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Stop forwarding."""
        self._through.clear()

    def mend(self) -> None:
        """Resume forwarding, beginning with the data sent meanwhile."""
        self._through.set()

    def close(self) -> None:
        self._closed = True
        self._through.set()
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            pass  # wakes the thread
        self._thread.join()

    def _pass_on(self) -> None:
        with selectors.DefaultSelector() as ready:
            ready.register(self._listener, selectors.EVENT_READ)
            while not self._closed:
                for key, _ in ready.select():
                    self._through.wait()
                    if self._closed:
                        break
                    assert isinstance(key.fileobj, socket.socket)
                    self._take(ready, key.fileobj)
            for connection in (self._listener, *self._pairs):
                connection.close()

    def _take(self, ready: selectors.BaseSelector, one: socket.socket) -> None:
        if one is self._listener:
            accepted, _ = one.accept()
            try:
                upstream = socket.create_connection(self._to)
            except OSError:  # no listener at present
                accepted.close()
                return
            self._pairs |= {accepted: upstream, upstream: accepted}
            ready.register(accepted, selectors.EVENT_READ)
            ready.register(upstream, selectors.EVENT_READ)
        elif (other := self._pairs.get(one)) is not None:
            try:
                data = one.recv(CHUNK_BYTES)
                other.sendall(data)
            except OSError:
                data = b""
            if not data:
                self._end(ready, one, other)

    def _end(self, ready: selectors.BaseSelector, one: socket.socket, other: socket.socket) -> None:
        for connection in (one, other):
            ready.unregister(connection)
            del self._pairs[connection]
            connection.close()
