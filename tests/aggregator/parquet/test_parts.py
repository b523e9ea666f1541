"""GPUs move, hosts are renamed and removed: history follows the part, and the slot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gangline.aggregator.model import AGGREGATOR_HOST, DUPLICATE_GPU, GPU_RELEASED, Finding
from gangline.aggregator.store.parquet import views
from gangline.aggregator.store.rows import HostRecord

SLOTS = ("0000:17:00.0", "0000:65:00.0")


def register(past: Any, host: str, *gpus: str) -> None:
    """Register *host* with a GPU in each slot, and record it in history."""
    past.later(60)
    devices = [
        *(
            ("gpu", gpu, {"pci_address": slot})
            for gpu, slot in zip(gpus, SLOTS, strict=False)
            if gpu
        ),
        ("pcie", SLOTS[0], {"pci_address": SLOTS[0]}),  # a slot is not a part
        ("numa", "0", {}),
    ]
    record = HostRecord(
        host, 0, False, b"r" * 16, b"b" * 16, "0.1", "", {}, past.now_ns, tuple(devices)
    )
    past.store.submit_host(record, {})
    past.store.in_transaction(lambda _: None)  # wait for the host's commit
    past.turn()


def places(past: Any, gpu: str) -> list[tuple[str, str, bool]]:
    stints: list[tuple[str, str, bool]] = past.ask(
        f"SELECT host, slot, present FROM history.by_part('{gpu}')"
    )
    return stints


@pytest.mark.slow
def test_a_gpu_is_followed_over_hosts_and_a_slot_over_gpus(past: Any) -> None:
    """A GPU with a history of errors moved to another host, and seemed new."""
    register(past, "a", "GPU-1", "GPU-2")
    register(past, "b", "GPU-3")
    register(past, "b", "GPU-1", "GPU-3")  # one moved over, the other one slot on
    assert places(past, "GPU-1") == [("a", SLOTS[0], False), ("b", SLOTS[0], True)]
    assert places(past, "GPU-3") == [("b", SLOTS[0], False), ("b", SLOTS[1], True)]
    register(past, "a", "GPU-4", "GPU-2")
    slot = past.ask(f"SELECT device, present FROM history.by_slot('a', '{SLOTS[0]}')")
    assert slot == [("GPU-1", False), ("GPU-4", True)]
    moved = past.ask("SELECT device, places_count FROM history.moved")
    assert moved == [("GPU-1", 2), ("GPU-3", 2)]
    register(past, "a", "", "GPU-2")  # removed; inserted again later
    register(past, "a", "GPU-4", "GPU-2")
    assert places(past, "GPU-4") == [("a", SLOTS[0], False), ("a", SLOTS[0], True)]


@pytest.mark.slow
def test_a_gpu_that_two_hosts_have_stays_where_it_was(past: Any) -> None:
    """A host's claim of its neighbor's GPU removed it from the neighbor's history."""
    register(past, "a", "GPU-1")
    open_ns = past.now_ns
    finding = Finding(AGGREGATOR_HOST, DUPLICATE_GPU, "b", "both have it", open_ns)
    past.store.submit_findings([finding])
    register(past, "b", "GPU-1", "GPU-2")
    assert places(past, "GPU-1") == [("a", SLOTS[0], True)]
    assert places(past, "GPU-2") == [("b", SLOTS[1], True)]
    past.later(60)
    past.store.submit_findings([replace(finding, cleared_ns=past.now_ns)])  # "b" is silent
    past.store.in_transaction(lambda _: None)
    past.turn()
    assert places(past, "GPU-1") == [("a", SLOTS[0], True)]
    register(past, "a", "GPU-1")  # later than "b"
    past.later(60)
    ended = replace(finding, cleared_ns=past.now_ns, clears_when=GPU_RELEASED)
    past.store.submit_findings([ended])
    past.store.in_transaction(lambda _: None)
    past.turn()
    moved = [("a", SLOTS[0], False), ("b", SLOTS[0], True)]
    assert places(past, "GPU-1") == moved
    restarted = past.again()
    restarted.later(61)
    restarted.turn()
    assert places(restarted, "GPU-1") == moved


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [("a", "b"), ("b", "a")])
def test_a_gpu_that_moved_does_not_go_back_at_a_restart(past: Any, before: str, after: str) -> None:
    """The GPU's old host was off, and still registered with it: each restart moved it back."""
    register(past, before, "GPU-1")
    register(past, after, "GPU-1")
    stints = places(past, "GPU-1")
    restarted = past.again()
    for _ in range(2):
        restarted.later(61)
        restarted.turn()
    assert places(restarted, "GPU-1") == stints


@pytest.mark.slow
def test_a_host_of_another_name_is_the_same_by_its_parts(past: Any) -> None:
    """Hosts were renamed by rack: their history remained under unused names."""
    register(past, "node17", "GPU-1", "GPU-2")
    register(past, "rack3-17", "GPU-1", "GPU-2")
    names = past.ask("SELECT host, parts_count FROM history.names_of('rack3-17')")
    assert names == [("node17", 2), ("rack3-17", 2)]
    restarted = past.again()
    restarted.turn()
    assert restarted.ask("SELECT host, parts_count FROM history.names_of('rack3-17')") == names


def test_a_host_that_invents_parts_is_remembered_by_so_many(past: Any, monkeypatch: Any) -> None:
    """A defective agent registered with new keys each second, for a week."""
    monkeypatch.setattr(views, "STINTS_PER_HOST_MAX", 5)
    for number in range(8):
        register(past, "a", f"GPU-{number}")
    register(past, "b", "GPU-x")
    devices = past.ask("SELECT device FROM parts WHERE host = 'a' ORDER BY device")
    assert devices == [(f"GPU-{number}",) for number in range(3, 8)]
    assert places(past, "GPU-x") == [("b", SLOTS[0], True)]
