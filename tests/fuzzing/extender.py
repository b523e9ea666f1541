"""Damaged requests of a scheduler to its extender."""

from __future__ import annotations

import json
import random

from gangline.executors.kubernetes.extender import ANSWERS, RequestBodyError, table_of
from gangline.executors.mirror_format import Mirror
from tests.fuzzing.damage import ACCEPTED, REFUSED, damaged
from tests.fuzzing.mirror import NODES

TABLE = table_of(Mirror(0, 1, False, False, 0, 0, {}, {}, NODES))
GOOD = {
    "filter": {"Pod": {"metadata": {"name": "a"}}, "Nodes": None, "NodeNames": [node.name for node in NODES]},
    "prioritize": {"Pod": {}, "Nodes": {"items": [{"metadata": {"name": node.name}} for node in NODES]}},
    "predicate": {"task": {}, "node": {"Name": "gpu3"}},
    "nodes": {"task": {}, "nodes": [{"Name": node.name} for node in NODES]},
}  # fmt: skip


def fuzz_extender(source: random.Random) -> str:
    """Any request: an answer in JSON, or an error message."""
    body = damaged(json.dumps(GOOD[source.choice(list(GOOD))]).encode(), source)
    outcome = REFUSED
    for answer in ANSWERS.values():
        try:
            json.loads(answer(body, TABLE))
            outcome = ACCEPTED
        except RequestBodyError as error:
            assert str(error)
    return outcome


TARGETS = {"scheduler-extender": fuzz_extender}
