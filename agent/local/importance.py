"""Which signals `/metrics` shows first, when it may not show all: what fails and what is slow, before what is there.

A fixed order, so that the same host always shows the same series. Those that are named come first, as they
stand; then, in the catalogue's order, all others: errors and events, states, other counters, gauges; at last what
has a row for each link, core or PCIe function, of which one host has hundreds, and what comes and goes with jobs.

Not shown: epochs of counters. Who scrapes sees for himself that a counter began anew.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...fingerprints.catalogue import SIGNALS, Kind, Signal

#: What a GPU host fails by, then what makes it slow, then what else is asked for first.
NAMED = (
    # It fails.
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
    # It is slow.
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
    # Whether the agent can be believed.
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
    # What is asked for besides.
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
#: Room that is kept for what has rows only while something is wrong: its coming moves nothing else.
RESERVED: Mapping[str, int] = {
    "gpu.probe_hung_seconds": 8,
    "probe.hung_seconds": 8,
    "probe.state": 8,
}
#: A row for each of them would be most of what is shown.
_NUMEROUS = frozenset(("nvlink", "c2c", "cpu", "collector", "pcie"))
_PASSING = frozenset(("gpu_process",))


def _is_shown(signal: Signal) -> bool:
    return signal.kind is not Kind.EVENT and signal.column != "counter_epoch_count"


def _class_of(signal: Signal) -> int:
    if signal.unit in ("errors", "events"):
        return 0
    if signal.kind is Kind.STATE:
        return 1
    return 2 if signal.kind is Kind.COUNTER else 3


def _in_order() -> tuple[Signal, ...]:
    named = {name: at for at, name in enumerate(NAMED)}
    return tuple(
        sorted(
            (signal for signal in SIGNALS if _is_shown(signal)),
            key=lambda signal: (
                named.get(signal.name, len(named)),
                signal.device_kind in _PASSING,
                signal.device_kind in _NUMEROUS,
                _class_of(signal),
            ),
        )
    )


#: Every signal that may be shown, the most important first.
IN_ORDER: tuple[Signal, ...] = _in_order()
