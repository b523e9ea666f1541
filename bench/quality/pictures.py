"""`make docs`: the pictures of docs/fingerprints.md, of episodes of the second world (`bsp_world`)
as `gangline job -o` draws them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from bench.quality import bsp_world as bsp
from bench.quality.bsp_world import Plan
from gangline.aggregator.commands.job_story import PACE_MAX, make_timeline
from gangline.aggregator.commands.time_pictures import timeline_svg

FOLDER = Path(__file__).resolve().parents[2] / "docs"
BEGIN = datetime(2026, 1, 1, 3, 0, tzinfo=UTC).timestamp()
STEP_SECONDS, COLUMNS, LAST_SECONDS = 10, 240, 440
PICTURES: tuple[tuple[str, Plan, str, tuple[str, ...]], ...] = (
    (
        "job-straggler.svg",
        Plan("silent", 0.25, hosts=8, seed=4, seconds=LAST_SECONDS, onset=200.0, culprits=(3,)),
        "A host becomes slow: it computes all the time, and seven wait for it",
        ("host-3 is 25 % slow from 03:03:20 on, at a normal clock and without an error. The others show 100 % utilization.",),
    ),
    (
        "job-stall.svg",
        Plan("storage", 0.25, hosts=8, seed=4, seconds=LAST_SECONDS, onset=200.0, culprits=(3,)),
        "A host waits for its data: nothing runs on its GPUs, and seven wait for it",
        ("host-3's file system is slow from 03:03:20 on.",),
    ),
    (
        "job-checkpoints.svg",
        Plan("checkpoints_often", 0.0, hosts=8, seed=4, seconds=LAST_SECONDS),
        "Checkpoints: no host is to blame",
        (),
    ),
)  # fmt: skip


def picture(plan: Plan, title: str, notes: tuple[str, ...]) -> str:
    episode = bsp.play(plan)
    slots = STEP_SECONDS * bsp.SLOTS_PER_SECOND
    count = len(episode.shares) // slots
    shares = episode.shares[: count * slots].reshape(count, slots, plan.hosts, bsp.GPUS, bsp.STATES)
    means = shares.mean(axis=(1, 3))
    edges = np.arange(count + 1) * STEP_SECONDS
    # Steps that end in each column, in shares: a step of several seconds ends in few columns.
    steps = np.interp(
        edges, np.concatenate([[0.0], episode.steps]), np.arange(episode.steps.size + 1)
    )
    pace = np.diff(steps) / np.diff(steps)[:10].max()
    phases: list[dict[str, Any]] = [
        {
            "time": _time(index), "host": f"host-{host}", "idle_ratio": 0.0,
            "compute_ratio": cell[bsp.COMPUTE], "wait_ratio": cell[bsp.WAIT] + cell[bsp.EXCHANGE],
            "host_stall_ratio": cell[bsp.STALL], "checkpoint_ratio": cell[bsp.CHECKPOINT],
        }
        for index, hosts in enumerate(means) for host, cell in enumerate(hosts)
    ]  # fmt: skip
    rows = [
        {"time": _time(index), "pace": min(float(one), PACE_MAX), "is_change": False}
        for index, one in enumerate(pace)
    ]
    culprits = [f"host-{host}" for host in episode.blamed_on]
    return timeline_svg(make_timeline(phases, rows, culprits, COLUMNS), title, notes)


def _time(at: int) -> datetime:
    return datetime.fromtimestamp(BEGIN + at * STEP_SECONDS, UTC)


def main() -> None:
    for name, plan, title, notes in PICTURES:
        (FOLDER / name).write_text(picture(plan, title, notes))


if __name__ == "__main__":
    main()
