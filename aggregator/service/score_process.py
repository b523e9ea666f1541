"""The aggregator's end of the score process: starts it, passes it each snapshot, and restarts it when it ends."""

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

#: One that does not listen, or says nothing to a snapshot, for this long is killed: another may do better. The
#: aggregator does not start without one that listens. Its start takes a second of CPU time, which a busy machine may give in a minute.
START_SECONDS_MAX, ANSWER_SECONDS_MAX = 300.0, 10.0
#: At its end the process has this long for its last messages.
LAST_SECONDS = 1.0
#: The next process starts this long after one has ended; if they end early, the delay doubles each time.
REST_SECONDS, REST_SECONDS_MAX, SOON_SECONDS = 0.2, 30.0, 60.0

ENDED = "the score process has ended"


class ScoreProcessError(Exception):
    """The score process ended, or does not respond; the words say which."""


class ScoreProcess:
    """Of one event loop. `start`, then `publish` of each snapshot, then `close`."""

    def __init__(
        self,
        config: AggregatorConfig,
        endpoint: tuple[str, int],
        access_control: AccessControl,
        calls: CallCounters,
    ) -> None:
        """*access_control*, *calls*: what the process counts is added to theirs."""
        self._config, (self.address, self.port) = config, endpoint
        self._access_control, self._calls = access_control, calls
        #: How often one was started.
        self.started_count = 0
        #: The version of the snapshot that it answers from; 0: none yet.
        self.version = 0
        self._latest: Judgement | None = None
        self._updated = asyncio.Event()
        self._replies = asyncio.Queue[dict[str, Any]]()
        self._worker: WorkerProcess | None = None
        self._listening: asyncio.Task[None] | None = None
        self._supervisor: asyncio.Task[None] | None = None
        #: Takes the decisions that it made; None: nobody does.
        self.decisions: DecisionLog | None = None
        self._dictionary: tuple[tuple[int, ...], int] | None = None  # of what it is, descriptor
        self._number = 0

    @property
    def pid(self) -> int:
        """The process, 0 without one."""
        return self._worker.pid if self._worker else 0

    async def start(self) -> None:
        """Have one that listens, and keep one from now on. Raises ScoreProcessError, OSError."""
        try:
            await self._begin()
        except BaseException:
            await self._end()
            raise
        self._supervisor = asyncio.create_task(self._supervise())

    def publish(self, snapshot: Judgement) -> None:
        """Let it answer from *snapshot*; of several that come while it takes one over, the last."""
        self._latest = snapshot
        self._updated.set()

    async def close(self) -> None:
        """End it."""
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
        self._updated.set()  # it has no snapshot yet

    def _spawn(self) -> socket.socket:
        # Ctrl-C is for the aggregator; and it has a share of the processors of its own beside all threads of ours.
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
                    self.decisions.expects_batch = True
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
            self.decisions.expects_batch = False
        self._updated.set()

    def _take_decisions(self, packet: dict[str, Any], descriptors: list[int]) -> None:
        if self.decisions is None:
            return
        self.decisions.expects_batch = False
        self.decisions.count_dropped(packet["dropped"])
        try:
            batch = shared_snapshot.mapped_file(descriptors[0], BATCH_BYTES_MAX)
        except (OSError, ValueError, IndexError) as error:
            log.warning("%d decisions cannot be imported: %s", packet["decisions"], error)
            self.decisions.count_dropped(packet["decisions"])
        else:
            self.decisions.add(batch, packet["decisions"])

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
        """Hand snapshots over until the process is no more. Raises ScoreProcessError, OSError."""
        assert self._worker is not None
        while True:
            await self._updated.wait()
            self._updated.clear()
            if not self._replies.empty():
                await self._next_reply(0.0)  # nothing was asked: it has ended
            if (snapshot := self._latest) is None:
                continue
            # Nobody changes it, and what is written is no state of ours but the names' file.
            names, descriptor = await asyncio.to_thread(self._files, snapshot)
            try:
                self._worker.send({"dictionary": self._number}, names, descriptor)
            except ConnectionError as error:
                raise ScoreProcessError(ENDED) from error
            finally:
                os.close(descriptor)
            self._add_counts(await self._next_reply(ANSWER_SECONDS_MAX))

    def _files(self, snapshot: Judgement) -> tuple[int, int]:
        """Return descriptors of the names, which is kept, and of the rest."""
        key = snapshot.dictionary_version, len(snapshot.names), len(snapshot.gpus)
        if self._dictionary is None or self._dictionary[0] != key:
            made = shared_snapshot.dictionary_file(snapshot)
            if self._dictionary is not None:
                os.close(self._dictionary[1])
            self._dictionary, self._number = (key, made), self._number + 1
        return self._dictionary[1], shared_snapshot.snapshot_file(snapshot)

    def _add_counts(self, reply: dict[str, Any]) -> None:
        self.version = reply["version"]
        self._calls.started.update(reply["begun"])
        for name, code, count in reply["failed"]:
            self._calls.failed[name, code] += count
        self._access_control.refused_count += reply["refused"]

    async def _end(self) -> int | None:
        """End it, and return with what status it did; None where none was started."""
        worker, self._worker = self._worker, None
        if worker is not None:
            with suppress(OSError):
                worker.control.shutdown(socket.SHUT_WR)  # it sends its last decisions, and ends
        if self._listening is not None:
            await asyncio.wait([self._listening], timeout=LAST_SECONDS)
            self._listening.cancel()
            await asyncio.wait([self._listening])
        self._listening, self.version = None, 0
        return await asyncio.to_thread(worker.end) if worker is not None else None
