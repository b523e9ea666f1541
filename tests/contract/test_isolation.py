"""Verdicts on boundaries: layouts, public reports, and properties that hold for all facts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.quality.isolation import LAYOUTS, Layout, run
from gangline.contract.isolation import (
    BOUNDARIES,
    EVIDENCE_CHARACTERS_MAX,
    TEXTS_MAX,
    BoundaryStatus,
    GpuFacts,
    HeldGpu,
    HostFacts,
    JobOnHost,
    facts_text,
    numbers_text,
    parse_facts,
    parse_numbers,
    verify,
)

GPUS = ("GPU-0", "GPU-1")
HOST = HostFacts(
    {
        gpu: GpuFacts(
            f"0000:1{n}:00.0",
            n,
            False,
            n,
            (f"0000:0{n}:00.0",),
            f"4{n}",
            "DMA",
            (f"0000:2{n}:00.0",),
        )
        for n, gpu in enumerate(GPUS)
    },
    frozenset({"259:0"}),
    {0: frozenset(range(16)), 1: frozenset(range(16, 32))},
)
FACTS = tuple(
    {
        "cpus": f"{16 * n}-{16 * n + 15}", "affinity": f"{16 * n}-{16 * n + 15}", "mems": str(n), "ipc": f"40{n}",
        "shm": f"0:6{n}/", "gpus": str(n), "instances": "-", "nodes": "own", "rdma": f"mlx5_{n}@0000:2{n}:00",
        "rdma_max": f"mlx5_{n}", "io_max": "259:0", "io": "2",
    }
    for n in range(2)
)  # fmt: skip
#: Boundary -> the facts that it needs. Those of `rdma_limits` are needed only for a shared adapter.
NEEDS = {
    "cpus": ("cpus",), "memory_nodes": ("mems",), "nic": ("rdma",), "rdma_limits": ("rdma",),
    "block_io": ("io_max", "io"), "shm": ("shm", "ipc"), "devices": ("gpus", "nodes"),
}  # fmt: skip
V, X, U = BoundaryStatus.VERIFIED, BoundaryStatus.VIOLATED, BoundaryStatus.NOT_VERIFIED
FIRST_INSTANCES = [(HeldGpu(GPUS[0], n),) for n in (1, 2)]
VALUE = st.sampled_from(
    [
        "",
        "-",
        "0",
        "0-3",
        "2-9",
        "1,2",
        "x",
        "0:60/",
        "0:60/a",
        "own",
        "host",
        "list",
        "0/1",
        "mlx5_0@0000:20:00",
        "2",
        "50",
    ]
)
PROCESS = st.dictionaries(st.sampled_from(sorted({*FACTS[0], "mps_threads", "mps_memory"})), VALUE)
HELD = st.frozensets(st.builds(HeldGpu, st.sampled_from(GPUS), st.none() | st.integers(0, 2)))
JOB = st.builds(JobOnHost, st.just("job"), HELD, st.lists(PROCESS, max_size=3).map(tuple))


def job(
    number: int, *changes: Mapping[str, str | None], gpus: tuple[HeldGpu, ...] = ()
) -> JobOnHost:
    """Return an isolated job with a process for each of *changes*; None removes a fact."""
    processes = []
    for change in changes or ({},):
        facts = {**FACTS[number], **change}
        processes.append({key: value for key, value in facts.items() if value is not None})
    held = frozenset(gpus or (HeldGpu(GPUS[number]),))
    return JobOnHost(f"job{number}", held, tuple(processes))


def verdicts(
    first: JobOnHost, second: JobOnHost, host: HostFacts = HOST
) -> dict[str, BoundaryStatus]:
    return {v.boundary: v.verdict for v in verify(first, second, host)}


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.text)
def test_the_violated_boundary_of_each_layout_is_named(layout: Layout, tmp_path: Path) -> None:
    result = run(layout, tmp_path)
    assert result.is_named
    assert result.wrongly_verified == ()
    assert result.further == ()


def test_24_layouts_cover_all_boundaries() -> None:
    assert len(LAYOUTS) == 24
    assert {layout.boundary for layout in LAYOUTS} == set(BOUNDARIES)


def test_isolated_jobs_are_verified_on_each_boundary() -> None:
    assert set(verdicts(job(0), job(1)).values()) == {BoundaryStatus.VERIFIED}


@pytest.mark.parametrize(
    ("boundary", "fact"), [(b, f) for b, facts in NEEDS.items() for f in facts]
)
@pytest.mark.parametrize("missing", [None, "not a fact"])
def test_a_missing_or_odd_fact_is_never_verified(
    boundary: str, fact: str, missing: str | None
) -> None:
    """A tool without permission showed empty sets, which share nothing."""
    if missing and fact in ("shm", "ipc", "rdma", "io_max"):
        return  # any text is a value of these
    for pair in (
        (job(0, {fact: missing}), job(1)),
        (job(0), job(1, {}, {fact: missing})),
        (job(0), JobOnHost("job1", frozenset({HeldGpu(GPUS[1])}), ())),
    ):
        assert verdicts(*pair)[boundary] is BoundaryStatus.NOT_VERIFIED


@pytest.mark.parametrize("boundary", ["pcie_switch", "iommu", "devices", "block_io"])
def test_an_unknown_host_is_never_verified(boundary: str) -> None:
    assert verdicts(job(0), job(1), HostFacts())[boundary] is BoundaryStatus.NOT_VERIFIED


@pytest.mark.parametrize("boundary", ["mig", "mps", "pcie_switch", "iommu", "devices"])
def test_unknown_gpus_are_never_verified(boundary: str) -> None:
    unknown = JobOnHost("job1", frozenset(), (FACTS[1],))
    assert verdicts(job(0), unknown)[boundary] is BoundaryStatus.NOT_VERIFIED


@pytest.mark.parametrize(
    ("report", "first", "second", "boundary", "verdict"),
    [
        # An image with NVIDIA_VISIBLE_DEVICES=all has the nodes of all GPUs without asking for one
        ("NVIDIA/k8s-device-plugin#87", job(0), job(1, {"gpus": "0-7"}), "devices", X),
        # The toolkit's devices vanish from the list of a container, and `c 195:* m` remains: it opens none
        ("NVIDIA/nvidia-container-toolkit#251", job(0), job(1, {"gpus": "-", "nodes": "list"}), "devices", V),
        # CUDA_VISIBLE_DEVICES of Slurm without ConstrainDevices: all nodes of the host's /dev; with it, BPF denies them unseen
        ("NVIDIA/pyxis#47", job(0, {"gpus": "0-7", "nodes": "host"}), job(1, {"gpus": "0-7", "nodes": "host"}), "devices", U),
        # Docker in a job of Slurm: its processes are in the daemon's groups, with all GPUs
        ("NVIDIA/nvidia-docker#1227", job(0), job(1, {}, {"gpus": "0-7", "cpus": "0-31"}), "devices", X),
        # The shared pool kept its cores after they were given to another pod
        ("kubernetes/kubernetes#141196", job(0), job(1, {"cpus": "8-31", "affinity": "8-31"}), "cpus", X),
        # Exclusive cores, memory of all nodes
        ("kubernetes/kubernetes#81009", job(0), job(1, {"mems": "0-1"}), "memory_nodes", X),
        # Percentages of MPS hold for each process: two of 50 % beside 30 % are too many
        (
            "NVIDIA/k8s-device-plugin#594",
            job(0, {"mps_threads": "30"}, gpus=(HeldGpu(GPUS[0]),)),
            job(1, *[{"mps_threads": "50", "mps_memory": "0=1G"}] * 2, gpus=(HeldGpu(GPUS[0]),)),
            "mps", X,
        ),
        # The other processes of a job are on GPUs of their own: their percentages do not count
        (
            "MPS user guide",
            job(0, *[{"mps_threads": "50", "mps_memory": "0=1G", "gpu": gpu} for gpu in GPUS], gpus=tuple(map(HeldGpu, GPUS))),
            job(1, {"mps_threads": "50", "mps_memory": "0=1G", "gpu": GPUS[0]}, gpus=(HeldGpu(GPUS[0]),)),
            "mps", V,
        ),
        # The plugin sets the default of the server, which no client shows
        ("NVIDIA/k8s-device-plugin#1494", job(0, gpus=(HeldGpu(GPUS[0]),)), job(1, gpus=(HeldGpu(GPUS[0]),)), "mps", U),
        # Threads limited, memory not
        (
            "NVIDIA/k8s-device-plugin#569",
            job(0, {"mps_threads": "30"}, gpus=(HeldGpu(GPUS[0]),)), job(1, {"mps_threads": "30"}, gpus=(HeldGpu(GPUS[0]),)),
            "mps", U,
        ),
        # Containers with names of their own, and the host's /dev/shm: the device number decides, not the namespace
        ("NVIDIA/nccl#248", job(0), job(1, {"shm": "0:60/", "ipc": "999"}), "shm", X),
        # Limits of version 1 hold for direct I/O only
        ("opencontainers/runtime-spec#1194", job(0, {"io": "1"}), job(1), "block_io", U),
        # sysfs shows all adapters to a pod, /dev/infiniband only its own
        ("Mellanox/k8s-rdma-shared-dev-plugin#93", job(0), job(1), "nic", V),
        # A shared adapter has no share of its bandwidth for each pod
        ("Mellanox/k8s-rdma-shared-dev-plugin#92", job(0), job(1, {"rdma": "mlx5_0@0000:20:00"}), "nic", X),
        # `--nv` without `--contain` shows the capabilities of all GPU instances
        (
            "sylabs/singularity#471",
            job(0, {"instances": "0/1"}, gpus=FIRST_INSTANCES[0]),
            job(1, {"gpus": "0", "instances": "0/1,0/2"}, gpus=FIRST_INSTANCES[1]), "devices", X,
        ),
        # One GPU, an instance for each
        (
            "MIG user guide",
            job(0, {"instances": "0/1"}, gpus=FIRST_INSTANCES[0]),
            job(1, {"gpus": "0", "instances": "0/2"}, gpus=FIRST_INSTANCES[1]), "devices", V,
        ),
    ],
)  # fmt: skip
def test_public_reports_get_the_right_answer(
    report: str, first: JobOnHost, second: JobOnHost, boundary: str, verdict: BoundaryStatus
) -> None:
    """Isolation that leaked, or only seemed to leak, on hosts of others."""
    del report
    assert verdicts(first, second)[boundary] is verdict
    assert verdicts(second, first)[boundary] is verdict


def test_instances_that_the_driver_hides_are_not_known() -> None:
    """Without permission, NVML names no instance: that is not a GPU without MIG."""
    divided = HostFacts({GPUS[0]: GpuFacts(mig_mode=True, minor=0)})
    pair = job(0), job(1, gpus=(HeldGpu(GPUS[0]),))
    assert verdicts(*pair, divided)["mig"] is BoundaryStatus.NOT_VERIFIED
    assert verdicts(*pair)["mig"] is BoundaryStatus.VIOLATED


@pytest.mark.parametrize(
    ("limits", "verdict"),
    [("253:0", U), ("259:0,253:0", V), ("-", X), (None, U)],
)
def test_limits_on_a_mapped_device_say_nothing_about_its_disks(
    limits: str | None, verdict: BoundaryStatus
) -> None:
    changed = {"io_max": limits}
    assert verdicts(job(0, changed), job(1))["block_io"] is verdict


def test_adapters_in_the_hosts_dev_are_in_doubt() -> None:
    seen: dict[str, str | None] = {"rdma": "mlx5_0@0000:20:00,mlx5_1@0000:21:00", "nodes": "host"}
    result = verdicts(job(0, seen), job(1, seen))
    assert (result["nic"], result["rdma_limits"]) == (U, U)


@given(JOB, JOB, st.booleans())
def test_a_verdict_does_not_depend_on_the_order_of_the_jobs(
    first: JobOnHost, second: JobOnHost, known: bool
) -> None:
    host = HOST if known else HostFacts()
    assert verdicts(first, second, host) == verdicts(second, first, host)
    assert all(len(v.evidence) <= EVIDENCE_CHARACTERS_MAX for v in verify(first, second, host))


@given(JOB, JOB, st.data())
def test_fewer_facts_never_verify_more(
    first: JobOnHost, second: JobOnHost, data: st.DataObject
) -> None:
    """Taking a fact away may hide a violation, but never proves a boundary."""
    before = verdicts(first, second)
    if not first.processes or not first.processes[0]:
        return
    key = data.draw(st.sampled_from(sorted(first.processes[0])))
    rest = {k: v for k, v in first.processes[0].items() if k != key}
    reduced = JobOnHost(first.name, first.gpus, (rest, *first.processes[1:]))
    for boundary, verdict in verdicts(reduced, second).items():
        assert verdict is not BoundaryStatus.VERIFIED or before[boundary] is BoundaryStatus.VERIFIED


def test_processes_that_all_differ_are_not_read_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """512 processes with 8192 cores each stopped the aggregator for three seconds per request."""
    parsed: list[str] = []

    def counted(text: str) -> frozenset[int] | None:
        parsed.append(text)
        return parse_numbers(text)

    monkeypatch.setattr("gangline.contract.isolation.parse_numbers", counted)
    for is_odd in (False, True):
        parsed.clear()
        lists = [f"{n * is_odd}-8191" for n in range(512)]
        own = tuple({**FACTS[0], "cpus": text, "mems": text, "gpus": text} for text in lists)
        jobs = (
            JobOnHost("a", frozenset({HeldGpu(GPUS[0])}), own),
            JobOnHost("b", frozenset({HeldGpu(GPUS[1])}), own),
        )
        verdicts = {v.boundary: v.verdict for v in verify(*jobs, HOST)}
        assert len(parsed) <= 8 * TEXTS_MAX
        for boundary in ("cpus", "memory_nodes", "devices"):
            assert verdicts[boundary] is not V


@given(st.frozensets(st.integers(0, 5000), max_size=60))
def test_numbers_survive_their_text(numbers: frozenset[int]) -> None:
    assert parse_numbers(numbers_text(numbers)) == numbers


@pytest.mark.parametrize(
    "text", ["", "a", "3-1", "1-", "-1", "0-99999999", "0-9000", "1,,2", "\u0661", " 1"]
)
def test_numbers_of_another_form_are_unknown(text: str) -> None:
    """The kernel writes none of these, and a range of billions would fill the memory."""
    assert parse_numbers(text) is None


@given(st.text())
def test_any_text_is_facts(text: str) -> None:
    facts = parse_facts(text)
    assert parse_facts(facts_text(facts)).items() <= facts.items()
