"""Whose turn it is: late frames, streams that wait for room in the store, agents that register.

One task for all streams looks a few times a second; what it decides by is `ingest/pace.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import Protocol

from ...fingerprints.wire import telemetry_pb2 as wire
from ..access.names import is_name
from ..config import AggregatorConfig
from ..fleet.fleet import Fleet
from ..ingest.intake import Ingest
from ..ingest.pace import (
    BACKLOG_FRAMES,
    BACKLOG_FRAMES_PRESSED,
    CREDIT_FRAMES_PRESSED,
    WAITING_BYTES_SHARE,
    Admission,
    HostPace,
    Lane,
    Late,
    Spread,
)
from ..refusals import TooMuch
from ..store.store import Store

log = logging.getLogger(__name__)

#: How often the task looks.
TICK_SECONDS = 0.1
#: The streams whose frames a commit made durable are told together, so long after the first of them.
RECEIPTS_SECONDS = 0.005
#: An agent that waits for receipts hears from us at least this often: after 30 s without a word it would
#: take us for dead, come again, and send all again.
QUIET_SECONDS_MAX = 10.0


class Stream(Lane, Protocol):
    """What is asked of `telemetry.Stream`."""

    def say_heard(self) -> None: ...
    def wake(self) -> None: ...
    def quiet_since(self, since: float) -> bool: ...


class Turns:
    """Made in the loop whose thread owns it; `stop` ends its task."""

    def __init__(
        self, ingest: Ingest, store: Store, fleet: Fleet, config: AggregatorConfig
    ) -> None:
        self._ingest, self._store, self._fleet = ingest, store, fleet
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self.late = Late(config.queue_bytes_max // WAITING_BYTES_SHARE, now)
        self.admission = Admission(config.reconnects_per_second, now)
        self.streams: set[Stream] = set()
        #: No more frames are read.
        self.stopping = False
        self._backlog_hertz = float(config.backlog_frames_per_second)
        self._spread = Spread(config.reconnects_per_second)
        self._sent_away_max = max(1, int(config.reconnects_per_second * TICK_SECONDS))
        self._room: asyncio.Future[None] = self._loop.create_future()
        self._receipted: deque[Stream] = deque()  # filled by the writer thread, emptied by the loop
        self._telling = False
        self._told_credit = self.credit_frames
        self._looked = now
        self._task = asyncio.create_task(self._look_always())

    # What agents are told -------------------------------------------------------------------

    @property
    def credit_frames(self) -> int:
        """Frames a host may have on their way."""
        credit = self._ingest.credit_frames
        return min(credit, CREDIT_FRAMES_PRESSED) if self.late.pressed else credit

    @property
    def backlog_frames(self) -> int:
        """How many of them may be late ones."""
        return BACKLOG_FRAMES_PRESSED if self.late.pressed else BACKLOG_FRAMES

    @property
    def reconnect_seconds(self) -> int:
        """Within how long all hosts are to come back, should their connections be lost."""
        return self._spread.seconds(len(self._fleet))

    def retry_seconds(self, host: str) -> float:
        """Return when *host* is to come back if all are sent away now."""
        return self._spread.retry_seconds(host, len(self._fleet))

    def pace(self, now: float) -> HostPace:
        """Return the pace of a host whose first stream begins."""
        return HostPace(self._backlog_hertz, now)

    def admit(self, request: wire.RegisterNodeRequest, address: str) -> None:
        """Let an agent register, unless too many come at once. Raises TooMuch."""
        if not is_name(request.node):
            return  # refused at once: a name of megabytes is not remembered for its turn
        who = request.node, request.run_id, request.boot_id, address
        if self._ingest.sessions.speaks(*who):
            return
        wait = self.admission.wait_seconds(request.node, self._loop.time())
        if wait:
            raise TooMuch(f"many agents register at once; this one's turn is in {wait:.1f} s", wait)

    def leave(self, stream: Stream) -> None:
        """Forget a stream that has ended, and what waits of it."""
        self.streams.discard(stream)
        self.late.drop(stream)

    # Receipts -------------------------------------------------------------------------------

    def receipted(self, stream: Stream) -> None:
        """Called by the writer thread when a stream has receipts to send.

        The loop is woken once a commit: for each stream it would be as often, and send what is there by then.
        """
        self._receipted.append(stream)
        if not self._telling:
            self._telling = True
            with suppress(RuntimeError):  # the loop has ended: nobody is left to tell
                self._loop.call_soon_threadsafe(
                    self._loop.call_later, RECEIPTS_SECONDS, self._tell_receipted
                )

    def _tell_receipted(self) -> None:
        self._telling = False
        while self._receipted:
            self._receipted.popleft().wake()

    # The task -------------------------------------------------------------------------------

    async def room(self) -> None:
        """Return when the store may have room again, or cannot store now."""
        await asyncio.shield(self._room)

    async def _look_always(self) -> None:
        due = self._loop.time()
        while not self.stopping:
            due = max(due + TICK_SECONDS, self._loop.time())
            await asyncio.sleep(due - self._loop.time())
            now = self._loop.time()
            try:
                self.look(now, now - due)
            except Exception:
                log.exception("late frames and those who wait for room were not looked after")

    def look(self, now: float, lag_seconds: float) -> None:
        """Do what is due. *lag_seconds*: how late the loop is with it."""
        room = self._store.room
        if room or not self._ingest.storing:
            before, self._room = self._room, self._loop.create_future()
            before.set_result(None)
        self.late.step(now, lag_seconds, room)
        for lane, frames in self.late.passed_over(self._sent_away_max):
            lane.send_again(frames)
        self._tell_credit()
        if now - self._looked >= QUIET_SECONDS_MAX / 4:
            self._looked = now
            self._speak(now)

    def _tell_credit(self) -> None:
        """Tell all at once when credit has shrunk by half: no receipt may come for long to tell it with."""
        credit = self.credit_frames
        if 2 * credit <= self._told_credit:
            for stream in self.streams:
                stream.say_heard()
            self._told_credit = credit
        self._told_credit = max(self._told_credit, credit)

    def _speak(self, now: float) -> None:
        """A slow disk is no dead aggregator: say a word where receipts are waited for."""
        for stream in self.streams:
            if stream.quiet_since(now - QUIET_SECONDS_MAX):
                stream.say_heard()

    def stop(self) -> None:
        """End the task; streams that end from now on are told when to come back."""
        self.stopping = True
        self._task.cancel()
