"""Exports findings and advisories that began, changed or ended since the last poll as OTLP log records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ...contract.otlp_logs import ERROR, INFO, WARN, OtlpLogExporter, OtlpRecord
from ..advisories.advisory import Advisory, AdvisoryState
from ..model import Finding

FindingKey = tuple[str, str, str]
#: States of advisories that failed.
_FAILED = (AdvisoryState.FAILED,)


class FindingAndAdviceLog:
    """Call `poll` periodically in one thread; the first poll exports everything that is open."""

    def __init__(
        self,
        exporter: OtlpLogExporter,
        findings: Callable[[], Mapping[FindingKey, Finding]],
        advisories: Callable[[], Iterable[Advisory]],
    ) -> None:
        self._exporter, self._findings, self._advisories = exporter, findings, advisories
        self._known_findings: dict[FindingKey, Finding] = {}
        self._known_advice: dict[str, int] = {}

    def poll(self, now_ns: int) -> None:
        """Export the changes since the last poll."""
        findings = dict(self._findings())
        for key, finding in findings.items():
            before = self._known_findings.get(key)
            if before is None or before.message != finding.message:
                self._exporter.export(
                    finding_record(finding, finding.since_ns, "gangline.finding", WARN)
                )
        for key, finding in self._known_findings.items():
            if key not in findings:
                self._exporter.export(
                    finding_record(finding, now_ns, "gangline.finding.cleared", INFO)
                )
        self._known_findings = findings
        known: dict[str, int] = {}
        for advisory in list(self._advisories()):
            known[advisory.name] = advisory.revision
            if self._known_advice.get(advisory.name) != advisory.revision:
                self._exporter.export(advisory_record(advisory))
        self._known_advice = known


def finding_record(finding: Finding, time_ns: int, event: str, severity: int) -> OtlpRecord:
    """Return the record of a finding that began or ended."""
    text = finding.message if event == "gangline.finding" else f"cleared: {finding.message}"
    attributes = {
        "host.name": finding.host, "gangline.finding": finding.name, "gangline.subject": finding.subject,
    }  # fmt: skip
    return OtlpRecord(event, text, time_ns, severity, attributes)


def advisory_record(advisory: Advisory) -> OtlpRecord:
    """Return the record of an advisory's current state."""
    severity = ERROR if advisory.state in _FAILED else WARN if advisory.is_open else INFO
    attributes: dict[str, str | int | float] = {
        "host.name": advisory.host, "gangline.advisory": advisory.name, "gangline.subject": advisory.subject,
        "gangline.action": advisory.action.name, "gangline.state": advisory.state.name, "gangline.reason": advisory.reason,
        "gangline.workload": advisory.job, "gangline.owner": advisory.owner, "gangline.revision": advisory.revision,
        "gangline.confidence": float(advisory.confidence),
    }  # fmt: skip
    text = f"{advisory.action.name} of {advisory.subject}: {advisory.message}; {advisory.state.name}: {advisory.state_message}"
    return OtlpRecord("gangline.advisory", text, advisory.changed_ns, severity, attributes)
