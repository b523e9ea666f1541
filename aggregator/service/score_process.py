"""The aggregator's side of the score process: starts it, sends snapshots, and restarts it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import socket
import time
from contextlib import suppress
from typing import Any

from ..auth.access import AccessControl
from ..config import AggregatorConfig
from ..metrics import CallCounters
from ..scoring.evaluate import Judgement
from ..workers import WorkerProcess, receive_packets
from . import score_process_main, shared_snapshot
from .decision_log import DecisionLog
from .decision_recorder import BATCH_BYTES_MAX

log = logging.getLogger(__name__)

#: A process that does not listen or answer within these times is killed and replaced. The
#: aggregator does not start without one. A start takes a second of CPU time, a minute on a busy
#: machine.
START_SECONDS_MAX, ANSWER_SECONDS_MAX = 300.0, 10.0
#: Time for the last messages of a process that ends.
LAST_SECONDS = 1.0
#: Delay before a restart; it doubles up to the maximum while processes end within SOON_SECONDS.
REST_SECONDS, REST_SECONDS_MAX, SOON_SECONDS = 0.2, 30.0, 60.0

ENDED = "the score process has ended"


class ScoreProcessError(Exception):
    """The score process ended or does not respond; the message says which."""


class ScoreProcess:
    """The score process of an event loop: `start`, `publish` each snapshot, `close`."""

    def __init__(
        self,
        config: AggregatorConfig,
        endpoint: tuple[str, int],
        access_control: AccessControl,
        calls: CallCounters,
    ) -> None:
        """*access_control*, *calls*: the process's counts are added to these."""
        self._config, (self.address, self.port) = config, endpoint
        self._access_control, self._calls = access_control, calls
        #: Number of started processes.
        self.started_count = 0
        #: Version of the process's snapshot; 0: none yet.
        self.version = 0
        self._latest: Judgement | None = None
        self._updated = asyncio.Event()
        self._replies = asyncio.Queue[dict[str, Any]]()
        self._worker: WorkerProcess | None = None
        self._listening: asyncio.Task[None] | None = None
        self._supervisor: asyncio.Task[None] | None = None
        #: Receives the process's decisions; None: they are not stored.
        self.decisions: DecisionLog | None = None
        self._dictionary: tuple[tuple[int, ...], int] | None = None  # key, descriptor
        self._number = 0

    @property
    def pid(self) -> int:
        """The process id; 0 without a process."""
        return self._worker.pid if self._worker else 0

    async def start(self) -> None:
        """Start a process that listens, and restart it whenever it ends.

        Raises ScoreProcessError, OSError.
        """
        try:
            await self._begin()
        except BaseException:
            await self._end()
            raise
        self._supervisor = asyncio.create_task(self._supervise())

    def publish(self, snapshot: Judgement) -> None:
        """Send *snapshot* to the process; if it is busy, only the last snapshot is sent."""
        self._latest = snapshot
        self._updated.set()

    async def close(self) -> None:
        """End the process."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
        await self._end()
        if self._dictionary is not None:
            os.close(self._dictionary[1])
            self._dictionary = None

    async def _supervise(self) -> None:
        rest = REST_SECONDS
        while True:
            started, reason = time.monotonic(), ""
            try:
                if self._worker is None:
                    await self._begin()
                await self._hand_over()
            except (ScoreProcessError, OSError) as error:
                reason = str(error)
            except Exception:
                log.exception("a snapshot cannot be sent to the score process")
            status = await self._end()
            log.warning("%s (status %s); starting another", reason or "it was ended", status)
            if time.monotonic() - started >= SOON_SECONDS:
                rest = REST_SECONDS
            await asyncio.sleep(rest)
            rest = min(2 * rest, REST_SECONDS_MAX)

    async def _begin(self) -> None:
        control = self._spawn()
        self._replies = asyncio.Queue()
        self._listening = asyncio.create_task(self._listen(control, self._replies))
        reply = await self._next_reply(START_SECONDS_MAX)
        if "port" not in reply:
            raise ScoreProcessError(f"the score process cannot serve: {reply['error']}")
        self.port = reply["port"]
        self._updated.set()  # send the new process a snapshot

    def _spawn(self) -> socket.socket:
        # In its own session: Ctrl-C is for the aggregator, and it has its own CPU share.
        self._worker = WorkerProcess(score_process_main.__name__, own_session=True)
        self.started_count += 1
        settings = score_process_main.ScoreProcessSettings(
            self._config, self.address, self.port, os.getpid()
        )
        self._worker.control.send(pickle.dumps(settings))
        self._worker.control.setblocking(False)
        return self._worker.control

    async def _listen(self, control: socket.socket, answers: asyncio.Queue[dict[str, Any]]) -> None:
        async def take(data: bytes, descriptors: list[int]) -> None:
            packet = json.loads(data)
            if "decisions" in packet:
                self._take_decisions(packet, descriptors)
            elif "recording" in packet:
                if self.decisions is not None:
                    self.decisions.batches.begin(packet["recording"])
            else:
                answers.put_nowait(packet)

        try:
            await receive_packets(control, score_process_main.PACKET_BYTES_MAX, 1, take)
        except OSError:
            pass
        except (ValueError, KeyError) as error:
            log.warning("the score process sent an invalid packet: %s", error)
        answers.put_nowait({})
        if self.decisions is not None:
            self.decisions.batches.give_up()
        self._updated.set()

    def _take_decisions(self, packet: dict[str, Any], descriptors: list[int]) -> None:
        if self.decisions is None:
            return
        self.decisions.count_dropped(packet["dropped"])
        try:
            batch = shared_snapshot.mapped_file(descriptors[0], BATCH_BYTES_MAX)
        except (OSError, ValueError, IndexError) as error:
            log.warning("%d decisions cannot be imported: %s", packet["decisions"], error)
            self.decisions.count_dropped(packet["decisions"])
        else:
            self.decisions.add(batch, packet["decisions"])
        self.decisions.batches.receive(packet["batch"])

    async def _next_reply(self, seconds: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(seconds):
                reply = await self._replies.get()
        except TimeoutError as error:
            raise ScoreProcessError(
                f"the score process did not answer for {seconds:g} s and is killed"
            ) from error
        if not reply:
            raise ScoreProcessError(ENDED)
        return reply

    async def _hand_over(self) -> None:
        """Send snapshots until the process ends. Raises ScoreProcessError, OSError."""
        assert self._worker is not None
        while True:
            await self._updated.wait()
            self._updated.clear()
            if not self._replies.empty():
                await self._next_reply(
                    0.0
                )  # a reply without a request means that the process ended
            if (snapshot := self._latest) is None:
                continue
            # A thread may do this: a snapshot never changes, and only the names' file is kept.
            names, descriptor = await asyncio.to_thread(self._files, snapshot)
            try:
                self._worker.send({"dictionary": self._number}, names, descriptor)
            except ConnectionError as error:
                raise ScoreProcessError(ENDED) from error
            finally:
                os.close(descriptor)
            self._add_counts(await self._next_reply(ANSWER_SECONDS_MAX))

    def _files(self, snapshot: Judgement) -> tuple[int, int]:
        """Return descriptors of the names' file, which stays open, and of the snapshot's file."""
        key = snapshot.dictionary_version, len(snapshot.names), len(snapshot.gpus)
        if self._dictionary is None or self._dictionary[0] != key:
            descriptor = shared_snapshot.dictionary_file(snapshot)
            if self._dictionary is not None:
                os.close(self._dictionary[1])
            self._dictionary, self._number = (key, descriptor), self._number + 1
        return self._dictionary[1], shared_snapshot.snapshot_file(snapshot)

    def _add_counts(self, reply: dict[str, Any]) -> None:
        self.version = reply["version"]
        self._calls.started.update(reply["begun"])
        for name, code, count in reply["failed"]:
            self._calls.failed[name, code] += count
        self._access_control.refused_count += reply["refused"]

    async def _end(self) -> int | None:
        """End the process; return its exit status, None if there is no process."""
        worker, self._worker = self._worker, None
        if worker is not None:
            with suppress(OSError):
                worker.control.shutdown(
                    socket.SHUT_WR
                )  # the process then sends its last decisions and exits
        if self._listening is not None:
            await asyncio.wait([self._listening], timeout=LAST_SECONDS)
            self._listening.cancel()
            await asyncio.wait([self._listening])
        self._listening, self.version = None, 0
        return await asyncio.to_thread(worker.end) if worker is not None else None
