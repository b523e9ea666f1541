"""The record of an executor's steps: log lines, figures of /metrics, and records for a collector of logs."""

from __future__ import annotations

import logging

from ..contract.host_sets import fold_hosts
from ..contract.otlp_logs import ERROR, INFO, OtlpLogExporter, OtlpRecord
from . import core, model
from .context import ExecutorContext
from .metrics import FAILED, OK, UPKEEP, ExecutorFigures

log = logging.getLogger(__name__)

#: Limit of remembered advisories that were already logged.
ANNOUNCED_MAX = 10_000


class StepLog:
    """Counts, logs and exports the steps of an executor."""

    def __init__(
        self,
        context: ExecutorContext,
        figures: ExecutorFigures | None = None,
        exporter: OtlpLogExporter | None = None,
    ) -> None:
        """*figures*: the figures of /metrics; *exporter*: receives a record of each step."""
        self._context, self._exporter = context, exporter
        self._announced: set[str] = set()
        self.figures = figures or ExecutorFigures(wall=context.wall)
        self.figures.marks_max = context.config.marks_max
        self.figures.is_shadow = context.shadow

    def count(self, step: model.Step, error: str) -> None:
        """Count a step, and export a record of it if an exporter is set and the step is not routine."""
        kind = type(step).__name__
        self.figures.count_action(kind, error)
        if self._exporter is None or kind in UPKEEP:
            return
        attributes = {
            "gangline.advisory": step.advisory,
            "gangline.step": kind,
            "gangline.outcome": FAILED if error else OK,
            "gangline.cluster": self._context.config.cluster,
            "host.name": self._context.names.host_of(str(getattr(step, "node", ""))),
            "gangline.workload": str(getattr(step, "job", "")),
            "gangline.error": error,
        }
        text = f"{describe(step)}: {step.why}{f': failed: {error}' if error else ''}"
        severity = ERROR if error else INFO
        self._exporter.export(
            OtlpRecord("gangline.act", text, int(self._context.wall() * 1e9), severity, attributes)
        )
        self.figures.dropped_log_records = self._exporter.dropped_count

    def announce(self, situation: model.Situation) -> None:
        """Log, once per state of an advisory, why it is skipped; in shadow mode also the steps for other advisories."""
        marks = sum(entry.is_marked for entry in self._context.ledger)
        for advice in situation.advice.values():
            key = f"{advice.etag} {advice.state}"
            if advice.state != "PROPOSED" or key in self._announced:
                continue
            if len(self._announced) >= ANNOUNCED_MAX:
                self._announced.clear()
            self._announced.add(key)
            mode = "shadow: " if self._context.shadow else ""
            what = f"{advice.name} ({advice.action} of {advice.node}: {advice.reason})"
            if refusal := core.refusal_reason(situation, self._context.ledger, advice, marks):
                log.info("%s%s is left to people: %s", mode, what, refusal)
            elif self._context.shadow:
                would = [describe(step) for step in core.plan(situation, advice)]
                log.info(
                    "%s%s would be accepted; then: %s", mode, what, "; ".join(would) or "nothing"
                )


def describe(step: model.Step) -> str:
    """Return *step* as a short text: its type and its fields."""
    fields = [
        f"{name}={value:.0f}"
        if isinstance(value, float)
        else f"{name}={fold_hosts(value) if isinstance(value, tuple) else value}"
        for name in type(step).__dataclass_fields__
        if name not in ("advisory", "why", "parts")
        and (value := getattr(step, name)) not in ("", False, ())
    ]
    return " ".join([type(step).__name__, *fields])
