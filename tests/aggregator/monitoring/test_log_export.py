"""Findings and advice as log records: each change once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gangline.aggregator.advisories.advisory import (
    Action,
    Advisory,
    AdvisoryState,
    Basis,
    Scope,
)
from gangline.aggregator.model import Finding
from gangline.aggregator.monitoring.log_export import FindingAndAdviceLog
from gangline.contract.otlp_logs import OtlpRecord


class Records:
    def __init__(self) -> None:
        self.found: list[OtlpRecord] = []

    def export(self, record: OtlpRecord) -> bool:
        self.found.append(record)
        return True

    def take(self) -> list[tuple[str, str]]:
        taken = [(record.event, record.text) for record in self.found]
        self.found.clear()
        return taken


def test_each_change_is_exported_once() -> None:
    """A full report every 5 s would make users turn the collector off."""
    records: Any = Records()
    findings: dict[tuple[str, str, str], Finding] = {}
    advisories: list[Advisory] = []
    exporter = FindingAndAdviceLog(records, lambda: findings, lambda: advisories)
    exporter.poll(1)
    assert records.take() == []
    finding = Finding("gpu-7", "gpu.xid 79", "GPU-1", "it fell off the bus", 5)
    findings["gpu-7", "gpu.xid 79", "GPU-1"] = finding
    advisory = Advisory(
        "a1", "host gpu-7", ("gpu-7",), Action.AVOID, Scope.GPU, Basis.DETERMINISTIC, "XID", "XID 79", AdvisoryState.PROPOSED,
        "waits", 5, 9, 5, job="train",
    )  # fmt: skip
    advisories.append(advisory)
    exporter.poll(2)
    record, two = records.found
    assert (
        record.time_ns == 5 and record.attributes["host.name"] == "gpu-7" and record.severity == 13
    )
    assert two.attributes["gangline.action"] == "AVOID" and two.attributes["gangline.workload"] == "train"  # fmt: skip
    assert records.take()[1][1] == "AVOID of host gpu-7: XID 79; PROPOSED: waits"
    exporter.poll(3)
    assert records.take() == []
    advisories[0] = replace(
        advisory, state=AdvisoryState.FAILED, state_message="no route", revision=2
    )
    findings.clear()
    exporter.poll(4)
    assert records.found[1].severity == 17
    assert records.take() == [
        ("gangline.finding.cleared", "cleared: it fell off the bus"),
        ("gangline.advisory", "AVOID of host gpu-7: XID 79; FAILED: no route"),
    ]
