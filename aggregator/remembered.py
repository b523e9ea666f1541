"""What the aggregator takes over from its store at a start: scores, findings and faults of before."""

from __future__ import annotations

import logging
from dataclasses import replace

from .fleet.fleet import Fleet
from .hazard.events import EventsError
from .hazard.recorded import incidents_of
from .health.alarm_table import ALARMS
from .ingest.findings import Findings
from .judgement.faults import Faults
from .judgement.found import FAULT_RULES, JUDGED_FINDINGS
from .judgement.restart import Before, restore
from .store.known import NOT_LOOKED_AT
from .store.store import Store
from .verdicts import OURSELVES

log = logging.getLogger(__name__)


def remember(fleet: Fleet, store: Store, findings: Findings, now_ns: int) -> Before:
    """Make the hosts and findings of before known, and return what stands until each host has spoken again."""
    before = restore(fleet, store.last_scores, now_ns)
    judged = _take_findings_over(fleet, store, findings, now_ns)
    return replace(before, findings=judged, faults=_faults(store, now_ns))


def _take_findings_over(
    fleet: Fleet, store: Store, findings: Findings, now_ns: int
) -> frozenset[tuple[str, str, str]]:
    """Take over what was found of hosts that are known still, and return what judging is to end."""
    judged: set[tuple[str, str, str]] = set()
    for one in store.open_findings:
        # An alarm is found anew, if it is so.
        is_alarm = one.host == OURSELVES and one.name.startswith(ALARMS)
        if is_alarm or (one.host not in fleet.index and one.host != OURSELVES):
            store.submit_findings([replace(one, cleared_ns=now_ns, clears_when=NOT_LOOKED_AT)])
            continue
        key = one.host, one.name, one.subject
        if one.name in JUDGED_FINDINGS:
            judged.add(key)
        expires = key not in judged and not one.name.startswith("clock.")
        findings.restore(one, now_ns, expires=expires)
    return frozenset(judged)


def _faults(store: Store, now_ns: int) -> Faults:
    """Return what is on record of each host, as training reads it."""
    try:
        with store.reading() as cursor:
            return Faults.of(incidents_of(cursor, FAULT_RULES, now_ns // 1000))
    except EventsError as error:
        log.error("hazards are told as if no host had failed before: %s", error)
        return Faults()
