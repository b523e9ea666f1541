"""The input of a recorded decision, as a damaged store or a hostile server would send it."""

from __future__ import annotations

import random

import numpy as np

from gangline.aggregator.decisions import inputs
from gangline.aggregator.decisions.inputs import InputsError
from tests.aggregator.decisions.fleets import Node, snapshot_of
from tests.fuzzing.damage import REFUSED, damaged, flipped, outcome

_NODES = [
    Node(f"h{index}", places=("", "", "l0", f"r{index // 2}", "", "", "")) for index in range(4)
]
PARTS = [part for _, part in inputs.input_parts(snapshot_of(_NODES), np.zeros(4, dtype=bool))]


def fuzz_inputs(source: random.Random) -> str:
    """Columns of one length for all nodes, or InputsError."""
    parts = list(PARTS)
    for _ in range(source.randrange(1, 3)):
        index = source.randrange(len(parts))
        parts[index] = source.choice((damaged, flipped))(parts[index], source)
    try:
        restored = inputs.restored_inputs(parts)
    except InputsError:
        return REFUSED
    assert (
        restored.excluded.size == len(restored.snapshot.names) == restored.snapshot.facts.gpus.size
    )
    return outcome(True)


def fuzz_compressed(source: random.Random) -> str:
    """The part of its digest, or InputsError."""
    part = source.choice(PARTS)
    try:
        restored = inputs.decompressed(flipped(inputs.compressed(part), source))
    except InputsError:
        return REFUSED
    return outcome(restored == part)


TARGETS = {"decision-inputs": fuzz_inputs, "decision-compressed": fuzz_compressed}
