"""Public recordings as telemetry of a gang: operation timers of two training jobs, and power of two hosts.

*AR* has 64 ranks (4 data parallel, 4 stages, 4 tensor parallel). One worker of four GPUs is slow on purpose from the first
step on, and its host must be named. *SE* is the same kind of job with sequences of uneven length: no host is to blame. The
timers give the time in which each rank computes; it waits for the rest. Power levels are those measured on H100s (about
150 W waiting, 550 W computing). In AR the work of a rank is the same in each step; in SE it grows with its computing time.

*H100 recordings* have power and utilization of eight GPUs at 100 ms while they train, with a checkpoint every 10 or 100
steps. No GPU is to blame, neither within the host nor if each GPU stands for its own host. They have no GPM.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.quality import bsp_world as bsp
from bench.quality.bsp_world import Episode, Floats, Plan
from bench.quality.captures import DATA
from bench.quality.straggler_replay import Outcome, Reader, judge_readings

TRACES = {"AR": "stragglers/trace-AR.parquet", "SE": "stragglers/trace-SE.parquet"}
RECORDINGS = ("power/h100x8_ckpt_every_10.csv", "power/h100x8_ckpt_every_100.csv")
WAIT_WATTS, COMPUTE_WATTS, IDLE_WATTS = 150.0, 550.0, 75.0
CLOCK_HERTZ = 1755e6
SECONDS_MAX = 900
EXCHANGES = (
    "params-all-gather",
    "grads-reduce-scatter",
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
)


def replay(name: str, seed: int) -> Outcome:
    """Judge trace *name* (AR or SE)."""
    import pyarrow.parquet as pq

    table = pq.read_table(DATA / TRACES[name]).to_pydict()
    column = {key: np.array(values) for key, values in table.items()}
    workers = np.unique(column["rank"])
    per_worker = int(workers[1] - workers[0])
    hosts = workers.size * per_worker // bsp.GPUS
    compute, exchange, seconds = _timelines(column, workers)
    slots = min(int(seconds), SECONDS_MAX) * bsp.SLOTS_PER_SECOND
    random = np.random.default_rng(seed)
    shares = np.zeros((slots, hosts, bsp.GPUS, bsp.STATES))
    order = random.permutation(hosts)  # without this a first host by chance would be right
    for index in range(workers.size):
        for gpu in range(index * per_worker, (index + 1) * per_worker):
            host, place = order[gpu // bsp.GPUS], gpu % bsp.GPUS
            shares[:, host, place, bsp.COMPUTE] = compute[:slots, index]
            shares[:, host, place, bsp.EXCHANGE] = exchange[:slots, index]
    busy = shares[..., bsp.COMPUTE]
    shares[..., bsp.EXCHANGE] = np.minimum(shares[..., bsp.EXCHANGE], 1 - busy)
    shares[..., bsp.WAIT] = 1 - busy - shares[..., bsp.EXCHANGE]
    watts = WAIT_WATTS + (COMPUTE_WATTS - WAIT_WATTS) * busy
    pace = np.ones_like(busy)
    if name == "AR":  # the same work, spread over a longer time
        mean = busy.mean(axis=0)
        pace = pace * np.median(mean) / np.maximum(mean, 1e-6)
    culprits = (int(order[0]),) if name == "AR" else ()
    plan = Plan(
        "silent" if culprits else "sequence", 1.0, hosts=hosts, seed=seed, seconds=slots // bsp.SLOTS_PER_SECOND,
        onset=0.0, culprits=culprits or (0,),
    )  # fmt: skip
    moved = 2e9 * shares[..., bsp.EXCHANGE].mean(axis=2)
    episode = Episode(
        plan, shares, watts, np.ones_like(busy), 0.45 * busy * pace, moved, np.zeros_like(moved),
        np.full((slots, hosts, 2), 0.005), CLOCK_HERTZ, IDLE_WATTS, 700.0, 700.0, seconds,
    )  # fmt: skip
    return judge_readings(Reader(episode, random))


def _timelines(column: dict[str, np.ndarray], workers: np.ndarray) -> tuple[Floats, Floats, float]:
    """Return each worker's shares of compute and exchange, and the total seconds.

    The shares are by tenth of a second.
    """
    starts, ends = (
        column["start_ts"].astype(float),
        column["start_ts"].astype(float) + column["duration"].astype(float),
    )
    kinds = column["optype"].astype(str)
    is_compute = np.char.endswith(kinds, "compute") | np.char.startswith(kinds, "optimizer")
    is_exchange = np.isin(kinds, EXCHANGES)
    begin, offsets = 0.0, {}
    for step in dict.fromkeys(column["step"].tolist()):
        offsets[step] = begin
        begin += float(ends[column["step"] == step].max())
    shift = np.array([offsets[step] for step in column["step"].tolist()])
    starts, ends = starts + shift, ends + shift
    edges = np.arange(0.0, begin + bsp.SLOT_SECONDS, bsp.SLOT_SECONDS)
    result = []
    for which in (is_compute, is_exchange):
        shares = np.zeros((edges.size - 1, workers.size))
        for index, worker in enumerate(workers.tolist()):
            mine = which & (column["rank"] == worker)
            shares[:, index] = _covered(starts[mine], ends[mine], edges)
        result.append(shares)
    return result[0], result[1], begin


def _covered(starts: Floats, ends: Floats, edges: Floats) -> Floats:
    """Return the share of each slot that is covered by any of the intervals."""
    order = np.argsort(starts)
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    starts = np.maximum(starts, np.concatenate([[0.0], ends[:-1]]))
    length = np.maximum(ends - starts, 0.0)
    total = np.concatenate([[0.0], np.cumsum(length)])
    at = np.interp(
        edges,
        np.column_stack([starts, ends]).ravel(),
        np.column_stack([total[:-1], total[1:]]).ravel(),
    )
    return np.asarray(np.clip(np.diff(at) / bsp.SLOT_SECONDS, 0.0, 1.0))


def recording(path: Path, *, one_host: bool, seed: int) -> Outcome:
    """Judge one of the H100 recordings, as one host of eight GPUs or as eight hosts."""
    lines = path.read_text().splitlines()[1:]
    values = np.array([[float(cell.split()[0]) for cell in line.split(",")[1:3]] for line in lines])
    rows = values[: len(values) // bsp.GPUS * bsp.GPUS].reshape(-1, bsp.GPUS, 2)
    slots = (
        min(len(rows), SECONDS_MAX * bsp.SLOTS_PER_SECOND)
        // bsp.SLOTS_PER_SECOND
        * bsp.SLOTS_PER_SECOND
    )
    hosts = 1 if one_host else bsp.GPUS
    shape = slots, hosts, bsp.GPUS
    watts = np.broadcast_to(
        rows[:slots, None, :, 0] if one_host else rows[:slots, :, None, 0], shape
    ).copy()
    used = (
        np.broadcast_to(rows[:slots, None, :, 1] if one_host else rows[:slots, :, None, 1], shape)
        / 100
    )
    shares = np.zeros((*shape, bsp.STATES))
    shares[..., bsp.WAIT], shares[..., bsp.STALL] = used, 1 - used
    plan = Plan(
        "healthy", 0.0, hosts=hosts, seed=seed, seconds=slots // bsp.SLOTS_PER_SECOND, has_gpm=False
    )
    flat = np.zeros(shape[:2])
    episode = Episode(
        plan, shares, watts, np.ones(shape), np.zeros(shape), flat, flat, np.full((*shape[:2], 2), 0.005), CLOCK_HERTZ,
        IDLE_WATTS, 700.0, 700.0, 0.0,
    )  # fmt: skip
    outcome = judge_readings(Reader(episode, np.random.default_rng(seed)))
    return replace(
        outcome,
        plan=replace(plan, kind=f"{path.stem}, {'one host' if one_host else 'eight hosts'}"),
    )


def rows(seed: int) -> list[list[str]]:
    """Return a row for each existing recording: the named hosts, and when."""
    result = []
    outcomes: list[tuple[str, str, Outcome]] = [
        (f"trace {name}", "nobody" if name == "SE" else "", replay(name, seed))
        for name, path in TRACES.items() if (DATA / path).exists()
    ]  # fmt: skip
    for path in RECORDINGS:
        if (DATA / path).exists():
            for one_host in (True, False):
                outcome = recording(DATA / path, one_host=one_host, seed=seed)
                outcomes.append((outcome.plan.kind, "nobody", outcome))
    for title, nobody, outcome in outcomes:
        wanted = nobody or f"host {outcome.plan.culprits[0]}"
        named = {host: told for host, told in outcome.of_host.items() if outcome.is_named(host)}
        output = "; ".join(
            f"host {host} after {told.named:.0f} s by {', '.join(rule for rule in told.rules if rule != 'host.new')}"
            for host, told in sorted(named.items())
        )
        result.append([title, wanted, output or "nobody"])
    return result
