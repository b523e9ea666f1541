"""Context of an executor: settings, scheduler, aggregator, ledger and clocks, which all its parts share."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .client import AggregatorClient
from .ledger import ExecutorLedger
from .model import ExecutorPolicy, Scheduler
from .settings import ExecutorConfig, NodeNames

log = logging.getLogger(__name__)

#: A repeated failure is logged once in this time.
LOG_SECONDS = 60.0
#: Limit of remembered failures; at the limit they are forgotten.
LOGGED_MAX = 1000


@dataclass(frozen=True)
class ExecutorContext:
    """Settings, scheduler, aggregator and ledger of an executor. `shadow`: it only logs its steps."""

    config: ExecutorConfig
    scheduler: Scheduler
    client: AggregatorClient
    ledger: ExecutorLedger
    names: NodeNames
    shadow: bool = False
    #: Seconds since the epoch, and seconds of a clock that cannot be set.
    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    _logged: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    @property
    def policy(self) -> ExecutorPolicy:
        """The settings by which `core` decides."""
        return self.config.policy()

    def warn(self, failure: str, error: str) -> None:
        """Log a failure; a repeated failure only once in LOG_SECONDS."""
        now = self.monotonic()
        line = f"{failure}: {error}"
        if now - self._logged.get(line, -1e9) < LOG_SECONDS:
            return
        if len(self._logged) > LOGGED_MAX:
            self._logged.clear()
        self._logged[line] = now
        log.warning("%s", line)
