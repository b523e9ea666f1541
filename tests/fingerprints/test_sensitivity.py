"""A workload's needs of a host, and its slowdown where a part of the host is slow."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.fingerprints.fingerprint import NUMBERS, Fingerprint
from gangline.fingerprints.sensitivity import (
    COMPONENTS,
    NETWORK,
    NVLINK,
    SLOWDOWN_MAX,
    WorkloadNeeds,
    expected_slowdowns,
    needs_of,
)

_SHARES = st.lists(st.floats(0, 0.125, width=32), min_size=7, max_size=7)
_SPEEDS = st.lists(st.floats(0.0625, 1, width=32), min_size=7, max_size=7)


def fingerprint(*, hosts: int = 4, model: str = "H100", **numbers: float) -> Fingerprint:
    values = tuple(numbers.get(name, nan) for name in NUMBERS)
    return Fingerprint(values, gpus=8 * hosts, hosts=hosts, gpu_model=model)


def slowdown(one: Fingerprint, **speeds: float) -> float:
    needs = needs_of(one)
    assert needs
    row = np.array([[speeds.get(name, 1.0) for name in COMPONENTS]], dtype=np.float32)
    return float(expected_slowdowns(needs, row)[0])


COMPUTE_BOUND = fingerprint(
    compute_ratio=0.92, wait_ratio=0.08, tensor_ratio=0.55, memory_bandwidth_ratio=0.05, nvlink_bytes_per_second=4e10,
    nic_bytes_per_second=2e9,
)  # fmt: skip
MEMORY_BOUND = fingerprint(
    hosts=1, compute_ratio=0.95, wait_ratio=0.05, tensor_ratio=0.02, memory_bandwidth_ratio=0.8
)
NETWORK_BOUND = fingerprint(
    compute_ratio=0.5, wait_ratio=0.5, tensor_ratio=0.3, memory_bandwidth_ratio=0.2, nic_bytes_per_second=6e10,
)  # fmt: skip


def test_work_minds_only_what_it_is_bound_by() -> None:
    """Memory-bound work was kept from a host with a low clock, and a job with almost no
    communication from a host without a port.
    """
    slow_clock = {"compute": 0.8}
    assert slowdown(COMPUTE_BOUND, **slow_clock) == pytest.approx(0.25, abs=0.04)
    assert slowdown(MEMORY_BOUND, **slow_clock) < 0.02
    half_the_ports = {"network": 0.5}
    assert slowdown(COMPUTE_BOUND, **half_the_ports) < 0.03
    assert slowdown(MEMORY_BOUND, **half_the_ports) == 0.0
    assert slowdown(NETWORK_BOUND, **half_the_ports) > 0.4


def test_a_link_costs_nothing_until_it_is_all_in_use() -> None:
    """A transfer that overlaps with computing is hidden as long as it ends before the step does."""
    overlapped = fingerprint(
        compute_ratio=1.0, wait_ratio=0.0, tensor_ratio=0.5, nic_bytes_per_second=4e10
    )
    assert slowdown(overlapped, network=0.5) == 0.0
    assert slowdown(overlapped, network=0.25) == pytest.approx(0.6, abs=0.01)


def test_what_waits_without_counted_bytes_waits_for_other_hosts_only_where_there_are_some() -> None:
    """A100s count no NVLink bytes: a job of one host was kept from hosts without ports."""
    loaded, alone = (
        needs_of(fingerprint(hosts=hosts, compute_ratio=0.7, wait_ratio=0.3)) for hosts in (4, 1)
    )
    assert loaded and alone
    assert loaded.bound[NETWORK] == pytest.approx(0.3) and alone.bound[NETWORK] == 0.0
    assert loaded.bound[NVLINK] == alone.bound[NVLINK] == 0.0


@pytest.mark.parametrize("odd", [nan, inf, -inf, -1.0, 1e300])
def test_odd_numbers_are_no_slowdown_out_of_range(odd: float) -> None:
    """A driver's absurd reading must neither raise nor keep a job from every host."""
    every = replace(COMPUTE_BOUND, values=(odd,) * len(NUMBERS))
    needs = needs_of(every)
    if needs is None:
        return
    slowdowns = expected_slowdowns(needs, np.full((2, len(COMPONENTS)), 0.5, dtype=np.float32))
    assert (
        np.isfinite(slowdowns).all()
        and (slowdowns >= 0.0).all()
        and (slowdowns <= SLOWDOWN_MAX).all()
    )


def test_nothing_known_is_said() -> None:
    """A host without frames is neither fast nor slow, and a run without readings has no known needs."""
    assert needs_of(fingerprint()) is None
    needs = needs_of(COMPUTE_BOUND)
    assert needs
    unknown = np.full((1, len(COMPONENTS)), nan, dtype=np.float32)
    assert np.isnan(expected_slowdowns(needs, unknown)).all()


@given(_SHARES, _SPEEDS, st.integers(0, 6), st.floats(0.125, 1, width=32))
def test_a_slower_part_is_never_a_faster_host(
    shares: list[float], speeds: list[float], part: int, factor: float
) -> None:
    """Rankings by it must not turn around; at full speed nothing is slower."""
    needs = WorkloadNeeds(tuple(shares), (0.0,) * 7)
    fast = np.array([speeds], dtype=np.float32)
    slow = fast.copy()
    slow[0, part] *= factor
    assert expected_slowdowns(needs, slow)[0] >= expected_slowdowns(needs, fast)[0]
    assert expected_slowdowns(needs, np.ones((1, 7), dtype=np.float32))[0] == 0.0
