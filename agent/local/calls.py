"""What a method of the local server is: who asks, what is answered, now or later, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class Peer(NamedTuple):
    """The process that made the connection, as the kernel says (SO_PEERCRED)."""

    process_id: int
    user_id: int
    group_id: int


class Refused(Exception):
    """A call is refused with a status of gRPC's (`NOT_FOUND`, say) and words for an operator."""

    def __init__(self, status: str, words: str) -> None:
        super().__init__(f"{status}: {words}")
        self.status, self.words = status, words


class Later:
    """An answer that another thread gives, once: with `answer` or `refuse`. Both return at once and never raise."""

    def __init__(self) -> None:
        #: Nobody waits any more: the client hung up, or its time is over.
        self.is_moot = False
        #: The answer, or why there is none; None until then.
        self.result: bytes | Refused | None = None
        self._lock = threading.Lock()
        self._when_done: Callable[[], None] | None = None

    def answer(self, message: bytes) -> None:
        self._settle(message)

    def refuse(self, status: str, words: str) -> None:
        self._settle(Refused(status, words))

    def when_done(self, callback: Callable[[], None]) -> None:
        """Have *callback* called once there is a result, from any thread; at once if there is one."""
        with self._lock:
            self._when_done = callback
            if self.result is None:
                return
        callback()

    def _settle(self, result: bytes | Refused) -> None:
        with self._lock:
            if self.result is not None:
                return
            self.result = result
            callback = self._when_done
        if callback:
            callback()


#: The request's bytes and who sent it -> the answer's bytes, or who gives them later. Raises Refused. It is called in
#: the server's thread: whatever takes longer than a moment is done elsewhere.
Handler = Callable[[bytes, Peer], bytes | Later]


@dataclass(frozen=True, slots=True)
class Method:
    """A row of the server's table. *privileged*: for root and the agent's own user."""

    handler: Handler
    privileged: bool = False
