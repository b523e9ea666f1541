"""gangline.v1.AgentService: letting go of GPUs and taking them back, and what the agent says of itself.

All of it is the daemon's own thread's to do, so each call goes through the mailbox and is answered later.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from ...fingerprints.wire import agent_pb2 as pb
from ..clock import Clock
from ..holding import StillHeld
from ..mailbox import Mailbox
from ..not_in_the_way import SECONDS_DEFAULT, NotInTheWay
from ..released import SECONDS_MAX, WHY_CHARACTERS_MAX
from .calls import Handler, Later, Method, Peer, Refused
from .gpu_names import NotAGpu, addresses_of

SERVICE = "/gangline.v1.AgentService/"
RELEASE, RESUME, STATUS = f"{SERVICE}Release", f"{SERVICE}Resume", f"{SERVICE}GetStatus"
#: In place of a PCI address, where all GPUs were let go of together.
ALL = "all"

Request = TypeVar("Request", bound=Message)


class AgentService:
    """The handlers. *gpus*: PCI address -> UUID, from any thread and at once. *updating*: in words, that library and driver are of different versions; else empty."""

    def __init__(
        self,
        not_in_the_way: NotInTheWay,
        mailbox: Mailbox,
        clock: Clock,
        gpus: Callable[[], Mapping[str, str]],
        updating: Callable[[], str],
        version: str,
    ) -> None:
        self._way, self._mailbox, self._clock, self._gpus = not_in_the_way, mailbox, clock, gpus
        self._updating, self._version = updating, version

    def methods(self) -> Mapping[str, Method]:
        """Return the rows of the server's table."""
        return {
            RELEASE: Method(self._handler(pb.ReleaseRequest, self._release), privileged=True),
            RESUME: Method(self._handler(pb.ResumeRequest, self._resume), privileged=True),
            STATUS: Method(self._handler(pb.GetStatusRequest, self._status)),
        }

    def _handler(
        self, kind: type[Request], do: Callable[[Request, Peer], Callable[[Later], None]]
    ) -> Handler:
        """Return a handler that reads and checks the request here, and has the rest done by the daemon's thread."""

        def handle(message: bytes, peer: Peer) -> Later:
            try:
                work = do(kind.FromString(message), peer)
            except (DecodeError, ValueError) as error:
                raise Refused("INVALID_ARGUMENT", str(error)) from error
            later = Later()
            if not self._mailbox.put(lambda: _try(work, later)):
                raise Refused("RESOURCE_EXHAUSTED", "too many calls wait for the agent")
            return later

        return handle

    def _devices(self, names: Sequence[str]) -> frozenset[str] | None:
        """Return PCI addresses; None for all. Raises Refused."""
        try:
            return addresses_of(names, self._gpus()) if names else None
        except NotAGpu as error:
            raise Refused("INVALID_ARGUMENT", str(error)) from error

    def _release(self, request: pb.ReleaseRequest, peer: Peer) -> Callable[[Later], None]:
        seconds = request.seconds or SECONDS_DEFAULT
        if not (isfinite(seconds) and 0 < seconds <= SECONDS_MAX):
            raise ValueError(f"seconds {seconds:g}: expected more than 0, at most {SECONDS_MAX:g}")
        devices = self._devices(request.gpus)
        why = "".join(c if c.isprintable() else " " for c in request.why[:WHY_CHARACTERS_MAX])
        why = why or f"asked by process {peer.process_id}"

        def work(later: Later) -> None:
            def tell(held: Sequence[StillHeld]) -> None:
                mine = {ALL} if devices is None else devices
                released = [gpu for gpu in self._released() if gpu.pci_address in mine]
                answer = pb.ReleaseResponse(released=released or self._released())
                for each in held:
                    answer.holders.add(
                        pci_address=each.address, process_id=each.process_id, words=each.words
                    )
                later.answer(answer.SerializeToString())

            self._way.release(devices, seconds, why, tell)

        return work

    def _resume(self, request: pb.ResumeRequest, peer: Peer) -> Callable[[Later], None]:
        devices = self._devices(request.gpus)

        def work(later: Later) -> None:
            if devices is not None and None in (each.address for each in self._way.released()):
                words = "all GPUs were let go of together: resume without names takes them back"
                later.refuse("FAILED_PRECONDITION", words)
                return
            resumed = [address or ALL for address in self._way.resume(devices)]
            later.answer(pb.ResumeResponse(resumed=resumed).SerializeToString())

        return work

    def _status(self, request: pb.GetStatusRequest, peer: Peer) -> Callable[[Later], None]:
        def work(later: Later) -> None:
            updating, now_ns = self._updating(), self._clock.boottime_ns()
            answer = pb.GetStatusResponse(
                version=self._version,
                process_id=os.getpid(),
                released=self._released(),
                driver_updating=bool(updating),
                driver_words=updating,
                abandoned_count=self._way.abandoned_count,
            )
            for state in self._way.troubles():
                answer.devices.add(
                    device=state.device,
                    lane=state.lane,
                    state=state.state.name.lower(),
                    call=state.call,
                    hung_seconds=state.hung_seconds,
                    abandoned_count=state.abandoned_count,
                    next_try_seconds=max(0.0, (state.next_try_ns - now_ns) / 1e9),
                )
            later.answer(answer.SerializeToString())

        return work

    def _released(self) -> list[pb.ReleasedGpu]:
        now_ns = self._clock.boottime_ns()
        return [
            pb.ReleasedGpu(
                pci_address=each.address or ALL,
                seconds_left=max(0.0, (each.until_ns - now_ns) / 1e9),
                why=each.why,
            )
            for each in self._way.released()
        ]


def _try(work: Callable[[Later], None], later: Later) -> None:
    """Do it, unless nobody waits for it any more; whatever it raises is an answer."""
    if later.is_moot:
        return
    try:
        work(later)
    except Exception as error:
        later.refuse("INTERNAL", f"{type(error).__name__}: {error}")
        raise
