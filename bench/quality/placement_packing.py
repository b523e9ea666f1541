"""Packing of pods on a real cluster (OpenB): allocated share of its GPUs when no more pods fit."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.quality.captures import DATA
from bench.quality.markdown import table
from gangline.aggregator.arrays import Floats, Indexes
from gangline.aggregator.decisions import planner
from gangline.aggregator.decisions.node_search import Candidates
from gangline.aggregator.decisions.node_table import NodeTable
from gangline.aggregator.decisions.requirements import GangRequirements
from gangline.aggregator.decisions.stranding import (
    NODE_GPUS_MAX,
    FreeRoom,
    RequestShape,
    stranding_growth,
)
from tests.aggregator.decisions.fleets import Node, table_of

FOLDER = DATA / "packing"
NODES = FOLDER / "openb_node_list_gpu_node.csv"
PUBLISHED = FOLDER / "published_allocation_percent.csv"
LISTS = ("openb_pod_list_default", "openb_pod_list_gpushare40")
#: Demand at which allocation is measured, as shares of all GPUs; the last one counts.
DEMANDS = (1.0, 1.1, 1.2, 1.3)
#: Maximum kinds of pods in the demand, and the number of pods between recounts.
KINDS_MAX, COUNT_EVERY = 24, 200
WANTED = 0.94
#: Number of arrival orders that are published together.
ORDERS = 2
GIBIBYTE = float(1 << 30)
RANDOM, BEST_FIT = "random", "best fit"
BLIND, PLAN = "plan, stranding not priced", "plan, stranding priced"
CONTROL = "control: plan, priced by shuffled demand"
PUBLISHED_NAMES = {RANDOM: "01-Random", BEST_FIT: "05-BestFit", PLAN: "06-FGD"}
TEXT = f"""\
Pods of OpenB (alibaba/clusterdata, gpu-v2023) on its {{nodes:,}} nodes with {{gpus:,}} GPUs. Most pods take one GPU or a share
of one. Pods are drawn with replacement until they ask for 130 % of all GPUs. A pod that fits nowhere is rejected. Nodes
are shuffled.

- The planner places each pod as a gang of one node among {{nodes:,}}, equally healthy and fast. A stranded GPU-hour costs
  1 GPU-hour. Without that price the planner takes the first node in an order of its own.
- A GPU is stranded if the pods so far could not use it: their {KINDS_MAX} most frequent kinds count. The planner knows nothing
  of later pods.
- The measure of stranding was chosen on seed 2: FGD's measure alone gave 94.7 %, a stream's 95.5 %, their mean 95.8 %.
  Other demands changed little: 64 kinds, all pods known, weighed by GPUs, without cores.
- `best fit` takes the node with the least left of GPUs, cores and memory. The planner places no pod without a GPU. Those
  go where the same function strands least.
- The control shuffles cores, memory and GPUs of the demand among pods. If it is as good, the gain does not come from
  knowing the demand.
- `published` is from another project's simulator with its own draws of pods (hkust-adsl/kubernetes-scheduler-simulator,
  Apache-2.0). The plan is compared with its best policy, FGD, whose measure is one half of the planner's (Weng et al.,
  2023).

Command: `python -m bench.quality.placement --only packing --judged-seed N`."""


@dataclass(frozen=True)
class Cluster:
    gpus: Indexes
    cores: Floats
    memory_bytes: Floats

    def room(self) -> FreeRoom:
        """Return the empty cluster."""
        free = (np.arange(NODE_GPUS_MAX) < self.gpus[:, None]).astype(np.float64)
        return FreeRoom(free, self.cores.copy(), self.memory_bytes.copy())


def read_cluster(path: Path = NODES, seed: int = 0) -> Cluster:
    """Return the nodes, shuffled, because the file is sorted. Raises OSError."""
    with open(path, newline="") as file:
        rows = [
            (int(row["gpu"]), float(row["cpu_milli"]) / 1000.0, float(row["memory_mib"]) * 2.0**20)
            for row in csv.DictReader(file)
        ]
    columns = np.random.default_rng(seed).permutation(np.array(rows)).T
    return Cluster(columns[0].astype(np.intp), columns[1], columns[2])


def read_pods(path: Path) -> list[RequestShape]:
    """Return the pods. Raises OSError."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    result: list[RequestShape] = []
    for row in rows:
        gpus, share, cores = int(row["num_gpu"]), float(row["gpu_milli"]), float(row["cpu_milli"])
        memory_bytes = float(row["memory_mib"]) * 2.0**20
        shape = RequestShape(gpus, share / 1000.0 if gpus else 0.0, cores / 1000.0, memory_bytes)
        result.append(shape)
    return result


def arrivals(pods: Sequence[RequestShape], gpus: float, seed: int) -> Iterator[RequestShape]:
    """Yield pods until their requests reach *gpus*."""
    source = np.random.default_rng(seed)
    asked = 0.0
    while asked < gpus:
        pod = pods[int(source.integers(len(pods)))]
        asked += pod.gpus * pod.gpu_share
        yield pod


#: (free capacity, pod, demand) -> (node, GPU mask), or None.
Choice = Callable[[FreeRoom, RequestShape, tuple[RequestShape, ...]], tuple[int, int] | None]


def least_free_mask(room: FreeRoom, node: int, pod: RequestShape) -> int:
    """Return the least free GPUs of *node* that suffice."""
    free = room.gpus[node]
    order = np.argsort(np.where(free >= pod.gpu_share - 1e-6, free, np.inf), kind="stable")
    return int(sum(1 << int(gpu) for gpu in order[: pod.gpus]))


def choose_random(source: np.random.Generator) -> Choice:
    """Return the choice of any node with enough capacity."""

    def choose(room: FreeRoom, pod: RequestShape, demand: object) -> tuple[int, int] | None:
        fit = np.flatnonzero(room.fits(pod))
        if not fit.size:
            return None
        node = int(source.choice(fit))
        enough = np.flatnonzero(room.gpus[node] >= pod.gpu_share - 1e-6)
        taken = source.permutation(enough)[: pod.gpus]
        return node, int(sum(1 << int(gpu) for gpu in taken))

    return choose


def choose_best_fit(cluster: Cluster) -> Choice:
    """Choose the node with the least remaining GPUs, cores and memory, weighed equally."""
    gpus = np.maximum(cluster.gpus, 1)

    def choose(room: FreeRoom, pod: RequestShape, demand: object) -> tuple[int, int] | None:
        fit = np.flatnonzero(room.fits(pod))
        if not fit.size:
            return None
        left = (room.gpus[fit].sum(axis=1) - pod.gpus * pod.gpu_share) / gpus.max()
        left += (room.cores[fit] - pod.cores) / cluster.cores.max()
        left += (room.memory_bytes[fit] - pod.memory_bytes) / cluster.memory_bytes.max()
        node = int(fit[np.argmin(left)])
        return node, least_free_mask(room, node, pod)

    return choose


def choose_by_plan(nodes: NodeTable, rate: float) -> Choice:
    """Return the planner's choice, with *rate* GPU-hours for a stranded GPU-hour."""

    def choose(
        room: FreeRoom, pod: RequestShape, demand: tuple[RequestShape, ...]
    ) -> tuple[int, int] | None:
        if not pod.gpus:
            # A gang takes GPUs; the same function places pods without GPUs.
            growth = stranding_growth(room, pod, demand)
            node = int(np.argmin(growth.gpus)) if rate else int(np.argmax(room.fits(pod)))
            return (node, 0) if np.isfinite(growth.gpus[node]) else None
        needs = GangRequirements(
            1, gpus_per_node=pod.gpus, hours=24.0, gpu_share=pod.gpu_share, cores=pod.cores,
            memory_bytes=pod.memory_bytes, stranded_gpu_rate=rate,
        )  # fmt: skip
        anyone = np.ones(len(nodes), dtype=bool)
        result = planner.plan(nodes, Candidates(anyone, room=room, demand=demand), needs)
        if not result:
            return None
        node = int(result[0].nodes[0])
        return node, int(result[0].gpu_masks[0]) if rate else least_free_mask(room, node, pod)

    return choose


def demand_of(seen: Counter[RequestShape]) -> tuple[RequestShape, ...]:
    """Return the most common kinds of pods with GPUs, with their counts."""
    return tuple(
        replace(shape, weight=float(count)) for shape, count in seen.most_common(KINDS_MAX)
    )


def packed(
    cluster: Cluster,
    pods: Sequence[RequestShape],
    seed: int,
    choose: Choice,
    demands: Sequence[float] = DEMANDS,
    told: tuple[RequestShape, ...] = (),
) -> list[float]:
    """Return the allocated share of all GPUs, at each of *demands*.

    The demand consists of earlier pods: future pods are unknown. *told* replaces it.
    """
    room = cluster.room()
    gpus = float(cluster.gpus.sum())
    seen: Counter[RequestShape] = Counter()
    demand = told or (RequestShape(1),)
    asked = allocated = 0.0
    result: list[float] = []
    for number, pod in enumerate(arrivals(pods, max(demands) * gpus, seed)):
        if pod.gpus:
            seen[pod] += 1
        if seen and not told and number % COUNT_EVERY == 0:
            demand = demand_of(seen)
        place = choose(room, pod, demand)
        if place is not None:
            room.take(*place, pod)
            allocated += pod.gpus * pod.gpu_share
        asked += pod.gpus * pod.gpu_share
        while len(result) < len(demands) and asked >= demands[len(result)] * gpus - 1e-6:
            result.append(allocated / gpus)
    return result


def node_table_of(cluster: Cluster) -> NodeTable:
    """Return the nodes for the planner, all equally healthy and fast."""
    return table_of([Node(f"n{index}", gpus=int(gpus)) for index, gpus in enumerate(cluster.gpus)])[
        0
    ]


def ways(cluster: Cluster, seed: int) -> Mapping[str, Choice]:
    """Return the methods of choosing."""
    nodes = node_table_of(cluster)
    return {
        RANDOM: choose_random(np.random.default_rng(seed + 1_000)),
        BEST_FIT: choose_best_fit(cluster),
        BLIND: choose_by_plan(nodes, 0.0),
        PLAN: choose_by_plan(nodes, 1.0),
    }


def mixed_up(pods: Sequence[RequestShape], seed: int) -> tuple[RequestShape, ...]:
    """Return a demand with the same GPUs, shares, cores and memory, each taken from different pods."""
    source = np.random.default_rng(seed)
    columns = np.array([(pod.gpus, pod.gpu_share, pod.cores, pod.memory_bytes) for pod in pods if pod.gpus])  # fmt: skip
    gpus, shares, cores, memory = (source.permutation(column) for column in columns.T)
    # A share refers to a single GPU.
    shares = np.where(gpus > 1, 1.0, shares)
    return tuple(
        RequestShape(int(gpu), float(share), float(core), float(size))
        for gpu, share, core, size in zip(gpus[:KINDS_MAX], shares, cores, memory, strict=False)
    )


def published(path: Path = PUBLISHED) -> dict[tuple[str, str], float]:
    with open(path, newline="") as file:
        return {
            (row["workload"], row["sc_policy"]): float(row["130"]) / 100.0
            for row in csv.DictReader(file)
        }


def packing_rows(seed: int, name: str, orders: int) -> tuple[dict[str, list[list[float]]], Cluster]:
    """Return shares by method, demand and order of the pods of a list; and the nodes."""
    pods = read_pods(FOLDER / f"{name}.csv")
    result: dict[str, list[list[float]]] = {}
    clusters = [read_cluster(seed=seed * 100 + number) for number in range(orders)]
    for number, cluster in enumerate(clusters):
        choices = ways(cluster, seed * 100 + number)
        for way, choose in choices.items():
            result.setdefault(way, []).append(packed(cluster, pods, seed * 100 + number, choose))
        if not number and orders > 1:
            demand = mixed_up(pods, seed)
            result[CONTROL] = [packed(cluster, pods, seed * 100, choices[PLAN], told=demand)]
    return result, clusters[-1]


def packing_section(seed: int) -> str:
    known = published()
    texts: list[str] = []
    for name, orders in ((LISTS[0], ORDERS), (LISTS[1], 1)):
        rows, cluster = packing_rows(seed, name, orders)
        cells = [
            (
                way, *(f"{np.mean(shares):.1%}" for shares in zip(*row, strict=True)),
                f"{min(shares[-1] for shares in row):.1%} to {max(shares[-1] for shares in row):.1%}",
                f"{known[name, PUBLISHED_NAMES[way]]:.1%}" if way in PUBLISHED_NAMES else "-",
            )
            for way, row in rows.items()
        ]  # fmt: skip
        heads = ("GPUs allocated at a demand of", *(f"{demand:.0%}" for demand in DEMANDS), "orders at 130%", "published at 130%")  # fmt: skip
        means = {way: float(np.mean([shares[-1] for shares in row])) for way, row in rows.items()}
        wanted = f" (target: {WANTED:.0%})" if name == LISTS[0] else ""
        texts.append(
            f"`{name}`, {orders} {'orders' if orders > 1 else 'order'} of pods:\n\n{table(heads, cells)}\n\n"
            f"Plan {means[PLAN]:.1%}{wanted}: {means[PLAN] - means[BEST_FIT]:+.1%} against best fit, {means[PLAN] - means[BLIND]:+.1%} against the plan "
            f"without that price. The published FGD has {known[name, PUBLISHED_NAMES[PLAN]]:.1%}. Seed {seed}."
            + (f" With the control's demand {means[CONTROL]:.1%}." if CONTROL in means else "")
        )
    text = TEXT.format(nodes=cluster.cores.size, gpus=int(cluster.gpus.sum()))
    return "\n\n".join(["## Real: packing", text, *texts])


def is_here() -> bool:
    """Return whether the recordings exist."""
    return NODES.exists() and PUBLISHED.exists()
