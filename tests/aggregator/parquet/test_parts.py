"""GPUs move, hosts are renamed and taken out: history follows the part, and the slot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gangline.aggregator.model import AGGREGATOR_HOST, DUPLICATE_GPU, GPU_RELEASED, Finding
from gangline.aggregator.store.parquet import views
from gangline.aggregator.store.rows import HostRecord

SLOTS = ("0000:17:00.0", "0000:65:00.0")


def register(past: Any, host: str, *gpus: str) -> None:
    """Register *host* with a GPU in each slot, and let history take it down."""
    past.later(60)
    devices = [
        *(
            ("gpu", gpu, {"pci_address": slot})
            for gpu, slot in zip(gpus, SLOTS, strict=False)
            if gpu
        ),
        ("pcie", SLOTS[0], {"pci_address": SLOTS[0]}),  # a slot is no part
        ("numa", "0", {}),
    ]
    record = HostRecord(
        host, 0, False, b"r" * 16, b"b" * 16, "0.1", "", {}, past.now_ns, tuple(devices)
    )
    past.store.submit_host(record, {})
    past.store.in_transaction(lambda _: None)  # after it
    past.turn()


def places(past: Any, gpu: str) -> list[tuple[str, str, bool]]:
    found: list[tuple[str, str, bool]] = past.ask(
        f"SELECT host, slot, present FROM history.by_part('{gpu}')"
    )
    return found


@pytest.mark.slow
def test_a_gpu_is_followed_over_hosts_and_a_slot_over_gpus(past: Any) -> None:
    """A GPU with a history of errors went to another host, and began there as if it were new."""
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
    register(past, "a", "", "GPU-2")  # taken out; and put back later
    register(past, "a", "GPU-4", "GPU-2")
    assert places(past, "GPU-4") == [("a", SLOTS[0], False), ("a", SLOTS[0], True)]


@pytest.mark.slow
def test_a_gpu_that_two_hosts_have_stays_where_it_was(past: Any) -> None:
    """A host that said it had its neighbour's GPU took it out of the neighbour's history."""
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
    again = past.again()
    again.later(61)
    again.turn()
    assert places(again, "GPU-1") == moved


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [("a", "b"), ("b", "a")])
def test_a_gpu_that_moved_does_not_go_back_at_a_restart(past: Any, before: str, after: str) -> None:
    """The host that it came from was off, and still had it by its last registration: each restart moved it back."""
    register(past, before, "GPU-1")
    register(past, after, "GPU-1")
    found = places(past, "GPU-1")
    again = past.again()
    for _ in range(2):
        again.later(61)
        again.turn()
    assert places(again, "GPU-1") == found


@pytest.mark.slow
def test_a_host_of_another_name_is_the_same_by_its_parts(past: Any) -> None:
    """Hosts were renamed by rack: what was known of them stood under names nobody used any more."""
    register(past, "node17", "GPU-1", "GPU-2")
    register(past, "rack3-17", "GPU-1", "GPU-2")
    names = past.ask("SELECT host, parts_count FROM history.names_of('rack3-17')")
    assert names == [("node17", 2), ("rack3-17", 2)]
    again = past.again()
    again.turn()
    assert again.ask("SELECT host, parts_count FROM history.names_of('rack3-17')") == names


def test_a_host_that_invents_parts_is_remembered_by_so_many(past: Any, monkeypatch: Any) -> None:
    """An agent gone wrong registered with new keys each second, for a week."""
    monkeypatch.setattr(views, "STINTS_PER_HOST_MAX", 5)
    for at in range(8):
        register(past, "a", f"GPU-{at}")
    register(past, "b", "GPU-x")
    kept = past.ask("SELECT device FROM parts WHERE host = 'a' ORDER BY device")
    assert kept == [(f"GPU-{at}",) for at in range(3, 8)]
    assert places(past, "GPU-x") == [("b", SLOTS[0], True)]
