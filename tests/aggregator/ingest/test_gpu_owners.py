"""A GPU belongs to one host: a move keeps its history, a claim of two hosts is a finding."""

from __future__ import annotations

from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.ingest.findings import ActiveFindings, GpuOwners
from gangline.aggregator.model import AGGREGATOR_HOST, DUPLICATE_GPU, GPU_RELEASED

ONE, TWO = (f"GPU-{n}0000000-1111-2222-3333-444444444444" for n in (1, 2))
KEY = AGGREGATOR_HOST, DUPLICATE_GPU, "b"


class Owners:
    """Owners with hosts that the test can silence."""

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
    """The GPU's old host is off, or registers without it before the new host has it."""
    owners = Owners()
    assert not owners.register("a", ONE, TWO)
    owners.silent.add("a")
    assert not owners.register("b", ONE)
    owners.silent.clear()
    assert not owners.register("a", TWO)
    assert not owners.register("a", "GPU-0")  # no UUID: hosts without a driver report it
    assert not owners.register("b", ONE, TWO, "GPU-0")
    assert not owners.found()


def test_a_host_that_claims_its_neighbours_gpu() -> None:
    """A host's root claimed a neighbor's GPU, which counted as moved, with its errors."""
    owners = Owners()
    owners.register("a", ONE, TWO)
    assert owners.register("b", ONE)
    assert owners.found()
    (finding,) = owners.findings.changes(3)
    assert (finding.host, finding.subject) == (
        AGGREGATOR_HOST,
        "b",
    )  # no host's score: the owner is unknown
    assert ONE in finding.message and "which a has" in finding.message
    owners.register("a", ONE, TWO)  # again, as after a reboot
    assert owners.found(400 * 10**9)
    assert not owners.findings.changes(4)
    owners.register("a", TWO)  # releases it
    assert not owners.found()


def test_who_claims_a_gpu_and_is_renamed() -> None:
    """The other host's silence ends it, and so does the end of the claim."""
    owners = Owners()
    owners.register("a", ONE)
    assert owners.register("b", ONE)
    assert not owners.register("b")
    assert not owners.found()
    assert owners.register("b", ONE)
    owners.silent.add("a")
    assert not owners.found()


def test_who_claims_a_gpu_and_falls_silent() -> None:
    """A second agent ran for an hour: "both report" stood for months."""
    owners = Owners()
    owners.register("a", ONE)
    assert owners.register("b", ONE)
    owners.silent.add("b")
    owners.findings.changes(2)
    assert not owners.found()
    (finding,) = owners.findings.changes(3)
    assert finding.cleared_ns and finding.clears_when != GPU_RELEASED  # history does not follow it
    owners.silent = {"a", "b"}
    assert not owners.found()
    owners.silent.clear()
    assert owners.found()  # the cable is connected again
    owners.silent.add("a")
    assert not owners.found()
    assert owners.findings.changes(4)[-1].clears_when == GPU_RELEASED


def test_an_aggregator_that_starts_again_knows_whose_they_are() -> None:
    """After a restart the first host to register would have owned them."""
    owners = Owners((ONE, "a"), ("GPU-0", "a"))
    assert owners.register("b", ONE)
    assert not owners.register("a", ONE)
    assert owners.found()
