"""An executor's main loop: waits for advice, reads the scheduler, decides, acts, reports.

One thread decides and acts; another watches advisories (`client.py`). Failures of the scheduler or the aggregator never end
the loop: it logs them and retries.
"""

from __future__ import annotations

import threading

from . import core, ledger_updates, model
from .cluster_reader import ClusterReader
from .context import ExecutorContext
from .launchers.launchers import Launchers
from .ledger import LedgerError
from .recovery import RECOVERY_POLL_SECONDS
from .recovery_follower import RecoveryFollower
from .reporter import Reporter
from .step_log import StepLog
from .step_runner import PAUSE_SECONDS, StepRunner
from .weight_setter import WeightSetter

#: Limit of rounds of deciding and acting in a turn; an advisory needs a few rounds.
ROUNDS_MAX = 8


class Executor:
    """The executor: `run` returns after `stop`."""

    def __init__(
        self,
        context: ExecutorContext,
        step_log: StepLog | None = None,
        launchers: Launchers | None = None,
        wake: threading.Event | None = None,
        stopped: threading.Event | None = None,
    ) -> None:
        """*wake*: set by the client when advice changed; *stopped*: set to end `run`."""
        self._context, self._launchers = context, launchers
        self.step_log = step_log or StepLog(context)
        self._wake = wake or threading.Event()
        self._stopped = stopped or threading.Event()
        self._recoveries = RecoveryFollower(context.client, context.names, context.config.cluster)
        self._reader = ClusterReader(context)
        self._runner = StepRunner(context, self._reader, self._recoveries, self.step_log)
        self._weights = WeightSetter(context, self._reader, self._recoveries, self._runner)
        self._reporter = Reporter(context, self._recoveries, launchers)

    def stop(self) -> None:
        """End `run` after its current step."""
        self._stopped.set()
        self._wake.set()

    def run(self) -> None:
        """Repeat turns until `stop` is called."""
        while not self._stopped.is_set():
            pause = self.turn()
            self._wake.wait(pause)
            self._wake.clear()

    def turn(self) -> float:
        """Read, decide, act and report; return the seconds until the next turn.

        Failures of the scheduler, the aggregator and the ledger are logged, not raised.
        """
        context, reader = self._context, self._reader
        try:
            reader.ask_capabilities()
            if not context.shadow:
                context.scheduler.remove_expired()
            reader.read()
            try:
                self._act()
            finally:
                # If a kill prevents this, `core` recognizes an accepted advisory by its owner.
                self._runner.save_changes()
            self._recoveries.collect()
            if not context.shadow:
                self._weights.update()
            self._recoveries.finish(reader.state, context.wall())
            if self._launchers is not None:
                self._launchers.update(reader.situation(), context.ledger)
            if not context.shadow and context.client.is_live():
                self._reporter.send(reader.state)
            self._observe()
        except model.SchedulerError as error:
            context.warn("the scheduler does not answer", str(error))
            return context.config.poll_seconds
        except LedgerError as error:
            context.warn("nothing is done without the ledger", str(error))
            return PAUSE_SECONDS
        pause = context.config.poll_seconds
        if self._recoveries.is_urgent(context.wall()):
            pause = min(pause, RECOVERY_POLL_SECONDS)
        return core.next_poll_seconds(context.ledger, reader.capabilities, context.wall(), pause)

    def _observe(self) -> None:
        """Update the figures after a turn."""
        context, figures = self._context, self.step_log.figures
        figures.is_connected = context.client.is_live()
        figures.observe(
            context.client.advice(), self._reader.state, context.ledger, context.policy.actions
        )

    def _act(self) -> None:
        """Decide and act until no step is due."""
        for _ in range(ROUNDS_MAX):
            self._recoveries.collect()
            situation = self._reader.situation()
            self.step_log.figures.note_advice(
                situation.advice, self._context.ledger, self._context.policy.actions
            )
            if ledger_updates.reconcile(self._context.ledger, situation):
                self._runner.save()
            steps = [
                step
                for step in core.decide(situation, self._context.ledger)
                if self._runner.is_due(step)
            ]
            self.step_log.announce(situation)
            if self._context.shadow:
                return
            if not steps or self._stopped.is_set():
                return
            self._runner.carry_out(situation, steps)
            if any(isinstance(step, model.SCHEDULER_STEPS) for step in steps):
                self._reader.read()
