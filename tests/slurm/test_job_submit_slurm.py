"""job_submit.lua in a real slurmctld: messages and exclusions reach jobs, and the plugin refuses no
job with any file.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gangline.executors import mirror_file
from gangline.executors.mirror_format import MirrorNode, SlurmNodes, parse_slurm_nodes, render
from tests.slurm.embedded_lua import script
from tests.slurm.mirrors import DAMAGES, PLANTED, node
from tests.slurm.plugin_cluster import (
    MISSING_PLUGIN,
    excluded_nodes,
    has_plugin,
    running_cluster,
    sbatch,
)
from tests.slurm_cluster import MISSING, SlurmCluster, has_slurm

pytestmark = [
    pytest.mark.skipif(not has_slurm(), reason=MISSING),
    pytest.mark.skipif(not has_plugin(), reason=MISSING_PLUGIN),
]

NODES = 6
#: gpu1 has its own generic resource, and gpu5 and gpu6 are in a second partition, too: no other
#: node can replace them.
LINES = (
    "JobSubmitPlugins=lua",
    "PartitionName=large Nodes=gpu[5-6] MaxTime=INFINITE State=UP",
)

#: Options of a random job.
CHOICES: tuple[Callable[[random.Random], list[str]], ...] = (
    lambda source: [f"-N{source.randint(1, 6)}"],
    lambda source: [f"-N{source.randint(1, 3)}-{source.randint(3, 6)}"],
    lambda source: [f"-n{source.randint(1, 48)}"],
    lambda source: [f"-N{source.randint(1, 6)}", f"--gpus-per-node={source.randint(1, 4)}"],
    lambda source: [f"--gpus={source.randint(1, 24)}"],
    lambda source: ["-p", "large", f"-N{source.randint(1, 2)}"],
    lambda source: ["-p", "main,large", f"-N{source.randint(1, 6)}"],
    lambda source: [f"-N{source.randint(1, 6)}", "--exclusive"],
    lambda source: [f"-n{source.randint(1, 12)}", f"-c{source.randint(1, 8)}"],
    lambda source: [f"-n{source.randint(1, 24)}", f"--ntasks-per-node={source.randint(1, 8)}"],
    lambda source: [f"-N{source.randint(1, 6)}", f"--mem={source.randint(1, 100)}"],
)


class PluginCluster:
    """A cluster, the file of its plugin, and Slurm's state of its nodes."""

    def __init__(self, cluster: SlurmCluster, mirror: Path) -> None:
        self.slurm, self.mirror = cluster, mirror
        self.nodes: SlurmNodes = parse_slurm_nodes(
            cluster.command("scontrol", "-o", "show", "node"), cluster.command("scontrol", "show", "config")
        )  # fmt: skip

    def write(self, *faulty: str, degraded: bool = False) -> bytes:
        """Write a good, current file; *faulty* nodes have a fault. Return it."""
        nodes: list[MirrorNode] = [
            node(name, "UNHEALTHY" if name in faulty else "HEALTHY") for name in self.slurm.nodes
        ]
        now = int(time.time())
        content = render(nodes, computed_seconds=now, valid_until_seconds=now + 50, slurm=self.nodes, degraded=degraded)  # fmt: skip
        mirror_file.write(self.mirror, content)
        return content

    def submit(self, *options: str) -> tuple[str, str, str]:
        """Return a job's number, its excluded nodes, and the message; then cancel it."""
        number, message = sbatch(self.slurm, *options)
        excluded = excluded_nodes(self.slurm, number) if number else ""
        if number:
            self.slurm.command("scancel", number)
        return number, excluded, message


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PluginCluster]:
    folder, mirrors = tmp_path_factory.mktemp("slurm"), tmp_path_factory.mktemp("mirror")
    mirrors.chmod(0o755)
    (folder / "job_submit.lua").write_text(script(mirrors / "nodes", exclude=True))
    with running_cluster(folder, NODES, *LINES) as slurm:
        yield PluginCluster(slurm, mirrors / "nodes")


@pytest.fixture(autouse=True)
def _closed_folder(cluster: PluginCluster) -> Iterator[None]:
    yield
    folder = cluster.mirror.parent
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_a_small_job_leaves_out_a_faulty_node(cluster: PluginCluster) -> None:
    """The user gets a message, and the job is accepted."""
    cluster.write("gpu2")
    number, excluded, message = cluster.submit("-N2")
    assert number and excluded == "gpu2"
    assert "gangline: this job leaves out nodes with a fault: gpu2" in message


@pytest.mark.parametrize(
    "options",
    [
        ("-N6",), ("-N5-6",), ("-n48",), ("-n41",), ("--gpus=24",), ("-w", "gpu2"), ("-w", "gpu[1-6]", "-N6"),
        ("--contiguous", "-N5"), ("-N6", "--hold"), ("-N6", "--begin=now+1hour"),
        ("-p", "large", "-N2"), ("-N3", ":", "-N3"), ("-N6", "--array=1-3"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_job_that_needs_the_node_is_accepted(
    cluster: PluginCluster, options: tuple[str, ...]
) -> None:
    """`exc_nodes` on it would end in "Requested node configuration is not available"."""
    cluster.write("gpu2", "gpu5")
    number, excluded, message = cluster.submit(*options)
    assert number, message
    assert excluded == "", message


def test_what_a_job_leaves_out_itself_stays_as_it_is(cluster: PluginCluster) -> None:
    """With the plugin's exclusions added to the user's, too few nodes might be left."""
    cluster.write("gpu2")
    assert cluster.submit("-x", "gpu[3-6]", "-N2")[1] == "gpu[3-6]"


def test_a_feature_is_preferred_where_enough_nodes_have_it(cluster: PluginCluster) -> None:
    """`--prefer` of a job larger than the nodes with the feature would be refused, and so would an unknown feature."""
    slurm = cluster.slurm
    plugin = slurm.folder / "job_submit.lua"
    before = plugin.read_text()
    plugin.write_text(script(cluster.mirror, prefer="well"))
    os.utime(plugin, (time.time() + 2, time.time() + 2))
    try:
        for having, sizes in (
            ("", ()),
            ("gpu[1-3],gpu5", (1,)),
            ("gpu[1-4],gpu[5-6]", (1, 2, 4, 6)),
        ):
            if having:
                slurm.command(
                    "scontrol", "update", f"nodename={having}", "availablefeatures=well", "activefeatures=well",
                )  # fmt: skip
            nodes = PluginCluster(slurm, cluster.mirror).nodes
            for size in range(1, NODES + 1):
                # For each size: a busy machine takes longer than the line is valid.
                now = int(time.time())
                content = render(
                    [node(name) for name in slurm.nodes], computed_seconds=now, valid_until_seconds=now + 50, slurm=nodes, feature="well",
                )  # fmt: skip
                mirror_file.write(cluster.mirror, content)
                # Held: a job that starts without the feature shows no preference.
                number, message = sbatch(slurm, "-H", f"-N{size}")
                assert number, message
                job = slurm.command("scontrol", "-o", "show", "job", number)
                slurm.command("scancel", number)
                assert ("Prefer=well" in job) == (size <= max(sizes, default=0)), (having, size)
    finally:
        plugin.write_text(before)
        os.utime(plugin, (time.time() + 4, time.time() + 4))
        slurm.command("scontrol", "update", "nodename=gpu[1-6]", "availablefeatures=", "activefeatures=")  # fmt: skip


def test_the_user_is_told_of_a_node_that_he_names(cluster: PluginCluster) -> None:
    """The job stays as the user wrote it."""
    cluster.write("gpu2")
    number, excluded, message = cluster.submit("-w", "gpu[1-2]")
    assert number and excluded == ""
    assert "gangline: this job names nodes that are not fit for jobs now: gpu2" in message


def test_the_user_is_told_that_too_few_are_ready(cluster: PluginCluster) -> None:
    cluster.write("gpu2")
    number, _, message = cluster.submit("-N6")
    assert number and "this job needs 6 nodes, and 5 of 6 are fit for jobs now" in message


def test_a_degraded_picture_does_nothing(cluster: PluginCluster) -> None:
    cluster.write("gpu2", degraded=True)
    assert cluster.submit("-N2")[1:] == ("", "")


def test_a_damaged_or_planted_file_does_nothing(cluster: PluginCluster) -> None:
    """Each job is accepted as if there were no plugin. Owner and mode the folder keeps, where Lua cannot see them."""
    for case, damage in DAMAGES.items():
        content = cluster.write("gpu2")
        damage(cluster.mirror, content)
        number, excluded, message = cluster.submit("-N2")
        assert number, (case, message)
        assert "gpu2" not in excluded + message, case
        if cluster.mirror.is_dir():
            cluster.mirror.rmdir()


def test_a_planted_file_refuses_no_job(cluster: PluginCluster) -> None:
    """Where the file can be read at all; the plugin would block on a pipe, so the folder must not
    be writable by others.
    """
    for case in set(PLANTED) - {"a pipe"}:
        content = cluster.write("gpu2")
        PLANTED[case](cluster.mirror, content)
        assert cluster.submit("-N6")[0], case
        cluster.mirror.parent.chmod(0o755)


def _refused_with_and_without(cluster: PluginCluster, seed: int, jobs: int) -> int:
    """Submit random jobs with faulty nodes and without a file; return how many left nodes out. A refusal of only one fails."""
    source, left_out = random.Random(seed), 0
    for _ in range(jobs):
        options = source.choice(CHOICES)(source)
        cluster.mirror.unlink(missing_ok=True)
        without = cluster.submit(*options)[0]
        faulty = source.sample(cluster.slurm.nodes, source.randint(1, 3))
        cluster.write(*faulty)
        number, excluded, message = cluster.submit(*options)
        assert bool(number) == bool(without), (options, faulty, message)
        left_out += bool(excluded)
    return left_out


def test_no_random_job_is_refused_because_of_us(cluster: PluginCluster) -> None:
    """Slurm accepts the same jobs with a file as without."""
    assert _refused_with_and_without(cluster, 1, 30) > 0


@pytest.mark.slow
def test_no_random_job_of_many_is_refused_because_of_us(cluster: PluginCluster) -> None:
    assert _refused_with_and_without(cluster, 2, 400) > 0
