"""The GPUs of each container, from kubelet: the event `gpu.allocation` and the table `kubelet_10s`.

An allocation does not show the processes on the GPU; `gpu_processes.py` does.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from ...contract.block import Block
from ...contract.signals import index_of
from ...contract.wire.telemetry_pb2 import HealthEvent
from ...ext import place
from ..clock import Clock, SystemClock
from ..collector import AccessDenied, Collector, NoData
from ..events import EventPublisher
from ..hardware import kubelet
from ..hardware.files import Roots
from ..hardware.kubelet import Allocation, KubeletError
from .change_events import REPEAT_NS, boot_of, event_bucket, resync_event, revision_at

EVENT = "gpu.allocation"
#: Name of kubelet in the call slot.
DEVICE_NAME = "kubelet"
_REMEDY = "open it with AmbientCapabilities=CAP_DAC_OVERRIDE in the agent's unit"
#: Longest wait between requests to a kubelet that does not respond, in turns of 10 s.
WAIT_TURNS_MAX = 60

_STATE_PHRASES = {"held": "was given", "released": "has given back"}


class KubeletAllocations(Collector):
    """The GPU allocations of containers.

    `collect` raises NoData without kubelet, AccessDenied without permission, KubeletError if
    kubelet fails.
    """

    name = "kubelet_10s"
    enters_driver = True  # no driver, but kubelet may hang: not in the daemon's own thread

    def __init__(
        self,
        roots: Roots,
        clock: Clock | None = None,
        answer_seconds_max: float = kubelet.ANSWER_SECONDS_MAX,
    ) -> None:
        self._seconds_max = answer_seconds_max
        self._path = roots.proc.parent / kubelet.KUBELET_SOCKET
        self._clock = clock or SystemClock()
        self._boot = boot_of(roots.proc)
        self._block = Block("kubelet_10s_changes", ("host",))
        self._publisher: EventPublisher | None = None
        self._rate_limit = event_bucket()
        #: Reported allocation -> its begin, and the last report; boot time.
        self._reported: dict[Allocation, tuple[int, int]] = {}
        self._since_ns: int | None = None  # when complete reporting began; 0: announced
        self._wait_turns, self._turns_left = 1, 0
        self._last_error: KubeletError | None = None

    def start(self, publisher: EventPublisher) -> None:
        """Take the publisher: a frame cannot carry names."""
        self._publisher = publisher

    def close(self) -> None:
        """Do nothing: no thread was started."""

    def collect(self) -> Sequence[Block]:
        """List the allocations, and publish changes."""
        self._turns_left -= 1
        if self._last_error and self._turns_left > 0:
            raise self._last_error.with_traceback(None)
        held = set(self._list_allocations())
        now_ns = self._clock.boottime_ns()
        if self._publisher:
            self._publish_all(self._publisher, held, now_ns)
        containers = {
            (allocation.namespace, allocation.pod, allocation.container) for allocation in held
        }
        self._block.put_float(index_of("kubelet.containers_count"), 0, len(containers))
        gpus = {allocation.device for allocation in held}
        self._block.put_float(index_of("kubelet.gpus_count"), 0, len(gpus))
        return (self._block,)

    def _list_allocations(self) -> list[Allocation]:
        place.enter(DEVICE_NAME.encode(), b"PodResourcesLister/List")
        try:
            allocations = kubelet.list_allocations(self._path, self._seconds_max)
        except (FileNotFoundError, ConnectionRefusedError):
            raise NoData("no kubelet listens on this host") from None
        except PermissionError:
            raise AccessDenied(f"{self._path} belongs to root: {_REMEDY}") from None
        except KubeletError as error:
            self._last_error, self._turns_left = error, self._wait_turns
            self._wait_turns = min(2 * self._wait_turns, WAIT_TURNS_MAX)
            raise
        finally:
            place.leave()
        self._last_error, self._wait_turns = None, 1
        return allocations

    def _publish_all(self, publisher: EventPublisher, held: set[Allocation], now_ns: int) -> None:
        if self._since_ns is None:
            self._since_ns = now_ns
        for allocation in [allocation for allocation in self._reported if allocation not in held]:
            if not publisher.publish(
                self._event(allocation, "released", self._reported[allocation][0], now_ns)
            ):
                return  # the queue is full: the rest follows in the next turn
            del self._reported[allocation]
        for allocation in sorted(held):
            since_ns, reported_ns = self._reported.get(allocation, (now_ns, -REPEAT_NS))
            if now_ns - reported_ns >= REPEAT_NS and not self._rate_limit.try_take(now_ns / 1e9):
                if not publisher.publish(self._event(allocation, "held", since_ns, now_ns)):
                    return
                self._reported[allocation] = since_ns, now_ns
        if self._since_ns and self._reported.keys() == held:
            event = resync_event(self._boot, EVENT, "host", "host", self._since_ns, now_ns)
            self._since_ns = 0 if publisher.publish(event) else self._since_ns

    def _event(self, allocation: Allocation, state: str, since_ns: int, now_ns: int) -> HealthEvent:
        identity = (
            f"{allocation.namespace}/{allocation.pod}/{allocation.container}"
            f"/{allocation.resource}/{allocation.replica}".encode()
        )
        digest = f"{zlib.crc32(identity):08x}{zlib.adler32(identity):08x}"
        attributes = {"state": state, "source": "kubelet", **allocation._asdict()}
        return HealthEvent(
            event_id=f"{self._boot}/allocation/{digest}/{allocation.device[:60]}",
            device_kind="gpu",
            device=attributes.pop("device"),
            name=EVENT,
            message=f"pod {allocation.namespace}/{allocation.pod} container "
            f"{allocation.container} {_STATE_PHRASES[state]} {allocation.resource}",
            boottime_ns=since_ns,
            last_boottime_ns=now_ns,
            wall_time_ns=self._clock.wall_ns() - (now_ns - since_ns),
            revision=revision_at(now_ns),
            attributes={name: text for name, text in attributes.items() if text},
        )
