"""Carries out the steps that `core` decided: commands to the scheduler and calls to the aggregator, each after the ledger."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from . import ledger_updates, model, weights
from .client import ClientError
from .cluster_reader import ClusterReader
from .context import ExecutorContext
from .launchers.torchft import ReplicaKiller
from .recovery_follower import RecoveryFollower
from .step_log import StepLog, describe

log = logging.getLogger(__name__)

#: An advisory is skipped for this long after a command or call for it failed.
PAUSE_SECONDS = 5.0


class StepRunner:
    """Carries out steps. Methods raise SchedulerError and LedgerError."""

    def __init__(
        self,
        context: ExecutorContext,
        reader: ClusterReader,
        recoveries: RecoveryFollower,
        step_log: StepLog,
    ) -> None:
        self._context, self._reader = context, reader
        self._recoveries, self._step_log = recoveries, step_log
        self._replicas = ReplicaKiller(context.config.torchft_lighthouses)
        #: Advisory -> monotonic time before which its steps are not tried.
        self._paused: dict[str, float] = {}
        #: The ledger has unsaved changes from calls to the aggregator.
        self._is_unsaved = False

    def save_changes(self) -> None:
        """Store the ledger if calls to the aggregator changed it. Raises LedgerError."""
        if self._is_unsaved:
            self.save()

    def is_due(self, step: model.Step) -> bool:
        """Return whether *step* may be tried: not shortly after a step of its advisory failed."""
        return self._paused.get(step.advisory, -1e9) <= self._context.monotonic()

    def carry_out(self, situation: model.Situation, steps: list[model.Step]) -> None:
        """Write the ledger once, send all commands to the scheduler together, then make the calls to the aggregator."""
        commands = [step for step in steps if isinstance(step, model.SCHEDULER_STEPS)]
        for command in commands:
            ledger_updates.record_intent(command, self._context.ledger, situation)
            if isinstance(command, model.SetWeight):
                weights.record_weight_intent(
                    command, self._reader.state.nodes, self._context.ledger
                )
            if isinstance(command, model.Requeue):
                advice = situation.advice.get(command.advisory)
                self._recoveries.begin(command, advice, situation.scheduler)
            log.info("%s: %s", describe(command), command.why)
        if commands:
            if not all(isinstance(command, model.StartNow) for command in commands):
                self.save()
            errors = self._apply(commands)
            now = self._context.wall()
            for command in commands:
                self._note(command, errors.get(command, ""), now)
            self.save()
        self._tell(
            situation, [step for step in steps if not isinstance(step, model.SCHEDULER_STEPS)]
        )

    def _apply(self, commands: Sequence[model.Step]) -> dict[model.Step, str]:
        """Carry out *commands*, replicas in parallel; return the error of each failed command."""
        kills = [one for one in commands if isinstance(one, model.KillReplicas)]
        if not kills:
            return self._context.scheduler.apply(commands)
        others = [one for one in commands if not isinstance(one, model.KillReplicas)]
        errors: dict[model.Step, str] = {}

        def kill(step: model.KillReplicas) -> None:
            names = {step.node, self._context.names.host_of(step.node)}
            note, error = self._replicas.kill(names, f"gangline: {step.advisory}")
            ledger_updates.record_replicas(step, note, self._context.ledger)
            if error:
                errors[step] = error

        def apply() -> None:
            errors.update(self._context.scheduler.apply(others) if others else {})

        calls: list[Callable[[], None]] = [*(partial(kill, one) for one in kills), apply]
        model.together(calls)
        return errors

    def _note(self, step: model.Step, error: str, now: float) -> None:
        self._step_log.count(step, error)
        ledger_updates.record_result(step, error, self._context.ledger, now)
        if isinstance(step, model.Requeue):
            self._recoveries.note(step, error, now)
        if error:
            # `evictions` delays the next Requeue or EndStep of the job itself; KillReplicas is not repeated.
            if not isinstance(step, model.Requeue | model.EndStep | model.KillReplicas):
                self._paused[step.advisory] = self._context.monotonic() + PAUSE_SECONDS
            self._context.warn(f"{describe(step)} failed", error)

    def _tell(self, situation: model.Situation, steps: list[model.Step]) -> None:
        """Carry out steps for the aggregator or the ledger: the calls in parallel, then their results in order."""
        if not steps:
            return
        if any(isinstance(step, model.Answer) for step in steps):
            # A replica that was suspended and lost the Lease has an outdated state: this write fails, so it sends no
            # answer.
            self.save()
        answers = model.together(
            [partial(self._call, situation.advice.get(step.advisory), step) for step in steps]
        )
        for step, answer in zip(steps, answers, strict=True):
            if isinstance(answer, ClientError):
                self._step_log.count(step, str(answer))
                self._paused[step.advisory] = self._context.monotonic() + PAUSE_SECONDS
                self._context.warn(f"{describe(step)} of {step.advisory}", str(answer))
                continue
            match step:
                case model.Accept() if answer is not None:
                    self._accepted(situation, situation.advice[step.advisory], answer)
                case model.Answer(state=state, why=note):
                    log.info("%s %s: %s", step.advisory, state, note)
                    self._step_log.figures.count_answer(step.advisory, state)
                    entry = self._context.ledger.get(step.advisory)
                    if entry is not None:
                        entry.answered = state
                case model.AdoptStore(store=store):
                    self._adopt_store(store)
                case model.Restore(advisory=name):
                    log.info("%s: the mark is set again: %s", name, step.why)
                    ledger_updates.record_accept(
                        self._context.ledger, situation, situation.advice[name]
                    )
                    self._context.ledger.entries[name].answered = model.DONE
                case model.GiveBack(node=node):
                    log.warning("%s: %s", node, step.why)
                case model.Forget():
                    log.info("%s is over: %s", step.advisory, step.why)
                case _:
                    pass
            self._note(step, "", self._context.wall())
        self._is_unsaved = True

    def _adopt_store(self, store: str) -> None:
        """Begin the ledger for *store*; `Reporter` then reports everything again."""
        log.warning(
            "the aggregator has another store (%s, before %s): it was reset or restored. What was set for the store before was "
            "removed, and the ledger begins again",
            store,
            self._context.ledger.store,
        )
        self._context.ledger.tokens, self._context.ledger.store = {}, store
        self._recoveries.forget()

    def _call(
        self, advice: model.Advice | None, step: model.Step
    ) -> model.Advice | ClientError | None:
        """Make the call of *step*; return its result or error. Runs in a separate thread."""
        lease = self._context.config.lease_seconds
        try:
            match step:
                case model.Accept() if advice is not None:
                    return self._context.client.answer(advice, "ACCEPTED", lease_seconds=lease)
                case model.RenewLease(note=note) if advice is not None:
                    return self._context.client.answer(advice, "ACCEPTED", note, lease)
                case model.Answer(state=state, why=note) if advice is not None:
                    plans = self._recoveries.plan_texts(step.advisory)
                    return self._context.client.answer(advice, state, "; ".join([note, *plans]))
                case model.GiveBack(node=node):
                    self._context.client.report_unavailable(
                        {}, 0, [self._context.names.host_of(node)]
                    )
                case _:
                    pass
        except ClientError as error:
            return error
        return None

    def _accepted(
        self, situation: model.Situation, advice: model.Advice, after: model.Advice
    ) -> None:
        if after.state != "ACCEPTED":
            self._paused[advice.name] = self._context.monotonic() + PAUSE_SECONDS
            log.info("%s was not granted: it is %s now", advice.name, after.state)
            return
        if after.token < self._context.ledger.tokens.get(advice.name, 0):
            log.warning("%s: fencing token %d is older than one seen", advice.name, after.token)
            return
        log.info(
            "accepted %s: %s of %s: %s", advice.name, advice.action, advice.node, advice.reason
        )
        ledger_updates.record_accept(
            self._context.ledger, replace(situation, now=self._context.wall()), after
        )

    def save(self) -> None:
        """Store the ledger. Raises LedgerError."""
        self._context.ledger.save()
        self._is_unsaved = False
