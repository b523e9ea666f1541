"""Decisions of job_submit.lua in Slurm's Lua, without Slurm: the jobs that it leaves alone, and
that it never stops a job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gangline.executors import mirror_file
from gangline.executors.mirror_format import SlurmNodes, render
from tests.slurm.embedded_lua import MISSING, SLURM, Lua, has_lua, script
from tests.slurm.mirrors import alike, fleet, mirror

pytestmark = pytest.mark.skipif(not has_lua(), reason=MISSING)

Plugin = Callable[..., "Outcome"]


class Outcome:
    def __init__(self, text: str) -> None:
        code, excluded, preferred, self.told, self.logged = text.split("\n")
        assert code == "0"  # slurm.SUCCESS, always
        self.excluded = "" if excluded == "nil" else excluded
        self.preferred = "" if preferred == "nil" else preferred


@pytest.fixture
def state() -> Iterator[Lua]:
    lua = Lua()
    lua.run(SLURM)
    yield lua
    lua.close()


@pytest.fixture
def plugin(state: Lua, tmp_path: Path) -> Plugin:
    """Return a function that submits a job to the plugin, with a mirror file and a site's choices."""

    def submit(job: str, content: bytes | None, **choices: object) -> Outcome:
        tmp_path.chmod(0o755)
        if content is not None:
            mirror_file.write(tmp_path / "nodes", content)
        state.run(script(tmp_path / "nodes", **choices))  # type: ignore[arg-type]
        return Outcome(state.run(f"return submitted({{ {job} }})"))

    return submit


def now_mirror(*faulty: str, slurm: SlurmNodes | None = None, feature: str = "") -> bytes:
    return mirror(time.time(), *faulty, slurm=slurm, feature=feature)


def test_it_ships_with_all_turned_off(plugin: Plugin) -> None:
    """A site that installs the plugin gets messages, and no job changes."""
    outcome = plugin("", now_mirror("gpu8"))
    assert (outcome.excluded, outcome.preferred, outcome.told) == ("", "", "")
    assert "gpu8" in plugin('req_nodes = "gpu8"', now_mirror("gpu8")).told
    assert plugin('req_nodes = "gpu8"', now_mirror("gpu8"), tell=False).told == ""


@pytest.mark.parametrize("job", ["", "min_nodes = 1", "min_nodes = 7, max_nodes = 7", "num_tasks = 7", "max_nodes = 3, num_tasks = 100"])  # fmt: skip
def test_a_job_that_others_can_run_leaves_faulty_nodes_out(plugin: Plugin, job: str) -> None:
    outcome = plugin(job, now_mirror("gpu8"), exclude=True)
    assert (outcome.excluded, outcome.logged) == ("gpu8", "")
    assert outcome.told == "gangline: this job leaves out nodes with a fault: gpu8"


@pytest.mark.parametrize(
    "job",
    [
        "min_nodes = 8, max_nodes = 8", "min_nodes = 1, max_nodes = 8", "num_tasks = 8", "min_nodes = 8", 'req_nodes = "gpu8"',
        'req_nodes = "gpu1"', 'exc_nodes = "gpu1"', 'reservation = "r"', 'clusters = "other"', 'tres_per_job = "gres:gpu:8"',
        'tres_per_socket = "gres:gpu:1"', 'tres_per_task = "gres:gpu:1"', 'prefer = "x"', "ntasks_per_gpu = 1", "ntasks_per_tres = 1",
        'extra = "x"', "req_switch = 1", "het_job_offset = 0", "pack_job_offset = 1", "contiguous = 1", "max_nodes = 65534",
    ],
)  # fmt: skip
def test_a_job_that_might_be_refused_is_left_alone(plugin: Plugin, job: str) -> None:
    """The job needs more nodes than are left, names its nodes, or depends on facts that only Slurm knows."""
    outcome = plugin(job, now_mirror("gpu8"), exclude=True)
    given = "gpu1" if "exc_nodes" in job else ""
    assert (outcome.excluded, outcome.logged) == (given, "")


def test_a_partition_may_ask_for_more_nodes_than_the_job(plugin: Plugin, state: Lua) -> None:
    """MinNodes of a partition is the job's."""
    state.run("partitions.large = { min_nodes = 8 }")
    assert plugin("", now_mirror("gpu8"), exclude=True).excluded == ""
    state.run("partitions.large = { min_nodes = 7 }")
    assert plugin("", now_mirror("gpu8"), exclude=True).excluded == "gpu8"


def test_without_slurms_word_nothing_is_excluded(plugin: Plugin) -> None:
    """A name that Slurm does not have refuses every job: `gangline mirror` without --slurm knows none."""
    now = int(time.time())
    content = render(fleet("gpu8"), computed_seconds=now, valid_until_seconds=now + 30)
    assert plugin("", content, exclude=True).excluded == ""


def test_a_feature_is_preferred_by_jobs_that_it_can_hold(plugin: Plugin) -> None:
    has = frozenset({"well"})
    slurm = alike({f"gpu{index}": has for index in range(1, 6)})
    for size, preferred in ((1, "well"), (5, "well"), (6, "")):
        job = f"min_nodes = {size}, max_nodes = {size}"
        assert plugin(job, now_mirror(slurm=slurm, feature="well"), prefer="well").preferred == preferred  # fmt: skip
    assert plugin('features = "x"', now_mirror(slurm=slurm, feature="well"), prefer="well").preferred == ""  # fmt: skip
    assert plugin("", now_mirror(slurm=slurm, feature="other"), prefer="well").preferred == ""
    assert plugin("", now_mirror(feature="well"), prefer="well").preferred == ""


@pytest.mark.parametrize(
    "job",
    [
        'req_nodes = "gpu[0-99999999999]"', f'req_nodes = "gpu[{"0" * 200}1-2]"', 'req_nodes = "gpu[1-"', 'req_nodes = "[[]],"',
        'req_nodes = ",,,"', "req_nodes = 7", 'min_nodes = "many"', "min_nodes = -1", "num_tasks = 1e300", f'req_nodes = "{"g," * 50_000}"',
    ],
)  # fmt: skip
def test_no_job_stops_it(plugin: Plugin, job: str) -> None:
    """A user's fields are not validated yet when the plugin sees them; an error is logged, and the job continues."""
    plugin(job, now_mirror("gpu8"), exclude=True)


def test_a_fault_of_its_own_lets_the_job_through(plugin: Plugin, state: Lua) -> None:
    """A Slurm whose table lacks a function; the log names the fault."""
    state.run("slurm.log_user = nil")
    outcome = plugin('req_nodes = "gpu8"', now_mirror("gpu8"))
    assert "gangline: " in outcome.logged and "log_user" in outcome.logged
    state.run("slurm.log_info = nil")
    plugin('req_nodes = "gpu8"', now_mirror("gpu8"))


def test_a_modified_job_is_left_alone(plugin: Plugin, state: Lua) -> None:
    plugin("", now_mirror("gpu8"), exclude=True)
    assert state.run("return slurm_job_modify({}, {}, partitions, 0)") == "0"
