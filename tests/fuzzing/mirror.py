"""The file of `gangline mirror`, and scontrol's output of nodes, jobs and reservations, damaged."""

from __future__ import annotations

import random

from gangline.executors.launchers.cycle_info import HOSTS_MAX, CycleInfoError, parse_cycle_info
from gangline.executors.mirror_format import (
    MirrorError,
    MirrorNode,
    excludable,
    parse,
    parse_slurm_nodes,
    render,
)
from gangline.executors.slurm.pending_job import (
    parse_job,
    parse_nodes,
    parse_reservations,
    steps_of,
    verdict,
)
from tests.executors.test_pending_job import JOB, NODE, RESERVATIONS
from tests.fuzzing.damage import ACCEPTED, REFUSED, damaged

CYCLE = (
    b'{"job_id": "7", "attempt_index": 1, "cycle_number": 2, "cycle_start_time": "2027-01-15T08:00:00.5Z", "cycle_end_time": "",'
    b' "active_nodes": "n[1-3,05],rack-b", "standby_nodes": "n4", "active_ranks": "0-3", "generation": "0"}'
)
NOW = 1_800_000_000
NODES = [
    MirrorNode(
        f"gpu{index}",
        index % 4,
        index != 3,
        0.9,
        1e-4,
        1.0,
        "UNHEALTHY" if index == 3 else "HEALTHY",
        "",
    )
    for index in range(6)
]
SHOWN = "\n".join(
    f"NodeName=gpu{index} CPUTot=8 AvailableFeatures=(null) ActiveFeatures=a,b Gres=gpu:8 State=IDLE Partitions=main"
    for index in range(6)
).encode()
CONFIG = "TopologyPlugin          = topology/none\n"


def fuzz_mirror_file(source: random.Random) -> str:
    """Only a file with all its checksums is read."""
    good = render(NODES, computed_seconds=NOW, valid_until_seconds=NOW + 15)
    content = damaged(good, source)
    try:
        parse(content)
    except MirrorError as error:
        assert str(error)
        return REFUSED
    assert content == good
    return ACCEPTED


def fuzz_slurm_nodes(source: random.Random) -> str:
    """Whatever scontrol says: nodes that may be left out are nodes that it named."""
    try:
        slurm = parse_slurm_nodes(damaged(SHOWN, source).decode(errors="replace"), CONFIG)
    except MirrorError:
        return REFUSED
    names, safe_nodes = excludable([node.name for node in NODES], slurm)
    assert set(names) <= set(slurm.kinds) and safe_nodes <= len(slurm.kinds)
    return ACCEPTED


def fuzz_pending_job(source: random.Random) -> str:
    """Each step leaves fewer nodes, and all excluded nodes are existing nodes."""
    texts = [
        damaged(text.encode(), source).decode(errors="replace")
        for text in (JOB, NODE, RESERVATIONS)
    ]
    try:
        job, nodes = parse_job(texts[0]), parse_nodes(texts[1])
        steps, left = steps_of(job, nodes, parse_reservations(texts[2]))
    except MirrorError:
        return REFUSED
    counts = [step.left for step in steps]
    assert counts == sorted(counts, reverse=True) and counts[-1] == len(left)
    assert {*left, *(name for step in steps for name in step.lost)} == {node.name for node in nodes}
    assert verdict(job, steps)
    return ACCEPTED


def fuzz_cycle_info(source: random.Random) -> str:
    """A launcher's file, which users write: hosts of a job within the limit, or refused."""
    try:
        info = parse_cycle_info(damaged(CYCLE, source).decode(errors="replace"))
    except CycleInfoError:
        return REFUSED
    assert len(info.active) <= HOSTS_MAX and len(info.standby) <= HOSTS_MAX
    return ACCEPTED


TARGETS = {
    "cycle-info": fuzz_cycle_info,
    "mirror-file": fuzz_mirror_file,
    "slurm-nodes": fuzz_slurm_nodes,
    "pending-job": fuzz_pending_job,
}
