"""docs/quality.md, real recordings: no finding on healthy recordings, and a finding on faulty ones."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bench.quality import captures, feeding
from bench.quality.bed import block_of
from bench.quality.captures import CAPTURES, DATA, Capture, CaptureResult, result_of
from gangline.agent.collector import CollectOutcome
from gangline.agent.hardware.files import Roots
from gangline.aggregator.model import HealthState
from gangline.contract.block import Block
from gangline.contract.signal import Pace

#: Recordings that take less than a second; `python -m bench.quality --only captures` takes all.
SHORT = ("kernel_log/", "nvidia_smi/", "rdma/sys")


@pytest.fixture(scope="module")
def told() -> dict[str, CaptureResult]:
    if not DATA.exists():
        pytest.skip("the recordings of ../shared/data are not here")
    feeding.STILL_SECONDS, before = 20, feeding.STILL_SECONDS
    try:
        return {
            capture.path: result_of(capture)
            for capture in CAPTURES
            if capture.path.startswith(SHORT)
        }
    finally:
        feeding.STILL_SECONDS = before


@pytest.mark.slow
def test_no_false_finding_on_real_recordings(told: dict[str, CaptureResult]) -> None:
    """Containers' links that come up, full counters, an idle GPU: these are not faults."""
    assert len(told) == 4
    assert {path: result.false for path, result in told.items() if result.false} == {}
    assert {path: result.missed for path, result in told.items() if result.missed} == {}
    assert all(result.bed.readings or result.read > 40 for result in told.values())


def test_a_gsp_that_hangs_is_found_and_would_be_false_elsewhere(
    told: dict[str, CaptureResult],
) -> None:
    """A table of zeros that could show nothing else."""
    result = told["kernel_log/dmesg-with-xid-119.log"]
    assert {signal for signal, _ in result.true} == {"gpu.xid", "gpu.needs_reset"}
    assert HealthState.UNHEALTHY in result.bed.states
    assert len(replace(result, capture=replace(result.capture, true={})).false) == len(result.true)
    assert replace(result, capture=replace(result.capture, worst=HealthState.HEALTHY)).false == [
        ("state UNHEALTHY", "host")
    ]
    elsewhere = {(signal, "0000:00:00.0"): why for (signal, _), why in result.capture.true.items()}
    moved = replace(result, capture=replace(result.capture, true=elsewhere))
    assert len(moved.false) == 2 and len(moved.missed) == 2


class Reader:
    """A collector of PCIe functions that ends its turn on request."""

    name, pace, enters_driver = "pcie_60s", Pace.MINUTE, False

    def __init__(self, ends: CollectOutcome) -> None:
        self._ends = ends
        self.access_error = "root is shown more" if ends is CollectOutcome.BLIND else ""

    def collect(self) -> Sequence[Block]:
        if self._ends is CollectOutcome.ERROR:
            raise ValueError("'16.0 GT/s': a form that this parser does not know")
        return [block_of("pcie_60s", {"0000:3b:00.0": {"max_payload_bytes": 256}})]


def _read_by(collector: object, folder: Path, patch: pytest.MonkeyPatch) -> CaptureResult:
    """Return the reading of *collector* alone over a small /sys, of which a part is hidden."""

    def made(roots: Roots) -> object:
        return collector

    with tarfile.open(folder / "host.tar", "w") as archive:
        archive.add(folder, "host", recursive=False)
    patch.setattr(feeding, "COLLECTORS", {"pcie_60s": made})
    patch.setattr(feeding, "STILL_SECONDS", 20)
    true = {("collector.outcome_state BLIND", "pcie_60s"): "a part is hidden"}
    return result_of(Capture("host.tar", "a small host", feeding.tar, true), folder)


def test_a_collector_that_fails_is_a_false_finding_though_it_may_be_blind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are one signal: with blindness declared true, no parser could fail on a recording."""
    outcomes_read = _read_by(Reader(CollectOutcome.ERROR), tmp_path, monkeypatch)
    assert (
        outcomes_read.false == [("collector.outcome_state ERROR", "pcie_60s")]
        and not outcomes_read.true
    )
    page = "\n".join(captures._table([outcomes_read]))
    assert "**1 false findings**" in page
    assert "- host.tar: collector.outcome_state ERROR of pcie_60s" in page
    missed = page.partition("**Not found, although true:**")[2]
    assert "- host.tar: collector.outcome_state BLIND of pcie_60s" in missed


def test_what_a_collector_that_is_blind_to_a_part_sees_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent sends it; left out, nothing false could be found in it."""
    outcomes_read = _read_by(Reader(CollectOutcome.BLIND), tmp_path, monkeypatch)
    seconds_and_outcome, payload = 2, 1
    assert outcomes_read.bed.readings == seconds_and_outcome + payload
    assert (outcomes_read.false, outcomes_read.missed) == ([], [])
    assert "Not found" not in "\n".join(captures._table([outcomes_read]))
