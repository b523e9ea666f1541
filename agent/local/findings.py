"""Findings of this host, by the policy, from its latest readings and events alone.

Any thread may call `observe`; everything else is for the daemon's thread. Times are boot time and
come from the caller. A turn without relevant changes costs a few comparisons of bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

from ...contract.faults.policy import ClearedBy, Policy
from ...contract.wire.telemetry_pb2 import HealthEvent
from ..latest import TableSnapshot
from .event_findings import EventFindings
from .findings_state import FindingsState
from .policy_rules import (
    ClearedFinding,
    GpuResetDetector,
    HostFinding,
    ReadingLookup,
    RuleState,
    RuleTrigger,
    TableTriggers,
)

#: Findings reported. Beyond, the mildest are left out.
FINDINGS_MAX = 64
#: Events that wait for the next turn. Beyond, the oldest is dropped and counted.
EVENTS_WAITING_MAX = 1024
#: An event this long before the first turn counts as new: an agent takes a moment to start.
WATCHED_BEFORE_NS = 60 * 1_000_000_000
#: An agent that was away for longer may have missed a reset.
DOWNTIME_NS_MAX = 180 * 1_000_000_000
#: Cleared findings kept for display.
CLEARED_MAX = 16


class HostFindings:
    """Findings by rules and events: FINDINGS_MAX, gravest first; `left_out` counts the others."""

    def __init__(self, policy: Policy, boot_id: bytes, driver: Callable[[], str] = str) -> None:
        """*driver* returns NVIDIA's driver version, or "" without a driver."""
        self.findings: tuple[HostFinding, ...] = ()
        self.left_out = 0
        self.dropped_events = 0
        self.cleared: deque[ClearedFinding] = deque(maxlen=CLEARED_MAX)
        self.reset_detector = GpuResetDetector()
        self.event_findings = EventFindings(policy, boot_id, driver)
        self.rule_states: list[RuleState] = []
        self.table_triggers: list[TableTriggers] = []
        self._active_rules: list[RuleState] = []  # rules that match now
        self._inventory_addresses: Mapping[str, str] = {}  # as last reported
        self._addresses: dict[str, str] = {}
        self._waiting: deque[HealthEvent] = deque()
        self.set_policy(policy)

    def set_policy(self, policy: Policy) -> None:
        """Use *policy*; the state of unchanged rows is kept."""
        before = {rule_state.row.name: rule_state for rule_state in self.rule_states}
        self.rule_states = []
        for row in policy.rows:
            if row.when:
                old = before.get(row.name)
                if old is None or old.row != row:
                    same = old is not None and old.row.when == row.when
                    old = RuleState(row, once_well=old.once_well if old and same else set())
                self.rule_states.append(old)
        triggers: list[RuleTrigger] = [self.reset_detector, *self.rule_states]
        names = dict.fromkeys(trigger.table for trigger in triggers)
        self.table_triggers = [
            TableTriggers(name, [trigger for trigger in triggers if trigger.table == name])
            for name in names
        ]
        self._refresh_triggers(names)
        self.event_findings.set_policy(policy)
        self._event_names = self.event_findings.names()
        self._hidden_by = {row.name: row.hidden_by for row in policy.rows if row.hidden_by}

    def observe(self, event: HealthEvent) -> bool:
        """Queue an event; return whether the policy uses it. For any thread; never blocks."""
        if event.name not in self._event_names:
            return False
        while len(self._waiting) >= EVENTS_WAITING_MAX:
            self._waiting.popleft()
            self.dropped_events += 1
        self._waiting.append(event)
        return True

    def set_gpu_addresses(self, addresses: Mapping[str, str]) -> None:
        """Use the inventory's UUID -> PCI address; a new mapping object after a change."""
        if addresses is self._inventory_addresses:
            return
        self._inventory_addresses = addresses
        known = {address.lower(): uuid for uuid, address in addresses.items() if address}
        if known != self._addresses:
            self._addresses = known
            self.event_findings.reassign_devices(self._device_of)

    def address_of(self, device: str) -> str:
        """Return the PCI address of a GPU, by its UUID or its row of `probe_1s`; "" if unknown."""
        if device.startswith("gpu "):
            return device[4:]
        return next((address for address, uuid in self._addresses.items() if uuid == device), "")

    def _device_of(self, event: HealthEvent) -> str:
        device = event.device or "host"
        return (
            self._addresses.get(device.lower(), device) if event.name.startswith("gpu.") else device
        )

    def evaluate(self, tables: Mapping[str, TableSnapshot], now_ns: int) -> bool:
        """Evaluate waiting events and the latest readings. Return whether to report again."""
        event_findings = self.event_findings
        if not event_findings.watched_since_ns:
            event_findings.watched_since_ns = max(1, now_ns - WATCHED_BEFORE_NS)
            event_findings.changed = True
        while self._waiting:
            event = self._waiting.popleft()
            self.event_findings.add_event(event, self._device_of(event), now_ns)
        records = event_findings.records
        if records or self.reset_detector.is_needed:
            self._set_reset_watch(
                any(record.ends[0] is ClearedBy.RESET for record in records.values())
            )
        due = self._due(tables)
        if self.reset_detector in due and self.reset_detector.update(
            tables[self.reset_detector.table]
        ):
            event_findings.changed = True
        cleared = (
            [*event_findings.expire(self.reset_detector.last_reset_of, now_ns)] if records else []
        )
        if due or self._active_rules:
            cleared += self._evaluate_rules(due, tables, now_ns)
        if not (cleared or records or self._active_rules or self.findings):
            return False
        self.cleared.extend(cleared)
        return self._update_findings(now_ns) or bool(cleared)

    def _set_reset_watch(self, needed: bool) -> None:
        """Set whether a finding is active that a reset would end."""
        if needed != self.reset_detector.is_needed:
            self.reset_detector.is_needed = needed
            self._refresh_triggers({self.reset_detector.table})

    def _due(self, tables: Mapping[str, TableSnapshot]) -> list[RuleTrigger]:
        """Return the triggers that changed tables may concern."""
        due: list[RuleTrigger] = []
        for table in self.table_triggers:
            readings = tables.get(table.name)
            if readings is not None and readings is not table.last_readings:
                due += table.due(readings)
        return due

    def _evaluate_rules(
        self, due: Sequence[RuleTrigger], tables: Mapping[str, TableSnapshot], now_ns: int
    ) -> list[ClearedFinding]:
        """Evaluate the rules that are due, and expire others; return the cleared findings."""
        cleared: list[ClearedFinding] = []
        lookup = ReadingLookup(tables, now_ns)
        for rule_state in dict.fromkeys([*due, *self._active_rules]):
            if not isinstance(rule_state, RuleState):
                continue
            if rule_state in due:
                cleared += rule_state.evaluate(tables[rule_state.table], lookup, now_ns)
            else:
                cleared += rule_state.expire(now_ns)
        self._refresh_triggers({rule_state.table for rule_state in due})
        return cleared

    def _refresh_triggers(self, names: Collection[str]) -> None:
        """Refresh the triggers of the tables in *names*, and the list of active rules."""
        for table in self.table_triggers:
            if table.name in names:
                table.refresh()
        self._active_rules = [rule_state for rule_state in self.rule_states if rule_state.matched]

    def _update_findings(self, now_ns: int) -> bool:
        active = [finding for rule_state in self._active_rules for finding in rule_state.findings()]
        if self.event_findings.records:
            active += self.event_findings.findings(self.reset_detector.no_recovery_ns, now_ns)
        names = {finding.name for finding in active}
        active = [finding for finding in active if self._hidden_by.get(finding.name) not in names]
        before = [finding.change_key for finding in self.findings]
        active.sort(key=lambda finding: finding.sort_key)
        self.findings = tuple(active[:FINDINGS_MAX])
        self.left_out = len(active) - len(self.findings)
        return before != [finding.change_key for finding in self.findings]

    def once_well(self) -> dict[str, list[str]]:
        """Return per row the devices that were once well, to be kept over a restart."""
        return {
            state.row.name: sorted(state.once_well)
            for state in self.rule_states
            if state.row.once_otherwise
        }

    def restore(self, state: FindingsState, now_ns: int) -> None:
        """Restore the state that an earlier agent saved in this boot."""
        if now_ns - state.watched_until_ns <= DOWNTIME_NS_MAX:
            self.event_findings.watched_since_ns = state.watched_since_ns
        self.reset_detector.last_reset_ns.update(state.resets_ns)
        self.reset_detector.energy_joules.update(state.energy_joules)
        for event in state.events:
            last_ns = event.last_boottime_ns or event.boottime_ns
            self.event_findings.add_event(event, self._device_of(event), last_ns)
        for rule_state in self.rule_states:
            rule_state.once_well.update(state.once_well.get(rule_state.row.name, ()))
        self.event_findings.changed = False
