"""Self-monitoring of the aggregator: a thread that collects figures, evaluates alarms and serves /metrics.

It is a separate thread, so it still reports when the event loop or a disk hangs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence

from prometheus_client.core import InfoMetricFamily, Metric

from ...contract.server.http_server import HttpServer
from ...contract.server.metric_families import exposition
from ..fleet.fleet import Fleet
from ..model import AGGREGATOR_HOST, Finding
from ..store.rows import OwnHealthReading
from . import alarms, metrics
from .alarms import AlarmCleared, AlarmRaised, Alarms
from .probes import ResourceUsage

log = logging.getLogger(__name__)

POLL_SECONDS = 5.0
#: Every n-th poll is stored.
STORED_POLLS = 3
#: More frequent requests for /metrics get the same figures.
PULL_SECONDS_MIN = 1.0
CLOSE_SECONDS_MAX = 2.0

DESCRIPTIONS = {
    **metrics.FIGURE_DESCRIPTIONS,
    "commit_median_seconds": "median commit latency since the last reading",
    "commit_p99_seconds": "99th percentile of it",
}

AlarmChanges = Sequence[AlarmRaised | AlarmCleared]
NS = 1_000_000_000


class SelfMonitor:
    """The aggregator's figures and alarms. `messages` is thread-safe, the rest is not."""

    def __init__(
        self,
        sources: metrics.MetricSources,
        usage: Callable[[int], ResourceUsage],
        wall_ns: Callable[[], int],
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        about: dict[str, str] | None = None,
        hosts: Callable[[int], Sequence[Metric]] = lambda _: (),
    ) -> None:
        """*usage*: the resource usage at a wall time (ns). *hosts*: the series of hosts then."""
        self._hosts = hosts
        self._sources, self._usage = sources, usage
        self._wall_ns, self._monotonic_ns = wall_ns, monotonic_ns
        self._about = about or {}
        self._alarms = Alarms(alarms.table(sources.config, sources.store))
        self._poll_count = 0
        self._commits: list[int] = []
        self._pulled: tuple[int, metrics.Values] | None = None
        #: Messages of the active alarms.
        self.messages: tuple[str, ...] = ()

    def poll(self) -> AlarmChanges:
        """Collect all figures, store them at every STORED_POLLS-th poll; return changed alarms."""
        values = self._pull()
        values |= self._latency()
        if self._poll_count % STORED_POLLS == 0:
            self._sources.store.submit_own_health(stored_readings(values, self._wall_ns()))
        self._poll_count += 1
        changes = self._alarms.step(values, self._monotonic_ns())
        self.messages = self._alarms.messages
        return changes

    def _pull(self) -> metrics.Values:
        now_ns = self._wall_ns()
        values = metrics.pull(metrics.MetricsContext(self._sources, self._usage(now_ns), now_ns))
        self._pulled = self._monotonic_ns(), values
        return values

    def _latency(self) -> metrics.Values:
        """Return latencies of the commits since the previous poll; empty without commits."""
        histogram = self._sources.store.commit_seconds
        before, self._commits = self._commits, list(histogram.counts)
        median, p99 = histogram.quantile(0.5, before), histogram.quantile(0.99, before)
        if median is None or p99 is None:
            return {}
        return {"commit_median_seconds": median, "commit_p99_seconds": p99}

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the exposition in the accepted format, and its media type."""
        pulled = self._pulled
        if pulled is None or self._monotonic_ns() - pulled[0] >= PULL_SECONDS_MIN * NS:
            values = self._pull()
        else:
            values = pulled[1]
        shown = metrics.families(values, self._sources, self._alarms.active())
        about = InfoMetricFamily(metrics.PREFIX.rstrip("_"), "identity of this aggregator")
        about.add_metric([], self._about)
        return exposition([*shown, about, *self._hosts(self._wall_ns())], accept)


def stored_readings(values: metrics.Values, now_ns: int) -> list[OwnHealthReading]:
    """Return rows of `own_health`."""
    return [(now_ns, name, value, DESCRIPTIONS[name]) for name, value in values.items()]


def record_alarms(fleet: Fleet, changes: AlarmChanges, now_ns: int) -> None:
    """Add raised alarms as findings, and clear ended ones. Call this in the event loop's thread."""
    for change in changes:
        if isinstance(change, AlarmRaised):
            message, clears_when = change.message, change.clears_when
            fleet.add_finding(
                Finding(AGGREGATOR_HOST, change.name, "", message, now_ns, clears_when=clears_when)
            )
            log.warning("%s: %s", change.name, change.message)
        else:
            fleet.clear_finding(AGGREGATOR_HOST, change.name)
            log.warning("%s: cleared", change.name)


class MonitorThread:
    """Runs `SelfMonitor` and the /metrics server in a thread."""

    def __init__(
        self,
        monitor: SelfMonitor,
        on_changes: Callable[[AlarmChanges], None],
        server: HttpServer | None,
        poll_logs: Callable[[], None] = lambda: None,
    ) -> None:
        """*on_changes*: gets changed alarms in this thread. *poll_logs*: called after each poll."""
        self._monitor, self._on_changes, self._server = monitor, on_changes, server
        self._poll_logs = poll_logs
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="own-health", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, within CLOSE_SECONDS_MAX. Never raises."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(CLOSE_SECONDS_MAX)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        if self._server is not None:
            await self._server.start()
        try:
            while not self._stop.is_set():
                self._poll()
                try:
                    await asyncio.wait_for(self._stop.wait(), POLL_SECONDS)
                except TimeoutError:
                    continue
        finally:
            if self._server is not None:
                await self._server.close()

    def _poll(self) -> None:
        try:
            self._on_changes(self._monitor.poll())
            self._poll_logs()
        except Exception:
            log.exception("self-monitoring failed; the next attempt is in %g s", POLL_SECONDS)
