"""Meaning of events: the policy of a code, what clears the condition, and its severity."""

from __future__ import annotations

from typing import NamedTuple

from ...contract.wire.telemetry_pb2 import HealthEvent
from ...contract.xid.incidents import classify_line
from ...contract.xid.policy import Clears, Xid, XidSeverity
from ..rule_catalogue.faults import EVENT_POLICY
from ..rule_declaration import ClearCondition

#: Events that were too many to distinguish count for ten minutes.
FOLDED_CLEARS = ClearCondition(Clears.TIME, 600.0)
XID, SXID, LINK, LOST = "gpu.xid", "nvswitch.sxid", "net.link", "gpu.lost"
ADAPTER = "rdma.adapter_failed"
#: A diagnostic of the GPU; its latest result is valid.
DIAGNOSTIC, DIAGNOSTIC_CODES = "gpu.diagnostic", (0, 1, 2)
#: Events of DCGM's health watches, with DCGM's code.
DCGM_HEALTH = frozenset({"gpu.dcgm_failure", "gpu.dcgm_warning"})
OUT_OF_MEMORY = "host.out_of_memory"
#: Two jobs of different tenants that are not isolated.
ISOLATION = "host.isolation"
#: Codes of net.link.
REMOVED, APPEARED = 2, 3
#: Parts of the kernel's message about a program that reached the limit of its control group.
CGROUP_LIMIT_MARKERS = ("CONSTRAINT_MEMCG", "Memory cgroup out of memory")
SEVERITY_RANKS = {XidSeverity.FATAL: 3, XidSeverity.HAZARD: 2}


class EventInterpretation(NamedTuple):
    """Meaning of an event by its decoded message and, for XIDs and SXIDs, its policy."""

    clear_condition: ClearCondition | None  # None: it leaves no active record
    clears_codes: tuple[int, ...] = ()  # codes of the same device
    policy: Xid | None = None
    variant: str = ""  # distinguishes events of the same device and code
    details: tuple[str, ...] = ()
    process_name: str = ""  # named in the line; not necessarily the cause
    # A summary of events beyond the agent's limit: its code has no meaning.
    folded: bool = False
    from_previous_boot: bool = False  # happened in the previous boot, whose record this one found
    hit_cgroup_limit: bool = False  # the kernel killed a program at its own limit: a workload error

    def severity_rank(self, name: str) -> int:
        """Return the rank of the record; the lowest rank is forgotten first."""
        if self.policy is not None:
            return SEVERITY_RANKS.get(self.policy.severity, 0)
        if name == LOST:
            return SEVERITY_RANKS[XidSeverity.FATAL]
        return 0 if name in (LINK, ISOLATION) else 1


def interpret_event(event: HealthEvent, driver_version: str) -> EventInterpretation:
    """Return the meaning of *event*. Never raises, whatever its message."""
    if "folded" in event.attributes and event.code == 0 and event.device in ("", "host"):
        known = event.name in EVENT_POLICY or event.name in (XID, SXID)
        return EventInterpretation(FOLDED_CLEARS if known else None, variant="folded", folded=True)
    if event.name in (XID, SXID):
        return _interpret_xid(event, driver_version)
    if event.name == LINK and event.code != REMOVED:
        return EventInterpretation(None, (REMOVED,) if event.code == APPEARED else ())
    if event.name in (LOST, ADAPTER) and event.attributes.get("state") == "back":
        return EventInterpretation(None, (event.code,))
    if event.name == ISOLATION and event.attributes.get("state") == "ended":
        return EventInterpretation(None, (event.code,))
    condition = EVENT_POLICY.get(event.name)
    if event.name == DIAGNOSTIC:
        others = tuple(code for code in DIAGNOSTIC_CODES if code != event.code)
        return EventInterpretation(condition if event.code else None, others)
    if event.name in DCGM_HEALTH:
        return EventInterpretation(condition, details=(event.attributes.get("system", ""),))
    if event.attributes.get("previous_boot") == "yes":
        return EventInterpretation(condition, variant="previous boot", from_previous_boot=True)
    if event.name == OUT_OF_MEMORY and _names_cgroup_limit(event):
        return EventInterpretation(condition, variant="own limit", hit_cgroup_limit=True)
    return EventInterpretation(condition)


def _names_cgroup_limit(event: HealthEvent) -> bool:
    texts = (event.message, *event.forms, *event.attributes.values())
    return any(marker in text for marker in CGROUP_LIMIT_MARKERS for text in texts)


def _interpret_xid(event: HealthEvent, driver_version: str) -> EventInterpretation:
    table = "xid" if event.name == XID else "sxid"
    policy, variant, decoded = classify_line(event.code, event.message, driver_version, table)
    return EventInterpretation(
        None if decoded.continuation else ClearCondition(policy.clears, policy.clear_seconds),
        decoded.cancels,
        policy,
        variant,
        (decoded.message,) if decoded.message else (),
        decoded.process_name,
    )
