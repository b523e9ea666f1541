"""Which container holds which GPU, by kubelet's own word: told as `gpu.allocation`, counted in `kubelet_10s`.

That a pod holds a GPU says nothing of what runs there; that is `gpu_processes.py`.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from ...contract.block import Block
from ...contract.signal import Pace
from ...contract.signals import index_of
from ...contract.wire.telemetry_pb2 import HealthEvent
from ...ext import place
from ..clock import Clock, SystemClock
from ..collector import Blind, NoData
from ..events import Teller
from ..hardware import process_owner
from ..hardware.files import Roots
from ..hardware.process_owner import Allocation, KubeletError
from .change_events import TELL_AGAIN_NS, TellBudget, anew, boot_of, revision_at

EVENT = "gpu.allocation"
#: The name under which a sampler that may not ask is told so.
PLACE = "kubelet"
_OPENS = "open it with AmbientCapabilities=CAP_DAC_OVERRIDE in the agent's unit"
#: A kubelet that does not answer is asked ever more rarely, in turns of 10 s.
WAIT_TURNS_MAX = 60


class KubeletAllocations:
    """`collect` raises NoData where there is no kubelet, Blind where we may not ask, KubeletError when it fails."""

    name = "kubelet_10s"
    pace = Pace.TEN_SECONDS
    enters_driver = True  # no driver, but somebody else's answer: not in the daemon's own thread

    def __init__(
        self,
        roots: Roots,
        clock: Clock | None = None,
        answer_seconds_max: float = process_owner.ANSWER_SECONDS_MAX,
    ) -> None:
        self._seconds_max = answer_seconds_max
        self._path = roots.proc.parent / process_owner.SOCKET
        self._clock = clock or SystemClock()
        self._boot = boot_of(roots.proc)
        self._block = Block("kubelet_10s_changes", ("host",))
        self._teller: Teller | None = None
        self._budget = TellBudget()
        #: What was told -> since when it was held, and when it was told last; boot time.
        self._told: dict[Allocation, tuple[int, int]] = {}
        self._since_ns: int | None = None  # from when on all was told; 0: that is said
        self._wait_turns, self._turns_left = 1, 0
        self._trouble: KubeletError | None = None

    def listen(self, teller: Teller) -> None:
        """Take the teller: names cannot travel in a frame."""
        self._teller = teller

    def close(self) -> None:
        """Nothing runs between turns."""

    def collect(self) -> Sequence[Block]:
        """Ask kubelet, and tell what has changed."""
        self._turns_left -= 1
        if self._trouble and self._turns_left > 0:
            raise self._trouble.with_traceback(None)
        held = set(self._ask())
        now_ns = self._clock.boottime_ns()
        if self._teller:
            self._tell_all(self._teller, held, now_ns)
        containers = {(one.namespace, one.pod, one.container) for one in held}
        self._block.put_float(index_of("kubelet.containers_count"), 0, len(containers))
        gpus = {one.device for one in held}
        self._block.put_float(index_of("kubelet.gpus_count"), 0, len(gpus))
        return (self._block,)

    def _ask(self) -> list[Allocation]:
        place.enter(PLACE.encode(), b"PodResourcesLister/List")
        try:
            found = process_owner.ask(self._path, self._seconds_max)
        except (FileNotFoundError, ConnectionRefusedError):
            raise NoData("no kubelet listens on this host") from None
        except PermissionError:
            raise Blind(f"{self._path} is root's: {_OPENS}") from None
        except KubeletError as error:
            self._trouble, self._turns_left = error, self._wait_turns
            self._wait_turns = min(2 * self._wait_turns, WAIT_TURNS_MAX)
            raise
        finally:
            place.leave()
        self._trouble, self._wait_turns = None, 1
        return found

    def _tell_all(self, teller: Teller, held: set[Allocation], now_ns: int) -> None:
        self._budget.refill(now_ns)
        if self._since_ns is None:
            self._since_ns = now_ns
        for one in [one for one in self._told if one not in held]:
            if not teller.tell(self._event(one, "released", self._told[one][0], now_ns)):
                return  # the way is full: the rest at the next turn
            del self._told[one]
        for one in sorted(held):
            since_ns, told_ns = self._told.get(one, (now_ns, -TELL_AGAIN_NS))
            if now_ns - told_ns >= TELL_AGAIN_NS and self._budget.take():
                if not teller.tell(self._event(one, "held", since_ns, now_ns)):
                    return
                self._told[one] = since_ns, now_ns
        if self._since_ns and self._told.keys() == held:
            event = anew(self._boot, EVENT, "host", "host", self._since_ns, now_ns)
            self._since_ns = 0 if teller.tell(event) else self._since_ns

    def _event(self, one: Allocation, state: str, since_ns: int, now_ns: int) -> HealthEvent:
        who = f"{one.namespace}/{one.pod}/{one.container}/{one.resource}/{one.replica}".encode()
        digest = f"{zlib.crc32(who):08x}{zlib.adler32(who):08x}"
        said = {"state": state, "source": "kubelet", **one._asdict()}
        return HealthEvent(
            event_id=f"{self._boot}/allocation/{digest}/{one.device[:60]}",
            device_kind="gpu",
            device=said.pop("device"),
            name=EVENT,
            message=f"pod {one.namespace}/{one.pod} container {one.container} {_SAYS[state]} {one.resource}",
            boottime_ns=since_ns,
            last_boottime_ns=now_ns,
            wall_time_ns=self._clock.wall_ns() - (now_ns - since_ns),
            revision=revision_at(now_ns),
            attributes={name: text for name, text in said.items() if text},
        )


_SAYS = {"held": "was given", "released": "has given back"}
