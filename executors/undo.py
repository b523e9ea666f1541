"""Removes everything that executors set in a scheduler, without the aggregator."""

from __future__ import annotations

from . import core, model, weights
from .ledger import ExecutorLedger, LedgerError
from .step_log import describe


def undo_all(
    scheduler: model.Scheduler, ledger: ExecutorLedger | None = None
) -> tuple[list[str], list[str]]:
    """Remove all marks of executors, found by name and reason; return (completed actions, failures).

    Needs no aggregator. The *ledger* is needed only for the original weights of nodes. A drain is ended only if the node's
    reason is still the executor's.
    """
    state = model.SchedulerState(scheduler.read_nodes(), {}, scheduler.read_holds())
    steps = core.undo_steps(state)
    errors = scheduler.apply(steps) if steps else {}
    done = [describe(step) for step in steps if step not in errors]
    failed = [f"{describe(step)}: {error}" for step, error in errors.items()]
    if ledger is not None and ledger.weights:
        try:
            done += _restore_weights(scheduler, state, ledger)
        except (LedgerError, model.SchedulerError) as error:
            failed.append(f"weights: {error}")
    cleared, uncleared = scheduler.clear_health()
    return [*done, *cleared], [*failed, *uncleared]


def _restore_weights(
    scheduler: model.Scheduler, state: model.SchedulerState, ledger: ExecutorLedger
) -> list[str]:
    """Restore the original weights of nodes; return the steps as text. Raises LedgerError, SchedulerError."""
    steps = weights.restore_steps(state.nodes, ledger)
    for step in steps:
        weights.record_weight_intent(step, state.nodes, ledger)
    ledger.save()
    if errors := scheduler.apply(steps):
        raise model.SchedulerError("; ".join(errors.values()))
    weights.forget_restored(scheduler.read_nodes(set(ledger.weights)), ledger)
    ledger.save()
    return [describe(step) for step in steps]
