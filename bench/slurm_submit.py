"""Cost of job_submit.lua per submission: `sbatch` to a slurmctld with the plugin and without.

Two controllers of 10,000 nodes, with alternating submissions. The mirror is replaced once in twenty
jobs: then the plugin reads and checks a new first line, else it finds the known line.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench.measure import Result, percentile
from gangline.executors import mirror_file
from gangline.executors.mirror_format import MirrorNode, SlurmNodes, render
from tests.slurm.embedded_lua import script
from tests.slurm.plugin_cluster import (
    MISSING_PLUGIN,
    excluded_nodes,
    has_plugin,
    running_cluster,
    sbatch,
)
from tests.slurm_cluster import MISSING, SlurmCluster, has_slurm

SUBMISSIONS, NODES, FAULTY, JOBS_PER_FILE = 60, 10_000, 100, 20
WANTED_RATIO = 1.1
#: Follows the partition of all nodes: `Nodes=ALL` includes these nodes.
MORE_NODES = f"NodeName=host[0-{NODES - 1}] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[20000-{20_000 + NODES - 1}] State=DOWN"


def run(seed: int) -> list[Result]:
    """Return a row; nothing if Slurm or its plugin for Lua is not installed."""
    if not (has_slurm() and has_plugin()):
        print(MISSING_PLUGIN if has_slurm() else MISSING, file=sys.stderr)
        return []
    source = random.Random(seed)
    ours, others, line_bytes = list[float](), list[float](), 0
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(3)]
        mirror = folders[2] / "nodes"
        (folders[0] / "job_submit.lua").write_text(script(mirror, exclude=True))
        plugged = stack.enter_context(
            running_cluster(folders[0], 1, MORE_NODES, "JobSubmitPlugins=lua")
        )
        plain = stack.enter_context(running_cluster(folders[1], 1, MORE_NODES))
        for index in range(SUBMISSIONS):
            if index % JOBS_PER_FILE == 0:
                line_bytes = _write(mirror, source)
            for cluster, seconds in source.sample([(plugged, ours), (plain, others)], 2):
                seconds.append(_submission(cluster))
        number = sbatch(plugged, "--hold")[0]
        assert excluded_nodes(plugged, number), "the plugin did nothing"
    notes = (
        f"{SUBMISSIONS} each in turns, a new file of {NODES} nodes ({FAULTY} with a fault, first line {line_bytes} bytes) each "
        f"{JOBS_PER_FILE}; p95 {1000 * percentile(ours, 0.95):.1f} against {1000 * percentile(others, 0.95):.1f} ms; wanted: "
        f"at most {WANTED_RATIO:g}"
    )
    return [
        Result(
            "sbatch with job_submit.lua, p50", 1000 * percentile(ours, 0.5), "ms",
            "no plugin", 1000 * percentile(others, 0.5), notes,
        )
    ]  # fmt: skip


def _submission(cluster: SlurmCluster) -> float:
    begin = time.perf_counter()
    cluster.command("sbatch", "--hold", "--output=/dev/null", "--wrap=true")
    return time.perf_counter() - begin


def _write(mirror: Path, source: random.Random) -> int:
    """Write a current file with faults on other nodes; return the size of its first line."""
    names = [f"host{index}" for index in range(NODES)]
    faulty = set(source.sample(names[1:], FAULTY))
    nodes = [
        MirrorNode(
            name, 3 if name in faulty else source.choice([0] * 99 + [1]), name not in faulty, 0.99, 1e-4, 1.0,
            "UNHEALTHY" if name in faulty else "HEALTHY", "",
        )
        for name in names
    ]  # fmt: skip
    features = dict.fromkeys(names, (frozenset[str](), frozenset[str]()))
    slurm = SlurmNodes(dict.fromkeys(names, ("alike",)), features)
    now = int(time.time())
    content = render(nodes, computed_seconds=now, valid_until_seconds=now + 60, slurm=slurm)
    mirror_file.write(mirror, content)
    return content.index(b"\n")
