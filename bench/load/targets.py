"""Scrape targets without cost: prerendered texts of one host in rotation, on every loopback
address.

    python -m bench.load.targets SEED

Prints its port; ends with its standard input.
"""

from __future__ import annotations

import asyncio
import sys

from ..prometheus import texts


class _Target(asyncio.Protocol):
    """Answers any request with the next text, on a persistent connection."""

    answers: list[bytes]
    turn = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            self._received = self._received.partition(b"\r\n\r\n")[2]
            _Target.turn += 1
            answer = self.answers[_Target.turn % len(self.answers)]
            assert isinstance(self._transport, asyncio.Transport)
            self._transport.write(answer)


async def _serve(seed: int) -> None:
    _Target.answers = [
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(text), text)
        for text in texts(seed)
    ]
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Target, "0.0.0.0", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
