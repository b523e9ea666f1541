"""Which alarms there are: what each watches, from where to where, and what to do about it. To add one: a row."""

from __future__ import annotations

from collections.abc import Callable

from ..config import AggregatorConfig
from .alarms import Alarm
from .figures import Values


def _of(name: str) -> Callable[[Values], float | None]:
    return lambda values: values.get(name)


def _share(part: str, whole: str) -> Callable[[Values], float | None]:
    def share(values: Values) -> float | None:
        if part not in values or not values.get(whole):
            return None
        return values[part] / values[whole]

    return share


def _used(values: Values) -> float | None:
    free = _share("disk_free_bytes", "disk_bytes")(values)
    return None if free is None else 1.0 - free


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB"


def table(config: AggregatorConfig) -> tuple[Alarm, ...]:
    """Return the alarms, the gravest first."""
    return (*_of_receipts(config), *_of_the_disk(config), *_of_the_service(config))


def _of_receipts(config: AggregatorConfig) -> tuple[Alarm, ...]:
    return (
        Alarm(
            "aggregator.not_storing", _of("not_storing_seconds"), 0.0, 0.0, 5.0, 10.0,
            lambda v: f"nothing has been stored for {v['not_storing_seconds']:.0f} s: commits fail; agents "
            f"keep their readings and send them again; look at the log and at the disk under {config.data}",
            "a commit succeeds",
        ),
        Alarm(
            "aggregator.receipt_loss", _of("losing_hosts"), 0.0, 0.0, 0.0, 60.0,
            lambda v: f"readings are lost: the spools of {v['losing_hosts']:.0f} hosts dropped frames before "
            "we took them; SELECT host, words FROM ops.findings WHERE name = 'data.lost' names them; "
            "what holds up receipts here is aggregator.lag, .queue, .not_storing; else look at those hosts",
            "no agent has dropped frames for 5 minutes",
        ),
        Alarm(
            "aggregator.lag", _of("lag_seconds"), max(10.0, 4 * config.commit_seconds),
            max(5.0, 2 * config.commit_seconds), 15.0, 30.0,
            lambda v: f"receipts are {v['lag_seconds']:.0f} s late: more comes than is committed; "
            "ops.aggregator_history('lag_seconds') says since when; take load away (fewer hosts here), "
            "or give it a faster disk or processor",
            "the oldest frame waits for less than 5 s, for 30 s",
        ),
        Alarm(
            "aggregator.queue", _of("queue_ratio"), 0.5, 0.25, 10.0, 30.0,
            lambda v: f"the queue before the store is {v['queue_ratio']:.0%} full "
            f"({v.get('queue_bytes', 0.0) / 1e6:.0f} MB): agents are slowed down already, at 100 % they are "
            "not read; commits are too slow, see commit_duration_seconds in ops.aggregator",
            "it is below a quarter for 30 s",
        ),
    )  # fmt: skip


def _of_the_disk(config: AggregatorConfig) -> tuple[Alarm, ...]:
    data, old_seconds = config.data, max(60.0, 4 * config.ops_seconds)
    return (
        Alarm(
            "aggregator.disk_filling", _used, 0.90, 0.85, 0.0, 60.0,
            lambda v: f"the disk under {data} is {_used(v) or 0.0:.0%} full, {_gigabytes(v['disk_free_bytes'])} "
            f"free, {_gigabytes(v.get('database_bytes', 0.0))} are the live store: when it is full nothing "
            "is stored; make room, or lower retention_hours",
            "it is below 85 % for a minute",
        ),
        Alarm(
            "aggregator.disk_slow", _of("commit_median_seconds"), 2.0, 1.0, 30.0, 60.0,
            lambda v: f"half of the commits take {v['commit_median_seconds']:.1f} s and more: the disk under {data} is "
            "slow (iostat -x 1), or shared with something that writes a lot; receipts wait for it",
            "a commit takes less than 1 s, for a minute",
        ),
        Alarm(
            "aggregator.snapshot_old", _of("snapshot_age_seconds"), old_seconds, 2 * config.ops_seconds,
            0.0, 0.0,
            lambda v: f"the operators' file is {v['snapshot_age_seconds']:.0f} s old: SQL over it tells of "
            "then; the log says why it is not written",
            "it is written again",
        ),
    )  # fmt: skip


def _of_the_service(config: AggregatorConfig) -> tuple[Alarm, ...]:
    return (
        Alarm(
            "aggregator.judge_slow", _of("judge_seconds"), max(2.0, 2 * config.judge_seconds),
            max(1.0, config.judge_seconds), 15.0, 60.0,
            lambda v: f"judging all hosts takes {v['judge_seconds']:.1f} s, meant is every "
            f"{config.judge_seconds:g} s: scores are older than they should be; the processor is short, "
            "or the fleet too large for it",
            "judging is in time for a minute",
        ),
        Alarm(
            "aggregator.loop_stalled", _of("loop_lag_seconds"), 2.0, 0.5, 0.0, 30.0,
            lambda v: f"the service stood still for {v['loop_lag_seconds']:.1f} s: nobody was answered "
            "meanwhile; the machine swaps, was stopped, or is short of processor time",
            "it has turned without a stop for 30 s",
        ),
        Alarm(
            "aggregator.descriptors", _share("open_descriptors", "descriptors_max"), 0.85, 0.75, 0.0, 60.0,
            lambda v: f"{v['open_descriptors']:.0f} of {v['descriptors_max']:.0f} files and sockets are open: "
            "at the limit no host can connect; raise LimitNOFILE in the unit (or ulimit -Hn) and restart",
            "less than three quarters are open, for a minute",
        ),
        Alarm(
            "aggregator.hosts", _of("hosts_ratio"), 0.95, 0.90, 0.0, 60.0,
            lambda v: f"{v['hosts']:.0f} hosts are registered, hosts_max = {config.hosts_max}: a further one "
            "is refused at the limit; raise hosts_max",
            "less than 90 % of it are registered, for a minute",
        ),
    )  # fmt: skip
