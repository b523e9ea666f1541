"""What is wrong with this host, by the policy, from its last readings and its events alone.

`observe` is for any thread, all else for the daemon's. The clock is handed in; a turn in which nothing of
interest changed costs some comparisons of bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

from ...fingerprints.policy import Ends, Policy
from ...fingerprints.wire.telemetry_pb2 import HealthEvent
from ..latest import Readings
from .finding import Cleared, Finding
from .kept import Kept
from .reported import Reported
from .resets import Resets
from .table import Looker, Table
from .watching import Lookup, Watch

#: Findings told at once; of more, the gravest.
FINDINGS_MAX = 64
#: Events that wait for the next turn; beyond, the oldest is forgotten and counted.
EVENTS_WAITING_MAX = 1024
#: What came so long before the first look is of now: an agent takes a moment to start.
WATCHED_BEFORE_NS = 60 * 1_000_000_000
#: An agent that was away for longer may have missed a reset.
AWAY_NS = 180 * 1_000_000_000
#: Findings that are over, kept to be shown.
CLEARED_MAX = 16


class Findings:
    """`findings`: gravest first, at most FINDINGS_MAX, `left_out` are more. `cleared`: the last that are over."""

    def __init__(self, policy: Policy, boot_id: bytes, driver: Callable[[], str] = str) -> None:
        """*driver*: the version of NVIDIA's driver, "" where there is none."""
        self.findings: tuple[Finding, ...] = ()
        self.left_out = 0
        self.dropped_events = 0
        self.cleared: deque[Cleared] = deque(maxlen=CLEARED_MAX)
        self.resets = Resets()
        self.reported = Reported(policy, boot_id, driver)
        self.watches: list[Watch] = []
        self.tables: list[Table] = []
        self._holding: list[Watch] = []  # those of whom something is wrong
        self._inventory: Mapping[str, str] = {}  # as it was told last
        self._addresses: dict[str, str] = {}
        self._waiting: deque[HealthEvent] = deque()
        self.use(policy)

    def use(self, policy: Policy) -> None:
        """Judge by *policy* from now on; what a row that stayed the same has seen is kept."""
        before = {watch.row.name: watch for watch in self.watches}
        self.watches = []
        for row in policy.rows:
            if row.when:
                old = before.get(row.name)
                if old is None or old.row != row:
                    same = old is not None and old.row.when == row.when
                    old = Watch(row, once_well=old.once_well if old and same else set())
                self.watches.append(old)
        lookers: list[Looker] = [self.resets, *self.watches]
        names = dict.fromkeys(each.table for each in lookers)
        self.tables = [Table(n, [each for each in lookers if each.table == n]) for n in names]
        self._settle(names)
        self.reported.use(policy)
        self._names = self.reported.names()
        self._hidden_by = {row.name: row.hidden_by for row in policy.rows if row.hidden_by}

    def observe(self, event: HealthEvent) -> None:
        """Take note of an event that is told. For any thread; never blocks."""
        if event.name not in self._names:
            return
        while len(self._waiting) >= EVENTS_WAITING_MAX:
            self._waiting.popleft()
            self.dropped_events += 1
        self._waiting.append(event)

    def know(self, addresses: Mapping[str, str]) -> None:
        """Take the inventory's word for which GPU (UUID) is at which PCI address: another mapping when that changed."""
        if addresses is self._inventory:
            return
        self._inventory = addresses
        known = {address.lower(): uuid for uuid, address in addresses.items() if address}
        if known != self._addresses:
            self._addresses = known
            self.reported.rename(self._device_of)

    def address_of(self, device: str) -> str:
        """Return the PCI address of a GPU, by its UUID or by its row of `probe_1s`; "" where none is known."""
        if device.startswith("gpu "):
            return device[4:]
        return next((at for at, uuid in self._addresses.items() if uuid == device), "")

    def _device_of(self, event: HealthEvent) -> str:
        device = event.device or "host"
        return (
            self._addresses.get(device.lower(), device) if event.name.startswith("gpu.") else device
        )

    def turn(self, tables: Mapping[str, Readings], now_ns: int) -> bool:
        """Take events and readings of now. Return whether there is anything to be told anew."""
        reported = self.reported
        if not reported.watched_since_ns:
            reported.watched_since_ns = max(1, now_ns - WATCHED_BEFORE_NS)
            reported.changed = True
        while self._waiting:
            event = self._waiting.popleft()
            self.reported.take(event, self._device_of(event), now_ns)
        records = reported.records
        if records or self.resets.closely:
            self._watch_closely(any(each.ends[0] is Ends.RESET for each in records.values()))
        due = self._due(tables)
        if self.resets in due and self.resets.look(tables[self.resets.table]):
            reported.changed = True
        over = [*reported.expire(self.resets.of, now_ns)] if records else []
        if due or self._holding:
            over += self._judge(due, tables, now_ns)
        if not (over or records or self._holding or self.findings):
            return False
        self.cleared.extend(over)
        return self._assemble(now_ns) or bool(over)

    def _watch_closely(self, closely: bool) -> None:
        """Note whether something stands that a reset would end."""
        if closely != self.resets.closely:
            self.resets.closely = closely
            self._settle({self.resets.table})

    def _due(self, tables: Mapping[str, Readings]) -> list[Looker]:
        """Return whom the tables that were read anew may concern."""
        due: list[Looker] = []
        for table in self.tables:
            readings = tables.get(table.name)
            if readings is not None and readings is not table.read:
                due += table.due(readings)
        return due

    def _judge(
        self, due: Sequence[Looker], tables: Mapping[str, Readings], now_ns: int
    ) -> list[Cleared]:
        """Let the rows that are due look; return what is over."""
        over: list[Cleared] = []
        others = Lookup(tables, now_ns)
        for watch in dict.fromkeys([*due, *self._holding]):
            if not isinstance(watch, Watch):
                continue
            if watch in due:
                over += watch.look(tables[watch.table], others, now_ns)
            else:
                over += watch.unseen(now_ns)
        self._settle({watch.table for watch in due})
        return over

    def _settle(self, names: Collection[str]) -> None:
        """Note who of these tables is to look at all that is read from now on, and who has found something."""
        for table in self.tables:
            if table.name in names:
                table.settle()
        self._holding = [watch for watch in self.watches if watch.held]

    def _assemble(self, now_ns: int) -> bool:
        standing = [finding for watch in self._holding for finding in watch.findings()]
        if self.reported.records:
            standing += self.reported.findings(self.resets.asks_for_nothing_ns, now_ns)
        names = {finding.name for finding in standing}
        standing = [one for one in standing if self._hidden_by.get(one.name) not in names]
        before = [finding.told for finding in self.findings]
        standing.sort(key=lambda finding: finding.weight)
        self.findings = tuple(standing[:FINDINGS_MAX])
        self.left_out = len(standing) - len(self.findings)
        return before != [finding.told for finding in self.findings]

    def once_well(self) -> dict[str, list[str]]:
        """Return which devices each row knows to have been well: to be kept over a restart."""
        return {w.row.name: sorted(w.once_well) for w in self.watches if w.row.once_otherwise}

    def restore(self, kept: Kept, now_ns: int) -> None:
        """Take over what the agent knew before it was started again at *now_ns*, in the same boot."""
        if now_ns - kept.watched_until_ns <= AWAY_NS:
            self.reported.watched_since_ns = kept.watched_since_ns
        self.resets.at_ns.update(kept.resets_ns)
        self.resets.energy_joules.update(kept.energy_joules)
        for event in kept.events:
            last_ns = event.last_boottime_ns or event.boottime_ns
            self.reported.take(event, self._device_of(event), last_ns)
        for watch in self.watches:
            watch.once_well.update(kept.once_well.get(watch.row.name, ()))
        self.reported.changed = False
