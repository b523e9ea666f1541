"""Turns that take seconds, in threads that the daemon can leave behind: the inventory's.

What it waits for is a child of its own that it ends in time. Should its thread be stuck nevertheless, the daemon goes
on without it, says so at every tick, and starts no second thread that would get stuck behind the first. What enters a
driver is sampled in processes of its own (`agent/sampler/`).
"""

from __future__ import annotations

import queue
import threading

from .clock import Clock
from .collector import Collector, CollectOutcome, CollectResult, run_collector

#: Address space of a probe's thread; drivers' libraries use more than a few pages of it.
STACK_BYTES = 1 << 20

_STACK_SIZE_LOCK = threading.Lock()  # threading.stack_size is one value for the whole process


class DeadlineThread:
    """One collector's turns, taken in a thread of its own. `begin`, `poll` and `wait` never block
    longer than they are told to; all three belong to the daemon's thread.

    The collector's blocks are the daemon's from `poll` until the next `begin`.
    """

    def __init__(self, collector: Collector, clock: Clock, *, deadline_ns: int) -> None:
        """*deadline_ns*: a turn that has not returned by then is hung. Starts no thread yet."""
        self.collector = collector
        self.began_ns = 0  # of the turn that runs, or of the last one
        self.skipped = 0  # turns left out because the one before had not returned
        self.running = False  # a turn was begun and has not been taken
        self._clock = clock
        self._deadline_ns = deadline_ns
        self._requests: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._returned = threading.Event()
        self._result: CollectResult | None = None
        self._hung = False
        self._thread: threading.Thread | None = None

    @property
    def hung(self) -> bool:
        """Whether a turn is past its deadline and has not returned."""
        return self._hung and not self._returned.is_set()

    def begin(self, now_ns: int) -> bool:
        """Start a turn. Return False, and count it, if the one before has not been taken."""
        if self.running:
            self.skipped += 1
            return False
        if self._thread is None and not self._start():
            return False
        self.began_ns, self.running = now_ns, True
        self._returned.clear()
        self._requests.put(None)
        return True

    def poll(self, now_ns: int) -> CollectResult | None:
        """Return the turn that came back, or a hung one if it is past its deadline, else None.

        What comes back after it was given up as hung is thrown away: its readings are of no known
        time. After that the collector is taken up again.
        """
        if not self.running:
            return None
        if self._returned.is_set():
            late, self.running, self._hung = self._hung, False, False
            result, self._result = self._result, None
            return None if late else result
        waited_ns = now_ns - self.began_ns
        if waited_ns < self._deadline_ns:
            return None
        self._hung = True
        seconds, name = waited_ns / 1e9, self.collector.name
        message = f"did not return for {seconds:.1f} s in {name}"
        return CollectResult(name, (), seconds, CollectOutcome.HUNG, message)

    def wait(self, seconds_max: float) -> bool:
        """Wait for the turn that runs, if any, and return whether it is back. Not for a hung one."""
        if not self.running:
            return True
        return self._returned.wait(0 if self._hung else max(0.0, seconds_max))

    def _start(self) -> bool:
        """Start the thread; False when the host has none to give now."""
        thread = threading.Thread(
            target=self._serve, name=f"probe-{self.collector.name}", daemon=True
        )
        with _STACK_SIZE_LOCK:
            before = threading.stack_size(STACK_BYTES)
            try:
                thread.start()
            except RuntimeError:  # "can't start new thread": tried again at the next turn
                self.skipped += 1
                return False
            finally:
                threading.stack_size(before)
        self._thread = thread
        return True

    def _serve(self) -> None:
        while True:
            self._requests.get()
            self._result = run_collector(self.collector, self._clock)
            self._returned.set()
