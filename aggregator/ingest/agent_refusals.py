"""Reports agents whose calls are refused: in the log, as findings, and as a count for an alarm.

Only the agent's own log showed a refusal before. All memory and output is bounded: names come from callers that may be
hostile.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable

from ...contract.token_bucket import TokenBucket
from ..errors import (
    InvalidArgument,
    PermissionDenied,
    ServiceError,
    StreamRefused,
    Unauthenticated,
)
from ..model import AGGREGATOR_HOST
from ..principal import is_name
from .findings import EXPIRES_SECONDS, ActiveFindings

log = logging.getLogger(__name__)

FINDING = "agent.refused"
#: Errors that a retry does not change. A duplicate name is a finding of its own, a full `hosts_max` an alarm.
LASTING = (InvalidArgument, PermissionDenied, StreamRefused, Unauthenticated)
#: Remembered agents; at the limit the agent with the oldest refusal is forgotten.
AGENTS_MAX = 10_000
#: Active findings; further agents are only counted and logged.
FINDINGS_MAX = 100
#: Reports at once, and per second afterwards; further refusals are only counted.
REPORTS_BURST, REPORTS_PER_SECOND = 100, 0.1
MESSAGE_CHARACTERS_MAX = 500
_EXPIRES_NS = EXPIRES_SECONDS * 1_000_000_000


class AgentRefusals:
    """Agents by host name, or by address if the name is unknown. Owned by the event loop's thread."""

    def __init__(self, findings: ActiveFindings, wall_ns: Callable[[], int]) -> None:
        self._findings, self._wall_ns = findings, wall_ns
        # Agent and method -> reason and time of the last refusal.
        self._last: OrderedDict[tuple[str, str], tuple[str, int]] = OrderedDict()
        self._bucket = TokenBucket(REPORTS_PER_SECOND, REPORTS_BURST, wall_ns() / 1e9)

    def count(self, now_ns: int) -> int:
        """Return the number of agents refused within EXPIRES_SECONDS. For any thread."""
        last = list(self._last.items())
        return len({agent for (agent, _), (_, at_ns) in last if now_ns - at_ns <= _EXPIRES_NS})

    def refuse(self, method: str, node: str, address: str, error: ServiceError) -> None:
        """Report that a call of an agent ended with *error*. *node*: "" if unknown."""
        if not isinstance(error, LASTING):
            return
        now_ns, agent = self._wall_ns(), node if is_name(node) else address
        # The message has ports and counts that change with each call.
        reason = f"{type(error).__name__} {error.field}"
        before, _ = self._last.pop((agent, method), ("", 0))
        self._last[agent, method] = reason, now_ns
        if len(self._last) > AGENTS_MAX:
            self._last.popitem(last=False)
        if reason != before and not self._bucket.try_take(now_ns / 1e9):
            text = str(error)[:MESSAGE_CHARACTERS_MAX]
            text = "".join(character if character.isprintable() else "?" for character in text)
            log.warning("%s of the agent of %s (%s) is refused: %s", method, agent, address, text)
            self._clear(agent, now_ns)
            if self._findings.count(FINDING) < FINDINGS_MAX:
                message = f"{method} of its agent ({address}) is refused: {text}"
                self._find(agent, message, now_ns)
        elif (AGGREGATOR_HOST, FINDING, agent) in self._findings:
            self._find(agent, "", now_ns)  # extends it

    def accept(self, method: str, node: str, address: str) -> None:
        """End the refusals of an agent whose call succeeded."""
        for agent in (node, address):
            if self._last.pop((agent, method), None) is not None:
                self._clear(agent, self._wall_ns())

    def _find(self, agent: str, message: str, now_ns: int) -> None:
        host = AGGREGATOR_HOST
        self._findings.find(host, FINDING, message, now_ns, subject=agent, expires=True)

    def _clear(self, agent: str, now_ns: int) -> None:
        self._findings.clear(AGGREGATOR_HOST, FINDING, now_ns, subject=agent)
