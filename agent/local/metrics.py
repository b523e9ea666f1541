"""`/metrics` of this host: an optional thread that serves Prometheus scrapes.

It cannot block the daemon: it reads immutable copies, and renders each of the two formats at most
once a second, regardless of the number of clients.
"""

from __future__ import annotations

import logging
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ...contract import metrics_http
from ...contract.metrics_http import (
    ExpositionFormat,
    Family,
    format_labels,
    format_number,
    negotiate_format,
    render_exposition,
)
from ...contract.signal import PERIOD_SECONDS, Kind, Signal
from ...contract.signals import SIGNALS, TABLES
from ..clock import Clock
from ..config import AgentConfig
from ..events import EventPublisher
from ..latest import LatestReadings, TableSnapshot
from ..registration import Registration, version
from .server import CpuBudget, UnixListener

if TYPE_CHECKING:
    from .dcgm_metrics import DcgmExposition

# Order of the series under `metrics_series_max`: fixed, so that a host always exposes the same
# series. The named signals come first; then in the catalog's order errors and events, states, other
# counters, gauges; last, device kinds with hundreds of rows per host (links, cores, PCIe functions)
# and kinds that come and go with jobs. Counter epochs are not exposed: Prometheus detects restarts.

#: Signals exposed first: failures, slowness, then the most wanted others.
METRIC_PRIORITY = (
    # Failures.
    "gpu.probe_hung_seconds",
    "probe.hung_seconds",
    "probe.state",
    "gpu.lost_state",
    "gpu.recovery_action_state",
    "gpu.ecc_uncorrected_volatile_errors",
    "gpu.remap_failed_state",
    "gpu.remap_pending_state",
    "gpu.calls_failed_errors",
    "gpu_fabric.health_summary_code",
    "kernel_log.incidents_count",
    "host.oom_kills_count",
    "tasks.blocked_gpu_longest_seconds",
    "tasks.blocked_longest_seconds",
    "tasks.hung_detected_count",
    "rdma.port_state",
    "rdma.link_downed_events",
    "rdma.symbol_errors",
    "rdma.receive_errors",
    "edac.uncorrected_errors",
    "nvme.critical_warning_flags",
    "nvme.media_errors",
    "filesystem.read_only_state",
    "service.running_state",
    # Slowness.
    "gpu.clock_event_reasons_flags",
    "gpu.sm_clock_hertz",
    "gpu.power_watts",
    "gpu.temperature_celsius",
    "gpu.memory_temperature_celsius",
    "gpu.utilization_ratio",
    "gpu.violation_power_nanoseconds",
    "gpu.violation_thermal_nanoseconds",
    "rdma.transmit_wait_count",
    "rdma.ack_timeout_errors",
    "rdma.packet_sequence_errors",
    "rdma.out_of_sequence_packets",
    "host.pressure_cpu_some_ratio",
    "host.pressure_memory_full_ratio",
    "host.pressure_io_full_ratio",
    "host.memory_available_bytes",
    "host.cpu_idle_ratio",
    "host.cpu_iowait_ratio",
    "host.cpu_steal_ratio",
    "clock.synchronised_state",
    "clock.offset_seconds",
    # Trustworthiness of the agent.
    "agent.unacknowledged_frames",
    "agent.spool_dropped_frames",
    "agent.spool_write_errors",
    "agent.refused_frames",
    "agent.dropped_events",
    "agent.left_out_count",
    "agent.reconnects_count",
    "agent.cpu_seconds",
    "agent.memory_bytes",
    "collector.outcome_state",
    # Others.
    "gpu.memory_used_bytes",
    "gpu.processes_count",
    "gpu.energy_joules",
    "rdma.received_bytes",
    "rdma.transmitted_bytes",
    "gpu.pcie_replays_count",
    "gpu.pcie_width_lanes",
    "gpu.pcie_generation_number",
    "net.carrier_state",
)
#: Series reserved for signals that have rows only during a fault: their rows displace nothing.
RESERVED_SERIES: Mapping[str, int] = {
    "gpu.probe_hung_seconds": 8,
    "probe.hung_seconds": 8,
    "probe.state": 8,
}
#: Device kinds whose rows would fill most of the exposition.
_NUMEROUS = frozenset(("nvlink", "c2c", "cpu", "collector", "pcie"))
_SHORT_LIVED = frozenset(("gpu_process",))


def _is_shown(signal: Signal) -> bool:
    return signal.kind is not Kind.EVENT and signal.column != "counter_epoch_count"


def _kind_rank(signal: Signal) -> int:
    if signal.unit in ("errors", "events"):
        return 0
    if signal.kind is Kind.STATE:
        return 1
    return 2 if signal.kind is Kind.COUNTER else 3


def _signals_by_priority() -> tuple[Signal, ...]:
    ranks = {name: rank for rank, name in enumerate(METRIC_PRIORITY)}
    return tuple(
        sorted(
            (signal for signal in SIGNALS if _is_shown(signal)),
            key=lambda signal: (
                ranks.get(signal.name, len(ranks)),
                signal.device_kind in _SHORT_LIVED,
                signal.device_kind in _NUMEROUS,
                _kind_rank(signal),
            ),
        )
    )


#: Every signal that may be exposed, the most important first.
SIGNALS_BY_PRIORITY: tuple[Signal, ...] = _signals_by_priority()


# Names of the families (`contract/metrics_http.py`): `gpu.sm_clock_hertz` of the catalog becomes
# `gangline_gpu_sm_clock_hertz`. Three rules of the format change names: a counter ends in `_total`;
# time is in seconds; `_count`, which the format reserves for histograms, is removed.
PREFIX = "gangline_"
#: Unit -> decimal digits of a second.
_SECOND_DIGITS = {"milliseconds": 3, "microseconds": 6, "nanoseconds": 9}
#: Endings of names that are not units.
_NO_UNITS = frozenset(("", "count", "state", "flags", "code", "number"))


def name_of(signal: Signal) -> str:
    """Return the family's name: the signal's name with units of the format."""
    name = PREFIX + signal.name.replace(".", "_")
    if signal.unit in _SECOND_DIGITS:
        return name.removesuffix(signal.unit) + "seconds"
    return name.removesuffix("_count") if signal.unit == "count" else name


def unit_of(signal: Signal) -> str:
    """Return the unit at the end of the family's name; "" without a unit."""
    if signal.unit in _SECOND_DIGITS:
        return "seconds"
    return "" if signal.unit in _NO_UNITS else signal.unit


def family_of(signal: Signal, samples: Sequence[tuple[str, str]]) -> Family:
    """Return the signal's family with *samples*."""
    kind = "counter" if signal.kind is Kind.COUNTER else "gauge"
    return Family(name_of(signal), kind, unit_of(signal), signal.description, samples)


def value_of(signal: Signal, value: float) -> str:
    """Return a reading in the format's notation; an integer keeps all of its digits."""
    digits = _SECOND_DIGITS.get(signal.unit, 0)
    if isinstance(value, int):
        if not digits:
            return str(value)
        whole, part = divmod(value, 10**digits)
        return f"{whole}.{part:0{digits}}"
    return format_number(value / 10**digits if digits else value)


SECOND_NS = 1_000_000_000
#: A table is left out when its readings are older than this number of its periods plus the slack.
STALE_PERIODS = 3
STALE_SLACK_SECONDS = 2
#: Number of series that this module adds.
META_SERIES = 3

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_KEY_PART = re.compile(r"(?P<word>link|c2c|gi|ci|)(?P<number>[0-9]{1,10})")
_PART_LABELS = {
    "link": "link",
    "c2c": "link",
    "gi": "gpu_instance",
    "ci": "compute_instance",
    "": "pid",
}
#: Kinds with a single device per host, so that the key adds nothing.
_ONE_PER_HOST = frozenset(
    (
        "agent",
        "clock",
        "host",
        "kernel_log",
        "kubelet",
        "nvml_events",
        "rtnetlink",
        "settings",
        "tasks",
    )
)
#: Label of the key by kind. The default is `device`.
_KEY_LABELS = {
    "collector": "collector",
    "filesystem": "mountpoint",
    "nfs": "mountpoint",
    "lustre": "mountpoint",
    "lustre_target": "target",
    "service": "service",
}
#: Kind -> the kind's name in the inventory, if different.
_INVENTORIED_AS = {"nic": "net", "link": "net", "bond": "net"}

#: (kind, key) of a device -> its attributes in the inventory.
Attributes = Mapping[tuple[str, str], Mapping[str, str]]


def labels_for(kind: str, key: str, attributes: Attributes) -> dict[str, str]:
    """Return the labels of a device: UUID, PCI address, name and port, never an index alone."""
    first, _, rest = key.partition("/")
    if kind in _ONE_PER_HOST:
        return {}
    if first.startswith(("GPU-", "MIG-")):
        return {"uuid": first} | _address("gpu", first, attributes) | _part_labels(rest)
    if _PCI_ADDRESS.fullmatch(key):
        return {"pci_address": key}
    if kind == "rdma":
        return {"device": first, "port": rest} | _address(kind, key, attributes)
    inventoried = _INVENTORIED_AS.get(kind, kind)
    return {_KEY_LABELS.get(kind, "device"): key} | _address(inventoried, key, attributes)


def _part_labels(rest: str) -> dict[str, str]:
    """Return the labels for the key after a GPU's UUID: `link3`, `gi1/ci0/PID`."""
    parts = rest.split("/") if rest else []
    matches = [match for part in parts if (match := _KEY_PART.fullmatch(part))]
    labels = {_PART_LABELS[match["word"]]: match["number"] for match in matches}
    return labels if len(labels) == len(parts) else {"device": rest}


def _address(kind: str, key: str, attributes: Attributes) -> dict[str, str]:
    """Return the PCI address if the inventory has it; a MIG device has its GPU's address."""
    known = attributes.get((kind, key)) or attributes.get(("mig", key)) or {}
    address = known.get("pci_address", "")
    if not address and (gpu := known.get("gpu", "")):
        address = attributes.get(("gpu", gpu), {}).get("pci_address", "")
        return {"gpu_uuid": gpu} | ({"pci_address": address} if address else {})
    return {"pci_address": address} if address else {}


@dataclass(slots=True)
class _ValidCells:
    """The cells of a table that were ever valid since its set of devices changed."""

    devices: tuple[str, ...]
    signal_ids: tuple[int, ...]
    valid: bytes

    def count(self, signal_id: int) -> int:
        rows = len(self.devices)
        start = self.signal_ids.index(signal_id) * rows if signal_id in self.signal_ids else -1
        return self.valid.count(1, start, start + rows) if start >= 0 else 0


class Exposition:
    """Selects and names the series. For a single thread; it reads `LatestReadings` without a lock.

    A signal is exposed for all of its devices or for none. Every device that ever had a value
    counts: a device without a value keeps its capacity, so that series do not come and go.
    """

    def __init__(
        self,
        latest: LatestReadings,
        boottime_ns: Callable[[], int],
        attributes: Callable[[], Attributes],
        info_labels: Mapping[str, str],
        series_max: int,
        dcgm: DcgmExposition | None = None,
    ) -> None:
        """*attributes* returns the devices' attributes; *info_labels*: agent version and host.

        *dcgm* adds dcgm-exporter's metrics, beyond *series_max*.
        """
        self._dcgm = dcgm
        self._latest = latest
        self._boottime_ns = boottime_ns
        self._attributes = attributes
        self._info_labels = dict(info_labels)
        self._series_max = series_max
        self._valid_cells: dict[str, _ValidCells] = {}

    def families(self) -> list[Family]:
        """Return the families to expose, with at most `series_max` samples."""
        now_ns, tables = self._boottime_ns(), dict(self._latest.tables)
        for readings in tables.values():
            self._remember_valid(readings)
        chosen, left_out = self._select_signals()
        fresh = {name: table for name, table in tables.items() if _is_fresh(table, now_ns)}
        labelled = _Labels(self._attributes())
        shown = (self._family(signal, fresh.get(signal.table), labelled) for signal in chosen)
        families = [*self._meta_families(left_out, len(tables) - len(fresh)), *filter(None, shown)]
        return [*families, *self._dcgm.families(tables)] if self._dcgm else families

    def _remember_valid(self, readings: TableSnapshot) -> None:
        """Add the valid cells; another set of devices starts over."""
        known = self._valid_cells.get(readings.table)
        shape = (readings.devices, readings.signal_ids)
        if known is None or (known.devices, known.signal_ids) != shape:
            self._valid_cells[readings.table] = _ValidCells(*shape, readings.valid)
        elif known.valid != readings.valid:
            both = int.from_bytes(known.valid, "little") | int.from_bytes(readings.valid, "little")
            known.valid = both.to_bytes(len(known.valid), "little")

    def _select_signals(self) -> tuple[list[Signal], int]:
        """Return the signals to expose and the number of series left out.

        A signal whose series do not all fit is left out, and the next signal is tried.
        """
        capacity, left_out, chosen = self._series_max - META_SERIES, 0, list[Signal]()
        for signal in SIGNALS_BY_PRIORITY:
            cells = self._valid_cells.get(signal.table)
            count = cells.count(signal.signal_id) if cells else 0
            series = max(count, RESERVED_SERIES.get(signal.name, 0))
            if series > capacity:
                left_out += count
            else:
                capacity -= series
                chosen += [signal] if count else []
        return chosen, left_out

    def _family(
        self, signal: Signal, readings: TableSnapshot | None, labelled: _Labels
    ) -> Family | None:
        if readings is None:
            return None
        samples = [
            (labelled(signal.device_kind, device), value_of(signal, value))
            for device, value in readings.values(signal.signal_id)
        ]
        return family_of(signal, samples) if samples else None

    def _meta_families(self, left_out: int, stale: int) -> Iterator[Family]:
        yield Family(
            "gangline_agent",
            "info",
            "",
            "identity of this agent",
            [(format_labels(self._info_labels), "1")],
        )
        help_text = "series left out because of metrics_series_max, the least important first"
        yield Family(
            "gangline_metrics_left_out_series", "gauge", "", help_text, [("", str(left_out))]
        )
        help_text = "tables left out because their last readings are old"
        yield Family("gangline_metrics_stale_tables", "gauge", "", help_text, [("", str(stale))])


class _Labels:
    """Cached label texts per device of an exposition."""

    def __init__(self, attributes: Attributes) -> None:
        self._attributes = attributes
        self._cache: dict[tuple[str, str], str] = {}

    def __call__(self, kind: str, key: str) -> str:
        labels = self._cache.get((kind, key))
        if labels is None:
            labels = format_labels(labels_for(kind, key, self._attributes))
            self._cache[kind, key] = labels
        return labels


def _is_fresh(readings: TableSnapshot, now_ns: int) -> bool:
    signals = TABLES.get(readings.table)
    if not signals:
        return False
    seconds = STALE_PERIODS * PERIOD_SECONDS[signals[0].pace] + STALE_SLACK_SECONDS
    return now_ns - readings.boottime_ns <= seconds * SECOND_NS


#: A further connection closes the oldest one, so that a slow client cannot block others.
CONNECTIONS_MAX = 16
#: From accepting a connection to the last byte of the response.
CONNECTION_SECONDS_MAX = 10.0
#: Period of trying again after the address could not be opened (a port in use).
LISTEN_RETRY_SECONDS = 30.0
RENDER_SECONDS_MIN = 1.0
#: All clients share one CPU budget, because TCP gives no caller identity.
ALL_CLIENTS = 0
#: Mode of a Unix socket: for the agent's user and group.
SOCKET_MODE = 0o660
_CLOSE_SECONDS_MAX = 1.0
_READ_BYTES = 4096
#: Bytes read and discarded after the request: closing a socket with unread bytes resets the
#: connection, and the client would lose the response.
_DRAINED_BYTES_MAX = 1 << 20

log = logging.getLogger(__name__)


def serve(
    config: AgentConfig,
    latest: LatestReadings,
    registration: Registration,
    clock: Clock,
    publisher: EventPublisher | None = None,
) -> LocalMetricsServer:
    """Start and return the server of *config*; `metrics_listen` is set. *publisher* gives XIDs."""
    about = {"version": version(), "host": config.host_name}
    dcgm = None
    if config.metrics_names != "gangline":
        from .dcgm_metrics import NAMES, DcgmExposition  # loaded only if it is configured

        dcgm = DcgmExposition(
            config.host_name,
            clock.boottime_ns,
            registration.attributes,
            NAMES[config.metrics_names],
        )
        if publisher is not None:
            publisher.observe(dcgm.observe)
    exposition = Exposition(
        latest, clock.boottime_ns, registration.attributes, about, config.metrics_series_max, dcgm
    )
    server = LocalMetricsServer(config.metrics_listen, ExpositionCache(exposition, time.monotonic))
    server.start()
    return server


class ExpositionCache:
    """The exposition in both formats, each rendered at most once a second. For a single thread."""

    def __init__(self, exposition: Exposition, monotonic: Callable[[], float]) -> None:
        self._exposition = exposition
        self._monotonic = monotonic
        self._cache: dict[ExpositionFormat, tuple[float, bytes]] = {}

    def __call__(self, accept: str) -> tuple[bytes, str]:
        """Return the exposition and its media type: the format that the Accept header asks for."""
        form = negotiate_format(accept)
        now = self._monotonic()
        rendered_at, body = self._cache.get(form, (now - RENDER_SECONDS_MIN, b""))
        if now - rendered_at >= RENDER_SECONDS_MIN:
            body = render_exposition(self._exposition.families(), form)
            self._cache[form] = now, body
        return body, form.value


@dataclass(slots=True)
class _Connection:
    """A client: read the request head, send the response, drain until the client closes."""

    socket: socket.socket
    until: float
    received: bytearray = field(default_factory=bytearray)
    answer: memoryview | None = None  # the unsent rest
    drained_bytes: int = 0

    @property
    def poll_events(self) -> int:
        return select.POLLOUT if self.answer else select.POLLIN


class LocalMetricsServer:
    """Serves the exposition on an address. `start` and `close` are for the main thread."""

    def __init__(
        self,
        listen: str,
        render: metrics_http.Render,
        monotonic: Callable[[], float] = time.monotonic,
        cost: Callable[[], float] = time.thread_time,
    ) -> None:
        """*listen*: `host:port` or `unix:PATH`, checked by `config.check_listen`.

        *cost* returns the CPU seconds of the calling thread.
        """
        self._listen = listen
        self._render = render
        self._monotonic = monotonic
        self._wake, self._woken = socket.socketpair()
        self._listener: socket.socket | None = None
        self._unix_listener: UnixListener | None = None
        self._cost, self._budget = cost, CpuBudget()
        self._listen_at = monotonic()
        self._connections: dict[int, _Connection] = {}
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        #: The TCP port; 0 before it is open, and for a Unix socket.
        self.port = 0

    def start(self) -> None:
        """Start the thread. An address that cannot be opened is logged and tried again."""
        self._thread.start()

    def close(self) -> None:
        """End the thread within _CLOSE_SECONDS_MAX."""
        self._wake.close()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS_MAX)

    def _run(self) -> None:
        try:
            while self._run_once():
                pass
        except Exception:
            log.exception("/metrics has ended", extra={"cause": "metrics.ended"})
        finally:
            for connection in list(self._connections.values()):
                self._close_connection(connection)
            self._close_listener()
            self._woken.close()

    def _run_once(self) -> bool:
        """Wait for events and handle them; False once `close` was called."""
        self._open()
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        paused_until = self._budget.available_at(ALL_CLIENTS, self._monotonic())
        if self._listener is not None and not paused_until:
            poll.register(self._listener, select.POLLIN)
        for descriptor, connection in self._connections.items() if not paused_until else ():
            poll.register(descriptor, connection.poll_events)
        ready = [descriptor for descriptor, _ in poll.poll(self._wait_milliseconds(paused_until))]
        if self._woken.fileno() in ready:
            return False
        before = self._cost()
        if self._listener is not None and self._listener.fileno() in ready:
            self._accept(self._listener)
        for descriptor in ready:
            if descriptor in self._connections:
                self._serve(self._connections[descriptor])
        self._close_expired()
        self._budget.spend(ALL_CLIENTS, self._cost() - before, self._monotonic())
        return True

    def _wait_milliseconds(self, paused_until: float) -> float | None:
        """Return the poll timeout; None: no timeout."""
        ends = [paused_until] if paused_until else []
        ends += [connection.until for connection in self._connections.values()]
        ends += [self._listen_at] if self._listener is None else []
        return max(0.0, 1000 * (min(ends) - self._monotonic())) if ends else None

    def _open(self) -> None:
        if self._listener is not None or self._monotonic() < self._listen_at:
            return
        self._listen_at = self._monotonic() + LISTEN_RETRY_SECONDS
        try:
            if self._listen.startswith("unix:"):
                self._unix_listener = UnixListener(
                    Path(self._listen.removeprefix("unix:")), SOCKET_MODE
                )
            self._listener = (
                self._unix_listener.socket if self._unix_listener else tcp_listener(self._listen)
            )
        except OSError as error:
            message = f"{self._listen} cannot be listened on: {error.strerror or error}"
            log.warning("/metrics: %s", message, extra={"cause": "metrics.listen"})
            return
        name = self._listener.getsockname()
        self.port = name[1] if isinstance(name, tuple) else 0
        log.info("/metrics on %s", self._listen, extra={"cause": "metrics.listening"})

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._unix_listener is not None:
            self._unix_listener.close()
            self._unix_listener = None

    def _accept(self, server_socket: socket.socket) -> None:
        try:
            accepted, _ = server_socket.accept()
        except (BlockingIOError, ConnectionError):  # the client disconnected
            return
        except OSError as error:  # out of descriptors: poll() would report the listener forever
            log.warning("/metrics: %s", error.strerror, extra={"cause": "metrics.accept"})
            self._close_listener()
            return
        accepted.setblocking(False)
        if len(self._connections) >= CONNECTIONS_MAX:
            self._close_connection(
                min(self._connections.values(), key=lambda connection: connection.until)
            )
        until = self._monotonic() + CONNECTION_SECONDS_MAX
        self._connections[accepted.fileno()] = _Connection(accepted, until)

    def _serve(self, connection: _Connection) -> None:
        try:
            is_open = self._step(connection)
        except BlockingIOError:
            is_open = True
        except OSError:  # the client disconnected
            is_open = False
        if not is_open:
            self._close_connection(connection)

    def _step(self, connection: _Connection) -> bool:
        """Continue with a ready connection; False when it is finished. Raises OSError."""
        if connection.answer:
            return self._send(connection, connection.answer)
        data = connection.socket.recv(_READ_BYTES)
        if connection.answer is not None:
            connection.drained_bytes += len(data)
            return bool(data) and connection.drained_bytes < _DRAINED_BYTES_MAX
        connection.received += data
        head, end, _ = connection.received.partition(metrics_http.END)
        if end or len(connection.received) > metrics_http.REQUEST_BYTES_MAX:
            return self._send(
                connection, memoryview(metrics_http.respond(bytes(head), self._render))
            )
        return bool(data)

    def _send(self, connection: _Connection, answer: memoryview) -> bool:
        connection.answer = answer
        connection.answer = answer[connection.socket.send(answer) :]
        if not connection.answer:
            connection.socket.shutdown(socket.SHUT_WR)
        return True

    def _close_expired(self) -> None:
        now = self._monotonic()
        for connection in list(self._connections.values()):
            if connection.until <= now:
                self._close_connection(connection)

    def _close_connection(self, connection: _Connection) -> None:
        del self._connections[connection.socket.fileno()]
        connection.socket.close()


def tcp_listener(address: str) -> socket.socket:
    """Return a non-blocking listener on `host:port`. Raises OSError."""
    host, _, port = address.rpartition(":")
    addresses = socket.getaddrinfo(
        host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, address_tuple = addresses[0]
    server_socket = socket.socket(family, kind, protocol)
    try:
        server_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server_socket.bind(address_tuple)
        server_socket.listen(CONNECTIONS_MAX)
    except OSError:
        server_socket.close()
        raise
    server_socket.setblocking(False)
    return server_socket
