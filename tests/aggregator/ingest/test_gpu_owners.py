"""A GPU is in one host: one that moves keeps its history, one that two hosts claim is told of."""

from __future__ import annotations

from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.ingest.findings import ActiveFindings, GpuOwners
from gangline.aggregator.model import AGGREGATOR_HOST, DUPLICATE_GPU, GPU_RELEASED

ONE, TWO = (f"GPU-{n}0000000-1111-2222-3333-444444444444" for n in (1, 2))
KEY = AGGREGATOR_HOST, DUPLICATE_GPU, "b"


class Owners:
    """Owners with hosts that are silent when told."""

    def __init__(self, *before: tuple[str, str]) -> None:
        self.silent = set[str]()
        self.findings = ActiveFindings(Fleet())
        self.owners = GpuOwners(self.findings, lambda host, _: host in self.silent, before)

    def register(self, host: str, *keys: str) -> bool:
        return self.owners.register(host, keys, 1)

    def found(self, now_ns: int = 2) -> bool:
        self.owners.step(now_ns)
        return KEY in self.findings


def test_a_gpu_that_moves() -> None:
    """A technician carries it over: its host is off, or comes back without it before the other has it."""
    one = Owners()
    assert not one.register("a", ONE, TWO)
    one.silent.add("a")
    assert not one.register("b", ONE)
    one.silent.clear()
    assert not one.register("a", TWO)
    assert not one.register("a")
    assert not one.register("b", ONE, TWO)
    assert not one.found()


def test_a_host_that_claims_its_neighbours_gpu() -> None:
    """Root of one host blamed another: the neighbour's GPU, with its errors, was taken for moved."""
    one = Owners()
    one.register("a", ONE, TWO)
    assert one.register("b", ONE)
    assert one.found()
    (finding,) = one.findings.changes(3)
    assert (finding.host, finding.subject) == (
        AGGREGATOR_HOST,
        "b",
    )  # nobody's score: who is right is not known
    assert ONE in finding.message and "which a has" in finding.message
    one.register("a", ONE, TWO)  # again, as after a reboot
    assert one.found(400 * 10**9)
    assert not one.findings.changes(4)
    one.register("a", TWO)  # lets it go
    assert not one.found()


def test_who_claims_a_gpu_and_is_renamed() -> None:
    """Whichever of the two ends ends it: the other falls silent, or the one that claims."""
    one = Owners()
    one.register("a", ONE)
    assert one.register("b", ONE)
    assert not one.register("b")
    assert not one.found()
    assert one.register("b", ONE)
    one.silent.add("a")
    assert not one.found()


def test_who_claims_a_gpu_and_falls_silent() -> None:
    """A second agent, tried for an hour and stopped: that both were heard was told for months."""
    one = Owners()
    one.register("a", ONE)
    assert one.register("b", ONE)
    one.silent.add("b")
    one.findings.changes(2)
    assert not one.found()
    (finding,) = one.findings.changes(3)
    assert finding.cleared_ns and finding.clears_when != GPU_RELEASED  # history does not follow it
    one.silent = {"a", "b"}
    assert not one.found()
    one.silent.clear()
    assert one.found()  # the cable is back
    one.silent.add("a")
    assert not one.found()
    assert one.findings.changes(4)[-1].clears_when == GPU_RELEASED


def test_an_aggregator_that_starts_again_knows_whose_they_are() -> None:
    """Who came first after a restart would have had them."""
    one = Owners((ONE, "a"), ("GPU-0", "a"))
    assert one.register("b", ONE)
    assert not one.register("a", ONE)
    assert one.found()


def test_names_that_are_no_uuid_are_nobodys() -> None:
    """Hosts without a driver say GPU-0, each of its own."""
    one = Owners()
    one.register("a", "GPU-0")
    assert not one.register("b", "GPU-0")
