"""A sampler's process: its socket, its rest between turns, its end."""

from __future__ import annotations

import gc
import logging
import os
import select
import socket
import time
from contextlib import suppress

from ...ext import place, process
from ..clock import Clock
from ..own import share_bytes
from .codec import CodecError, Inbox, decode_order
from .lanes import Lanes
from .loop import Sampler

RECEIVE_BYTES = 1 << 16
#: How a process ends in whose place another is to go on (`agent.turn.StartAnew`).
ANEW_CODE = 75
#: A daemon that does not read for so long is itself stuck: what is not sent by then waits, and what comes then is lost.
SEND_MILLISECONDS_MAX = 200

log = logging.getLogger(__name__)


class Mouth:
    """Sends whole messages without ever blocking for long."""

    def __init__(self, connection: socket.socket, bell: int) -> None:
        """Neither *connection* blocks nor *bell*, an eventfd that wakes the daemon."""
        self._connection, self._bell = connection, bell
        self._left = b""
        self.is_heard = True  # else the daemon is gone
        self._poll = select.poll()
        self._poll.register(connection, select.POLLOUT)

    def say(self, message: bytes) -> bool:
        """Send *message*; False when one before it still waits: this one is then lost as a whole."""
        if self._left:
            self._send()
        if self._left:
            return False
        self._left = message
        self._send()
        return True

    def say_at_once(self, message: bytes) -> bool:
        """Send it and wake the daemon, which takes what is only said at its next second."""
        sent = self.say(message)
        with suppress(BlockingIOError):  # it has rung more often than can be counted
            os.eventfd_write(self._bell, 1)
        return sent

    def _send(self) -> None:
        while self._left:
            try:
                self._left = self._left[self._connection.send(self._left) :]
            except BlockingIOError:
                if not self._poll.poll(SEND_MILLISECONDS_MAX):
                    return
            except OSError:
                self.is_heard = False
                return


def cost(look_at_memory: bool) -> tuple[float, int]:
    """Return this process's CPU seconds and, if they are to be looked at, its bytes of memory."""
    if look_at_memory:
        gc.collect()
        process.trim()
    return time.process_time(), int(share_bytes() or 0) if look_at_memory else 0


def serve(lanes: Lanes, connection: socket.socket, clock: Clock, bell: int) -> bool:
    """Be a sampler until the daemon says to end, or is gone. True: only another process can go on."""
    connection.setblocking(False)
    mouth = Mouth(connection, bell)
    sampler = Sampler(
        lanes,
        clock,
        mouth.say,
        cost,
        lambda lane: process.name(f"gangline-{lane}".encode()),
        mouth.say_at_once,
    )
    inbox, readable = Inbox(), select.poll()
    readable.register(connection, select.POLLIN)
    while not sampler.ended and mouth.is_heard:
        if _rest(sampler, readable, clock) and not _hear(sampler, connection, inbox):
            break
        sampler.tick()
    return sampler.anew


def _rest(sampler: Sampler, readable: select.poll, clock: Clock) -> bool:
    """Wait for the next turn, or an order: True. Who has work of its own meanwhile is not at the socket: it is called."""
    until_ns = sampler.next_ns()
    if until_ns is None:
        return bool(readable.poll())
    for resting in sampler.resting:
        place.collector(resting.name.encode())
        try:
            resting.rest(until_ns)
        except Exception:
            log.exception("a collector's rest failed", extra={"cause": "sampler.rest"})
        place.collector(b"")
    if place.called():
        return True
    left_ns = until_ns - clock.boottime_ns()
    return left_ns > 0 and bool(readable.poll(left_ns / 1e6))


def _hear(sampler: Sampler, connection: socket.socket, inbox: Inbox) -> bool:
    """Obey all orders that have come. False: the daemon is gone, or does not speak as it should."""
    while True:
        try:
            data = connection.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data or not _obey(sampler, inbox, data):
            return False


def _obey(sampler: Sampler, inbox: Inbox, data: bytes) -> bool:
    inbox.feed(data)
    try:
        for kind, body in inbox:
            sampler.obey(decode_order(kind, body))
    except (CodecError, UnicodeDecodeError, KeyError):
        log.exception("an order is none", extra={"cause": "sampler.order"})
        return False
    return True
