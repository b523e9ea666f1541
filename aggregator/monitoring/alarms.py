"""Alarms of the aggregator about itself: figures in, raised and cleared findings out. No I/O, no clock.

An alarm is raised when its figure has been above `above` for `hold_seconds`, and cleared when it has been at or below `below`
for `rest_seconds`. Between the two it keeps its state. An unknown figure also keeps it: missing is neither good nor bad.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..config import AggregatorConfig
from ..store.parquet.retention import free_bytes_target
from ..store.store import Store
from .metrics import Values

_NS = 1_000_000_000

#: Prefix of their names.
ALARMS = "aggregator."
#: The live file should contain five minutes of closed readings; three times that is too much.
HISTORY_LATE_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Alarm:
    """A condition to report."""

    name: str  # of its finding
    figure: Callable[[Values], float | None]
    above: float
    below: float
    hold_seconds: float
    rest_seconds: float
    message: Callable[[Values], str]  # problem and remedy
    clears_when: str


@dataclass(frozen=True, slots=True)
class AlarmRaised:
    """An alarm became active."""

    name: str
    message: str
    clears_when: str


@dataclass(frozen=True, slots=True)
class AlarmCleared:
    """An alarm was cleared."""

    name: str


@dataclass(slots=True)
class _AlarmState:
    is_active: bool = False
    since_ns: int | None = None  # when the figure crossed the bound that would change `is_active`


@dataclass(slots=True)
class Alarms:
    """The state of all alarms. Use it in one thread."""

    table: Sequence[Alarm]
    _states: dict[str, _AlarmState] = field(default_factory=dict)
    _messages: dict[str, str] = field(default_factory=dict)

    def step(self, values: Values, now_ns: int) -> list[AlarmRaised | AlarmCleared]:
        """Return the changes at *now_ns*, by a clock that does not jump."""
        changed: list[AlarmRaised | AlarmCleared] = []
        for alarm in self.table:
            value = alarm.figure(values)
            if value is not None and (change := self._step(alarm, value, values, now_ns)):
                changed.append(change)
        return changed

    def _step(
        self, alarm: Alarm, value: float, values: Values, now_ns: int
    ) -> AlarmRaised | AlarmCleared | None:
        state = self._states.setdefault(alarm.name, _AlarmState())
        turning = value <= alarm.below if state.is_active else value > alarm.above
        if not turning:
            state.since_ns = None
        elif state.since_ns is None:
            state.since_ns = now_ns
        wait_seconds = alarm.rest_seconds if state.is_active else alarm.hold_seconds
        turned = state.since_ns is not None and now_ns - state.since_ns >= wait_seconds * _NS
        if turned:
            state.is_active, state.since_ns = not state.is_active, None
        # A good figure would read "0 s late" until the alarm is cleared, so the last bad figure stays.
        if state.is_active and (turned or not turning):
            self._messages[alarm.name] = alarm.message(values)
        if not turned:
            return None
        if state.is_active:
            return AlarmRaised(alarm.name, self._messages[alarm.name], alarm.clears_when)
        del self._messages[alarm.name]
        return AlarmCleared(alarm.name)

    @property
    def messages(self) -> tuple[str, ...]:
        """Return the messages of the active alarms, as of the last step."""
        return tuple(self._messages[a.name] for a in self.table if a.name in self._messages)

    def active(self) -> dict[str, bool]:
        """Return every alarm's name, and whether it is active."""
        return {alarm.name: alarm.name in self._messages for alarm in self.table}


# The alarms: figure, bounds, and remedy. To add an alarm, add a row.


def _of(name: str) -> Callable[[Values], float | None]:
    return lambda values: values.get(name)


def _share(part: str, whole: str) -> Callable[[Values], float | None]:
    def share(values: Values) -> float | None:
        if part not in values or not values.get(whole):
            return None
        return values[part] / values[whole]

    return share


def _free_bytes_wanted(config: AggregatorConfig, values: Values) -> float:
    total = int(values["disk_bytes"])
    return free_bytes_target(total, config.disk_free_bytes_min, config.disk_free_share_min)


def _filling(config: AggregatorConfig) -> Callable[[Values], float | None]:
    """Return target over actual free space; above 1 history removes files."""

    def share(values: Values) -> float | None:
        if not values.get("disk_bytes") or "disk_free_bytes" not in values:
            return None
        return _free_bytes_wanted(config, values) / max(1.0, values["disk_free_bytes"])

    return share


def _bytes_text(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"


def table(config: AggregatorConfig, store: Store) -> tuple[Alarm, ...]:
    """Return the alarms, the gravest first. *store* is used only for reasons in messages."""
    return (
        *_of_receipts(config, store),
        *_of_the_disk(config),
        *_of_history(config, store),
        *_of_the_service(config),
    )


def _of_receipts(config: AggregatorConfig, store: Store) -> tuple[Alarm, ...]:
    return (
        Alarm(
            "aggregator.stored_lost", _of("store_lost"), 0.0, 0.0, 0.0, 0.0,
            lambda v: f"readings that had been receipted are gone from the store: {store.loss_message}; "
            "a backup may have them: gangline admin restore",
            "the aggregator restarts; reported once",
        ),
        Alarm(
            "aggregator.not_storing", _of("not_storing_seconds"), 0.0, 0.0, 5.0, 10.0,
            lambda v: f"nothing has been stored for {v['not_storing_seconds']:.0f} s: commits fail; agents "
            f"keep their readings and send them again; look at the log and at the disk under {config.data}",
            "a commit succeeds",
        ),
        Alarm(
            "aggregator.receipt_loss", _of("losing_hosts"), 0.0, 0.0, 0.0, 60.0,
            lambda v: f"readings are lost: the spools of {v['losing_hosts']:.0f} hosts dropped frames before the aggregator received them; SELECT host, message FROM ops.findings WHERE name = 'data.lost' names them; receipts here are delayed by aggregator.lag, .queue, .not_storing; else look at those hosts",
            "no agent has dropped frames for 5 minutes",
        ),
        Alarm(
            "aggregator.refused_agents", _of("refused_agents"), 0.0, 0.0, 0.0, 0.0,
            lambda v: f"{v['refused_agents']:.0f} agents are refused, and their readings wait in their spools: SELECT subject, message FROM ops.findings WHERE name = 'agent.refused' AND is_active names them and the reasons, as does the log",
            "no call of an agent has been refused for 5 minutes",
        ),
        Alarm(
            "aggregator.lag", _of("lag_seconds"), max(10.0, 4 * config.commit_seconds),
            max(5.0, 2 * config.commit_seconds), 15.0, 30.0,
            lambda v: f"receipts are {v['lag_seconds']:.0f} s late: more data arrives than is committed; "
            "ops.aggregator_history('lag_seconds') says since when; reduce the load (fewer hosts "
            "here), or use a faster disk or CPU",
            "the oldest frame waits for less than 5 s, for 30 s",
        ),
        Alarm(
            "aggregator.queue", _of("queue_ratio"), 0.5, 0.25, 10.0, 30.0,
            lambda v: f"the store's queue is {v['queue_ratio']:.0%} full "
            f"({v.get('queue_bytes', 0.0) / 1e6:.0f} MB): agents are already slowed down; at 100 % "
            "they are not read; commits are too slow, see commit_duration_seconds in "
            "ops.aggregator",
            "it is below a quarter for 30 s",
        ),
    )  # fmt: skip


def _of_the_disk(config: AggregatorConfig) -> tuple[Alarm, ...]:
    data = config.data
    old_seconds = max(60.0, 12 * config.ops_seconds) if config.ops_seconds else math.inf
    then = (
        "the oldest readings in Parquet go" if config.history_on else "little is left to store in"
    )
    return (
        Alarm(
            "aggregator.disk_filling", _filling(config), 0.5, 0.4, 0.0, 60.0,
            lambda v: f"the disk under {data} has {_bytes_text(v['disk_free_bytes'])} free, "
            f"{_bytes_text(v.get('database_bytes', 0.0))} are the live store: with less than "
            f"{_bytes_text(_free_bytes_wanted(config, v))} {then}; add space, or lower "
            "segments_hours",
            "2.5 times the required free space is free, for a minute",
        ),
        Alarm(
            "aggregator.disk_slow", _of("commit_median_seconds"), 2.0, 1.0, 30.0, 60.0,
            lambda v: f"half of the commits take {v['commit_median_seconds']:.1f} s and more: the disk under {data} is "
            "slow (iostat -x 1), or shared with a heavy writer; receipts wait for it",
            "a commit takes less than 1 s, for a minute",
        ),
        Alarm(
            "aggregator.snapshot_old", _of("snapshot_age_seconds"), old_seconds, 2 * config.ops_seconds,
            2 * config.ops_seconds, 0.0,
            lambda v: f"the operators' file is {v['snapshot_age_seconds']:.0f} s old: SQL over it shows the state of that time; the log says why it is not written",
            "it is written again",
        ),
    )  # fmt: skip


def _history_late(values: Values) -> float | None:
    """Return how long closed readings wait for their export, or the age of history's last check."""
    names = "history_lag_seconds", "history_turn_age_seconds"
    known = [values[name] for name in names if name in values]
    return max(known, default=None)


def _of_history(config: AggregatorConfig, store: Store) -> tuple[Alarm, ...]:
    return (
        Alarm(
            "aggregator.history_late", _history_late, HISTORY_LATE_SECONDS, HISTORY_LATE_SECONDS / 2, 300.0, 60.0,
            lambda v: f"closed readings wait for {(_history_late(v) or 0.0) / 60:.0f} min to leave the live file for "
            f"Parquet ({v.get('history_waiting', 0.0):.0f} five-minute tables); when it holds "
            f"{_bytes_text(config.live_bytes_max)}, its oldest are dropped; "
            f"{store.history.failing or 'the log shows failures; if there are none, CPU or disk is overloaded'}",
            "closed readings leave within 8 minutes again",
        ),
        Alarm(
            "aggregator.history_failing", _of("history_failing"), 0.0, 0.0, 150.0, 60.0,
            lambda v: f"history fails: {store.history.failing}; retried each minute; readings stay in the live "
            f"file meanwhile, until it holds {_bytes_text(config.live_bytes_max)}",
            "what failed succeeds, for a minute",
        ),
    )  # fmt: skip


def _of_the_service(config: AggregatorConfig) -> tuple[Alarm, ...]:
    return (
        Alarm(
            "aggregator.judge_slow", _of("judge_seconds"), max(2.0, 2 * config.judge_seconds),
            max(1.0, config.judge_seconds), 15.0, 60.0,
            lambda v: f"judging all hosts takes {v['judge_seconds']:.1f} s, the target is every "
            f"{config.judge_seconds:g} s: scores are late; the CPU is overloaded, or the fleet too "
            "large for it",
            "judging is in time for a minute",
        ),
        Alarm(
            "aggregator.loop_stalled", _of("loop_lag_seconds"), 2.0, 0.5, 0.0, 30.0,
            lambda v: f"the service stalled for {v['loop_lag_seconds']:.1f} s: no call was answered meanwhile; the machine swaps, was stopped, or lacks CPU time",
            "it has run without a stall for 30 s",
        ),
        Alarm(
            "aggregator.descriptors", _share("open_descriptors", "descriptors_max"), 0.85, 0.75, 0.0, 60.0,
            lambda v: f"{v['open_descriptors']:.0f} of {v['descriptors_max']:.0f} files and sockets are open: "
            "at the limit no host can connect; raise LimitNOFILE in the unit (or ulimit -Hn) and restart",
            "less than three quarters are open, for a minute",
        ),
        Alarm(
            "aggregator.hosts", _of("hosts_ratio"), 0.95, 0.90, 0.0, 60.0,
            lambda v: f"{v['hosts']:.0f} hosts are registered, hosts_max = {config.hosts_max}: at the limit further hosts are rejected; raise hosts_max",
            "less than 90 % of it are registered, for a minute",
        ),
    )  # fmt: skip
