"""How the command reaches a scheduler: the base class of each scheduler's site."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from .ledger import ExecutorLedger, UnsavedLedger, locked
from .model import DoctorFinding, Scheduler
from .settings import ExecutorConfig, NodeNames

LEDGER_FILE = "ledger.json"
#: Runs until its event is set.
Companion = Callable[[threading.Event], None]


class SchedulerSite(ABC):
    """How the command reaches a scheduler, where its ledger is, and which doctor checks it."""

    title: str
    scheduler: Scheduler
    #: Whether nodes have weights, which `undo` reads from the ledger.
    has_weights = False

    def __init__(self, config: ExecutorConfig) -> None:
        self.config = config

    @abstractmethod
    def findings(self, attempt: bool) -> Iterable[DoctorFinding]:
        """Yield the findings of this scheduler's doctor."""

    def read_ledger(self) -> ExecutorLedger:
        """Return the ledger for reading. Raises LedgerError."""
        return ExecutorLedger(Path(self.config.ledger) / LEDGER_FILE)

    @contextmanager
    def own_ledger(self, stopped: threading.Event, shadow: bool) -> Iterator[ExecutorLedger | None]:
        """Yield the ledger, owned by this process; None if *stopped* is set first.

        Losing the ledger sets *stopped*. Raises LedgerError.
        """
        del stopped
        if shadow:  # shadow runs beside an acting executor, whose ledger it must not replace
            yield UnsavedLedger(Path(self.config.ledger) / LEDGER_FILE)
            return
        folder = Path(self.config.ledger)
        with locked(folder):
            yield ExecutorLedger(folder / LEDGER_FILE)

    def companions(self, channel: grpc.Channel, names: NodeNames) -> Iterable[Companion]:
        """Yield companions of an acting executor; each runs in a thread until the event is set."""
        del channel, names
        return ()

    def undo_companions(self) -> list[str]:
        """Remove everything that companions set; return descriptions. Raises SchedulerError."""
        return []

    def close(self) -> None:
        """Release the resources of the scheduler's connection."""
        return
