"""Weights of nodes: a step per weight, the earlier weight is restored, and a kill at any point loses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline.executors.ledger import ExecutorLedger, WeightChange
from gangline.executors.model import Node
from gangline.executors.weights import (
    forget_restored,
    record_weight_intent,
    restore_steps,
    weight_steps,
)


@pytest.fixture
def ledger(tmp_path: Path) -> ExecutorLedger:
    return ExecutorLedger(tmp_path / "ledger.json")


def nodes_of(**weights: int | None) -> dict[str, Node]:
    return {name: Node(name, "IDLE", weight=weight) for name, weight in weights.items()}


def test_one_step_for_each_bucket(ledger: ExecutorLedger) -> None:
    """10,000 nodes need at most three commands: the best bucket keeps its weight. An invalid bucket
    counts as the worst.
    """
    nodes = nodes_of(**{f"n{index}": 1 for index in range(10)})
    buckets = {f"n{index}": index % 4 for index in range(8)} | {"n8": 77, "gone": 2}
    steps = weight_steps(nodes, buckets, (), ledger)
    assert [(step.weight, step.nodes) for step in steps] == [
        (2, ("n1", "n5")),
        (3, ("n2", "n6")),
        (4, ("n3", "n7", "n8")),
    ]


def test_planned_nodes_come_first(ledger: ExecutorLedger) -> None:
    """0 is the lowest weight; a node without a weight is left alone."""
    steps = weight_steps(nodes_of(n1=1, n2=0, n3=None), {"n1": 3}, {"n1", "n2", "n3"}, ledger)
    assert [(step.weight, step.nodes) for step in steps] == [(0, ("n1",))]


@pytest.mark.parametrize("is_sent", [True, False])
def test_killed_around_a_command_what_was_before_is_known(
    ledger: ExecutorLedger, tmp_path: Path, is_sent: bool
) -> None:
    """The second change was in the ledger but not in the scheduler: the first change was taken for a person's."""
    nodes = nodes_of(n1=5)
    (first,) = weight_steps(nodes, {"n1": 1}, (), ledger)
    record_weight_intent(first, nodes, ledger)
    nodes = nodes_of(n1=6)
    (second,) = weight_steps(nodes, {"n1": 3}, (), ledger)
    record_weight_intent(second, nodes, ledger)
    ledger.save()
    nodes = nodes_of(n1=8 if is_sent else 6)
    again = ExecutorLedger(tmp_path / "ledger.json")
    assert again.weights == {"n1": WeightChange(5, 8, 6)}
    (back,) = restore_steps(nodes, again)
    assert back.weight == 5
    record_weight_intent(back, nodes, again)
    assert forget_restored(nodes_of(n1=5), again) and not again.weights


def test_a_weight_of_a_person_stays(ledger: ExecutorLedger) -> None:
    """A person's weight becomes the weight to restore, in place of the weight found at first."""
    nodes = nodes_of(n1=1)
    (step,) = weight_steps(nodes, {"n1": 2}, (), ledger)
    record_weight_intent(step, nodes, ledger)
    assert restore_steps(nodes_of(n1=40), ledger) == []
    (after,) = weight_steps(nodes_of(n1=40), {"n1": 2}, (), ledger)
    assert after.weight == 42
    assert forget_restored(nodes_of(n1=40), ledger) and not ledger.weights


def test_after_a_restart_of_the_controller_weights_are_set_again(ledger: ExecutorLedger) -> None:
    """slurmctld reads the weights of slurm.conf when it starts."""
    nodes = nodes_of(n1=1)
    (step,) = weight_steps(nodes, {"n1": 2}, (), ledger)
    record_weight_intent(step, nodes, ledger)
    assert not forget_restored(nodes_of(n1=1), ledger)
    assert weight_steps(nodes_of(n1=1), {"n1": 2}, (), ledger) == [step]
