"""`gangline job`: the story of a job from rows of SQL, and the errors for wrong input."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gangline.aggregator.commands import job
from gangline.aggregator.commands.job import jobs_text, read_story, story_text
from gangline.aggregator.commands.job_queries import LIST_QUERY, TimeRange
from gangline.aggregator.commands.job_story import forecast_line
from gangline.aggregator.query import sandbox
from gangline.contract.client.connection import CommandError
from tests.aggregator.query.asking import rows_of
from tests.processes import GUARD_SECONDS
from tests.worlds import StoredWorld, busy, in_job, pass_steps

BEGIN = datetime(2026, 1, 1, 3, tzinfo=UTC)
SLOW_FROM = 6


VERDICT = {
    "host": "h2", "hosts": ["h2", "h3"], "shared_cause": "rack r2 power", "slowdown_ratio": 0.2, "message": "power brake",
}  # fmt: skip


def phase(at: int, host: str, compute: float) -> dict[str, Any]:
    return {
        "time": BEGIN + timedelta(seconds=10 * at), "host": host, "compute_ratio": compute, "wait_ratio": 1 - compute,
        "host_stall_ratio": 0.0, "checkpoint_ratio": None, "idle_ratio": 0.0, "source": "phases",
    }  # fmt: skip


def forecast(horizon: int, reason: str = "") -> dict[str, Any]:
    """Return a row of `ops.job_forecast` of half a minute ago: a checkpoint is due in 140 s from now."""
    now = (BEGIN + timedelta(seconds=120)).replace(tzinfo=None)
    return {
        "horizon_seconds": float(horizon), "now": now, "reason": reason, "checkpoint_reason": reason or None,
        "next_checkpoint_at": now + timedelta(seconds=140), "next_checkpoint_from": now + timedelta(seconds=120),
        "next_checkpoint_until": now + timedelta(seconds=170), "next_checkpoint_probability": 0.9,
        "next_host_stall_at": None, "next_host_stall_from": None, "next_host_stall_until": None,
        "power_watts": 410e3 if horizon < 300 else 290e3, "power_watts_lower": 280e3, "power_watts_upper": 421e3,
    }  # fmt: skip


def answers(query: str) -> list[dict[str, Any]]:
    """Answer as an aggregator whose job 77 has four hosts, of which h2 became slow."""
    if query == "SELECT ops.taken() AS now":
        return [{"now": (BEGIN + timedelta(seconds=120)).replace(tzinfo=None)}]
    if "FROM ops.job_members AS m" in query and "ops.stragglers" in query:
        return [
            {
                "job": "77", "hosts_count": 4, "gpus_count": 32, "since": BEGIN, "until": None, "pace": 0.8,
                "straggler": "h2", "lost_gpu_hours": 1.5, "verdict": VERDICT,
            }
        ]  # fmt: skip
    if "FROM ops.job_phases" in query:
        return [
            phase(index, f"h{host}", 0.9 if host == 2 or index < SLOW_FROM else 0.4)
            for index in range(12) for host in range(4)
        ]  # fmt: skip
    if "FROM ops.job_pace" in query:
        return [
            {"time": BEGIN + timedelta(seconds=10 * index), "pace": 1.0 if index < SLOW_FROM else 0.8, "is_change": index == SLOW_FROM, "change_ratio": -0.2}
            for index in range(12)
        ]  # fmt: skip
    if "FROM ops.job_steps" in query:
        return []
    if "AS step_seconds" in query:
        return [
            {
                "step_seconds": 8.2, "checkpoint_seconds": 600.0, "step_data_loading_ratio": 0.12, "step_forward_ratio": 0.23,
                "step_backward_ratio": 0.55, "step_optimizer_ratio": None, "step_parts_confidence_ratio": 0.94,
            }
        ]  # fmt: skip
    if "FROM ops.job_forecast" in query:
        return [forecast(horizon) for horizon in (10, 30, 60, 300)]
    if "FROM ops.runs" in query:
        return [
            {
                "workload_class": "training", "class_confidence": 0.9, "earlier_runs": 3, "pace_ratio": 0.81,
                "pace_ratio_lower": 0.78, "pace_ratio_upper": 0.84, "slower_than_before": True, "memory_message": None,
                "verdict": "slower: a host", "slow_hosts": ["h\x1b3"],
            }
        ]  # fmt: skip
    if "FROM ops.stragglers" in query:
        return [
            {
                "host": "h2", "verdict": "node", "cause": "gang.slow_host", "slowdown_ratio": 0.2, "slowdown_lower_ratio": 0.18,
                "slowdown_upper_ratio": 0.22, "since": BEGIN + timedelta(seconds=60), "until": None, "lost_gpu_hours": 1.5,
                "message": "computes longer \x1b[31mthan\x1b[0m the others",
            }
        ]  # fmt: skip
    return []


def test_the_story_names_who_does_not_wait_and_what_it_costs() -> None:
    """A researcher whose job lost a fifth of its pace saw 100 % utilization on all hosts."""
    text = story_text(read_story(answers, "77", TimeRange()), 100, colour=False)
    rows = re.findall(r"^(h\d) +([#.sc_ ]+)$", text, re.MULTILINE)
    assert rows[0] == ("h2", "#" * 12), "the culprit comes first, and never waits"
    assert {line for _, line in rows[1:]} == {"#" * SLOW_FROM + "." * (12 - SLOW_FROM)}
    assert "h2: node, gang.slow_host, 20 % slow (90 % interval 18 to 22)" in text
    runs = "81 % of the pace of 3 earlier runs (90 % interval 78 to 84), slower than before: on h?3 other workloads were slow, too"
    assert f"workload: training (90 % sure); it runs at {runs}" in " ".join(text.split())
    assert "1.50" in text and "\x1b" not in text, "names and words are the hosts' to choose"
    assert all(len(line) <= 100 for line in text.splitlines())


def test_the_story_says_what_comes_next_and_what_a_step_is_made_of() -> None:
    """A reader who moves a job needs its next checkpoint; a reader who tunes it needs the parts of a step."""
    text = " ".join(story_text(read_story(answers, "77", TimeRange()), 100, colour=False).split())
    assert "a step takes 8.2 s (data loading 12 %, forward 23 %, backward 55 %; 94 % sure)" in text
    onset = "checkpoint in 140 s (90 %: 120 to 170 s, 90 % sure of the cadence)"
    assert f"Next: {onset}, power in 60 s 410 kW (90 %: 280 kW to 421 kW)" in text
    early = [forecast(10, "40 of 60 s with known phases seen")]
    assert forecast_line(early) == "Next: not known yet (40 of 60 s with known phases seen)"
    without = {
        **forecast(60),
        "next_checkpoint_at": None,
        "checkpoint_reason": "1 of 3 onsets seen",
    }
    assert forecast_line([without]).startswith(
        "Next: no checkpoint is predicted (1 of 3 onsets seen), power"
    )


def test_the_list_has_a_row_for_each_job() -> None:
    """At 3 a.m. the question is which job, then which host."""
    lines = jobs_text(answers(LIST_QUERY)).splitlines()
    assert lines[0].split()[:3] == ["JOB", "HOSTS", "GPUS"]
    assert lines[1].split()[:8] == ["77", "4", "32", "01-01", "03:00", "80", "%", "1.50"]
    assert lines[1].endswith("rack r2 power (h[2-3]), 20 % slow: power brake"), "the cause, once"
    assert "no agent sees a job" in jobs_text([])


def test_the_picture_is_one_that_browsers_open(tmp_path: Path) -> None:
    """A job was named `<b>&`, and its picture was not shown."""
    story = read_story(answers, "77", TimeRange())
    story["job"] = story["job"] | {"job": "<b>&"}
    job.write_picture(story, tmp_path / "j.svg")
    root = ElementTree.parse(tmp_path / "j.svg").getroot()
    texts = "".join(root.itertext())
    assert "<b>&" in texts and all(f"h{host}" in texts for host in range(4))
    assert [path.name for path in tmp_path.iterdir()] == ["j.svg"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--last", "5m"], "need a JOB"),
        (["77", "--last", "0s"], "expected a duration of at least 1s"),
        (["77", "--last", "yesterday"], "expected a duration of at least 1s"),
        (["77", "--from", "noon"], "expected a time in UTC, such as 2"),
        (["77", "--from", "2026-01-02T00:00", "--to", "2026-01-01T00:00"], "--from must be before --to"),
        (["77", "--last", "5m", "--from", "2026-01-02T00:00"], "exclude each other"),
        (["77", "-o", "picture.gif"], "expected a file that ends in .svg or .png"),
        (["x" * 600], "expected a job's name of 1 to 512 characters"),
        ([""], "expected a job's name of 1 to 512 characters"),
    ],
)  # fmt: skip
def test_wrong_input_is_told_what_would_be_right(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error that only says 'invalid' costs a look into the source."""
    with pytest.raises(SystemExit) as stop:
        job.main(arguments)
    assert stop.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_an_unknown_job_is_told_which_names_are_near() -> None:
    """`gangline job 78` only reported that the job does not exist."""
    with pytest.raises(CommandError, match="did you mean 77"):
        read_story(answers, "777", TimeRange())
    with pytest.raises(CommandError, match="no job is known"):
        read_story(lambda _: [], "777", TimeRange())


def test_a_picture_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    """The disk was full, and the command reported a written file."""
    with pytest.raises(CommandError, match="cannot write"):
        job.write_picture(read_story(answers, "77", TimeRange()), tmp_path / "none" / "j.svg")


@pytest.mark.slow
@pytest.mark.usefixtures("operators_file")
@pytest.mark.parametrize("from_agent", [True, False])
def test_the_views_tell_the_culprit_from_who_waits(tmp_path: Path, from_agent: bool) -> None:
    """Older agents send no phases: the view estimates them from SMs and power, and marks the estimate."""
    stored_world = StoredWorld(4, tmp_path)
    assert stored_world.store
    try:
        world = in_job(made=stored_world)
        for host in world.hosts:
            busy(host, 1.0 if host is world.hosts[1] else 0.6)
            if from_agent:
                share = 0.9 if host is world.hosts[1] else 0.5
                for gpu in range(2):
                    host.set(
                        "gpu_fast_1s", f"GPU-{host.name}-{gpu}-0000-0000-000000000000",
                        compute_ratio=share, wait_ratio=1 - share, host_stall_ratio=0.0, checkpoint_ratio=0.0,
                        idle_ratio=0.0, phase_confidence_ratio=0.9,
                    )  # fmt: skip
        pass_steps(world, 18)
    finally:
        stored_world.store.close(GUARD_SECONDS)
    with sandbox.open_snapshot(tmp_path / "operators.duckdb") as connection:
        _, rows = rows_of(
            connection,
            "SELECT host, avg(compute_ratio), any_value(source) FROM ops.job_phases WHERE job = '1001' "
            "AND time > ops.taken() - INTERVAL 100 SECOND GROUP BY host ORDER BY 2 DESC",
        )
        assert rows[0][0] == "h1" and rows[0][1] > rows[1][1] + 0.2
        assert {row[2] for row in rows} == {"phases" if from_agent else "estimated"}
        _, paces = rows_of(connection, "SELECT count(*) FROM ops.job_pace WHERE job = '1001'")
        assert paces[0][0] > 5
