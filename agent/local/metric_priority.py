"""Order of the agent's series under `metrics_series_max`.

The order is fixed, so that a host always exposes the same
series. The named signals come first; then in the catalog's order errors and events, states, other
counters, gauges; last, device kinds with hundreds of rows per host (links, cores, PCIe functions)
and kinds that come and go with jobs. Counter epochs are not exposed: Prometheus detects restarts.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...contract.signal import Kind, Signal
from ...contract.signals import SIGNALS

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
