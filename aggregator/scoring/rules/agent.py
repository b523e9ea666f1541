"""Missing data: silent hosts, collectors that hang or fail, stuck counters, lost frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...arrays import Flags
from ...fleet.collector_status import BLIND, ERROR, HUNG
from ...fleet.devices import DEVICES_PER_HOST_MAX
from ...fleet.hangs import Hang
from ...model import HealthState, Reason
from ...rule_catalogue import agent as rules
from ...rule_declaration import Rule
from ...sql import quoted
from ..detectors import detects
from ..evidence_sql import RECEIVED_SOURCES, last_received, timestamp_sql
from ..rule_rows import recent_counts
from ..symptom import Symptom, short
from ..view import FleetView

#: Sources whose hang is a hang of their driver -> the state of the host. The source is the part of
#: a collector's name before the pace (`gpu` in `gpu_1s`).
DRIVERS = {"gpu": HealthState.UNHEALTHY, "rdma": HealthState.SUSPECT}
HUNG_HAZARD_FACTORS = {"gpu": 1000.0, "rdma": 50.0}

#: Values of `probe_1s.state` (`agent/sampler/quarantine.py`).
OK, _HUNG, _ABANDONED, _QUARANTINED, SLOW, _PROBED, RELEASED = range(7)
#: Group of all calls to NVIDIA's driver: a hang in it without a device is a hang of that driver.
GPU_GROUP = "gpu"
#: A call that ended sooner did not hang: it ended the agent's process.
DIED_SECONDS_MAX = 0.1
#: Remedies, as in the host policy (`contract/faults/`).
ACTIONS = {
    "driver": "drain the host, check its kernel log, reboot it",
    "gpu": "drain the host, check its kernel log, reset the GPU; reboot the host if that hangs as well",
    "other": "check the host's kernel log; reboot the host after the job if it stays",
}

Row = tuple[int, str]  # node index, and the row's name: `gpu 0000:9b:00.0`, `gpu`, `host mlx5_0/1`

#: A host stays UNKNOWN until it has reported for this long.
RECEIVED_SECONDS_MIN = 5.0
#: Findings that count against a host: beginning of the name -> reason, clear condition.
FINDINGS = {
    "identity": (Reason.IDENTITY, "one host alone reports under this name"),
    "clock": (Reason.CLOCK, "the host's clock is within 2 s of the aggregator's"),
}


@detects(rules.DEVICE_HANGS, rules.DRIVER_HANGS)
def hung_devices(view: FleetView) -> Iterator[Symptom]:
    """Name each device whose calls hang; all devices of one driver are one finding."""
    states, seconds = (view.state("probe_1s", "state"), view.gauge("probe_1s", "hung_seconds"))
    rows = np.flatnonzero((states != OK) & ((seconds > 0.0) | (states == SLOW))).tolist()
    names: dict[int, Row] = {row: view.name("probe_1s", row) for row in rows}
    driver_rows = {row_name for row_name in names.values() if _is_driver_row(view, row_name)}
    for row, (host, name) in names.items():
        if (host, name) in driver_rows:
            others = [other for other_host, other in names.values() if other_host == host]
            within = [other for other in others if _driver_row(view, host, other) == name]
            yield _driver_hangs(view, row, float(seconds[row]), sorted(within))
        elif (host, _driver_row(view, host, name)) not in driver_rows:
            yield _device_hangs(view, row, float(seconds[row]), int(states[row]) == SLOW)


def _is_driver_row(view: FleetView, row: Row) -> bool:
    """Return whether *row* is a driver's: NVIDIA's, or that of a file collector."""
    host, name = row
    device = name.partition(" ")[2]
    return not device or device == view.fleet.hangs.of(host, name).collector


def _driver_row(view: FleetView, host: int, name: str) -> str:
    """Return the name of the driver row that covers a device's row."""
    group = name.partition(" ")[0]
    return group if group == GPU_GROUP else f"{group} {view.fleet.hangs.of(host, name).collector}"


def _driver_hangs(view: FleetView, row: int, seconds: float, within: list[str]) -> Symptom:
    host, name = view.name("probe_1s", row)
    hang, collector = view.fleet.hangs.of(host, name), name.partition(" ")[2]
    devices = ", ".join(d.partition(" ")[2] for d in within if d != name)
    first = f" ({devices} first)" if devices else ""
    subject = f"what {collector} reads" if collector else "the GPU driver as a whole"
    action = ACTIONS["other" if collector else "driver"]
    message = f"{subject} has not answered {_duration_text(view, hang, seconds)}{_call_text(hang)}{first}: {action}"
    kind = collector.partition("_")[0]
    rule = rules.DEVICE_HANGS if collector else rules.DRIVER_HANGS
    return _symptom(view, row, rule, collector or "host", seconds, message, kind)


def _device_hangs(view: FleetView, row: int, seconds: float, is_slow: bool) -> Symptom:
    host, name = view.name("probe_1s", row)
    group, _, device = name.partition(" ")
    hang = view.fleet.hangs.of(host, name)
    kind = "gpu" if group == GPU_GROUP else hang.collector.partition("_")[0]
    key = gpu_at(view, host, device) if kind == "gpu" else device
    subject = f"{'GPU' if kind == 'gpu' else kind} {device}".strip()
    subject += f" ({short(key)})" if key != device else ""
    since = _duration_text(view, hang, seconds)
    action = ACTIONS["gpu" if kind == "gpu" else "other"]
    if is_slow:
        message = f"{subject} answers too slowly for its neighbours {since}{_call_text(hang)}: {ACTIONS['other']}"
    elif seconds < DIED_SECONDS_MAX:
        died = hang.message.partition(" in ")[0] or "died"
        # the reading's seconds are the duration of one call
        lasts = f" {since}" if hang.since_ns else ""
        message = f"{subject} is skipped{lasts}, as the agent's process {died}{_call_text(hang)}: {action}"
    else:
        message = f"{subject} has not answered {since}{_call_text(hang)}: {action}"
    kind = "" if is_slow else kind
    return _symptom(view, row, rules.DEVICE_HANGS, key, seconds, message, kind)


def _symptom(
    view: FleetView, row: int, rule: Rule, device: str, seconds: float, message: str, kind: str
) -> Symptom:
    """Return the symptom of a row. *kind*: device kind whose hang is worse, or ""."""
    return Symptom(
        rule=rule,
        host=view.name("probe_1s", row)[0],
        device=device,
        signal="probe.hung_seconds",
        value=seconds,
        unit="seconds",
        normal="below 0.9 s",
        message=message,
        sql=view.sql("probe_1s", row, "hung_seconds, state, abandoned_count", 120),
        state=DRIVERS.get(kind),
        hazard_factor=HUNG_HAZARD_FACTORS.get(kind, 0.0),
    )


def _duration_text(view: FleetView, hang: Hang, seconds: float) -> str:
    """Return the duration and start of a hang, which outlasts the reading of its call."""
    if not hang.since_ns:
        return f"for {seconds:.1f} s"
    since = datetime.fromtimestamp(hang.since_ns // 1_000_000_000, UTC)
    lasts = max(seconds, (view.now_ns - hang.since_ns) / 1e9)
    return f"for {_span(lasts)}, since {since:%Y-%m-%d %H:%M:%S} UTC"


def _span(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _call_text(hang: Hang) -> str:
    return f", in {hang.call}" if hang.call else ""


def gpu_at(view: FleetView, host: int, address: str) -> str:
    """Return the UUID of the GPU at a PCI address, or the address if the UUID is unknown."""
    attributes: Mapping[tuple[str, str], Mapping[str, str]] = view.fleet.attributes[host]
    for (kind, key), known in attributes.items():
        if kind == "gpu" and known.get("pci_address") == address:
            return key
    return address


@detects(rules.NEW)
def new_hosts(view: FleetView) -> Iterator[Symptom]:
    """Name each host that is too new to judge: missing data is neither zero nor healthy."""
    last_received, first = view.fleet.last_received_ns, view.fleet.first_received_ns
    for host in np.flatnonzero(last_received - first < RECEIVED_SECONDS_MIN * 1e9).tolist():
        seconds = 0.0
        known, sql = "registered, has never reported", _registration_sql(view, host)
        if last_received[host]:
            seconds = (last_received[host] - first[host]) / 1e9
            known, sql = f"reporting for {seconds:.0f} s only", _first_received_sql(view, host)
        yield Symptom(
            rule=rules.NEW,
            host=host,
            device="host",
            signal="telemetry",
            value=float(seconds),
            unit="seconds",
            normal=f"reports for {RECEIVED_SECONDS_MIN:.0f} s",
            message=known,
            sql=sql,
            clears=f"it has reported for {RECEIVED_SECONDS_MIN:.0f} s",
        )


def silent_hosts(view: FleetView, frozen: frozenset[int]) -> Iterator[Symptom]:
    """Name each host that fell silent. *frozen*: probably by our own fault."""
    silent = view.silent_seconds
    for host in np.flatnonzero(np.isfinite(silent) & ~view.awake).tolist():
        is_frozen = host in frozen
        message = f"silent for {silent[host]:.0f} s"
        backlog = view.fleet.backlog_age_seconds(host, view.now_ns)
        if backlog < 15.0:
            message += ", but it is sending the data kept meanwhile"
        if is_frozen:
            message += (
                ", as are many others: more likely a fault of the aggregator than of the hosts"
            )
        yield Symptom(
            rule=rules.SILENT,
            host=host,
            device="host",
            signal="telemetry",
            value=float(round(silent[host])),
            unit="seconds",
            normal="a frame every second",
            message=message,
            sql=last_received(view.fleet.names[host], view.now_ns),
            state=HealthState.HEALTHY if is_frozen else None,
            hazard_factor=1.0 if is_frozen else 0.0,
            clears="it reports again",
        )


@detects(rules.HANGS, rules.FAILS)
def failing_collectors(view: FleetView) -> Iterator[Symptom]:
    """Name each collector that hangs in a driver, fails, or is blind, in whole or in part.

    Skip a hang if the host's agent names the device: `hung_devices` reports it.
    """
    rows = view.where("collector_10s", "outcome_state", _has_failed)
    outcomes = view.fleet.tables["collector_10s"].values_at("outcome_state", rows)
    unhealthy = ~np.isin(view.state("probe_1s", "state"), (OK, RELEASED))
    named = {view.name("probe_1s", row)[0] for row in np.flatnonzero(unhealthy).tolist()}
    for row, code in zip(rows.tolist(), outcomes.tolist(), strict=True):
        host, name = view.name("collector_10s", row)
        outcome, source = int(code), name.partition("_")[0]
        if outcome == HUNG and host in named:
            continue
        statuses = view.fleet.collector_statuses.of(host)
        message = next((s.message for s in statuses if s.name == name), "")
        rule = rules.HANGS if outcome == HUNG else rules.FAILS
        verb = {BLIND: "is blind", ERROR: "fails", HUNG: "hangs in the driver"}[outcome]
        yield Symptom(
            rule=rule,
            host=host,
            device=name,
            signal="collector.outcome_state",
            value=float(outcome),
            normal="0 (ok) or 1 (no-data)",
            message=f"collector {name} {verb}" + (f": {message}" if message else ""),
            sql=view.sql("collector_10s", row, "outcome_state, turn_seconds", 120),
            state=DRIVERS.get(source) if outcome == HUNG else None,
            hazard_factor=HUNG_HAZARD_FACTORS.get(source, 0.0) if outcome == HUNG else 0.0,
            fault_source=f"driver of {source}" if outcome == HUNG else "",
        )


def _has_failed(outcomes: NDArray[Any]) -> Flags:
    return (outcomes >= BLIND) & (outcomes <= HUNG)


@detects(rules.STUCK)
def stuck_counters(view: FleetView) -> Iterator[Symptom]:
    """Name each counter at its ceiling: it can no longer count, so rules that read it are blind."""
    for name, table in view.fleet.tables.items():
        for column in table.sticky:
            stuck = np.flatnonzero(table.saturated(column))
            for row in stuck[view.fresh_at(name, stuck)].tolist():
                yield _stuck(view, name, row, column)


def _stuck(view: FleetView, name: str, row: int, column: str) -> Symptom:
    host, device = view.name(name, row)
    table = view.fleet.tables[name]
    kind, value = table.devices.kind, float(table.state(column)[row])
    layer = view.fleet.attributes[host].get((kind, device), {}).get("link_layer", "")
    what = "RDMA port" if kind == "rdma" else kind
    return Symptom(
        rule=replace(rules.STUCK, name=f"{rules.STUCK.name}.{column}"),
        host=host,
        device=device,
        signal=f"{kind}.{column}",
        value=value,
        normal=f"below {value:.0f}",
        message=f"{what} {device}: {column} is at its maximum of {value:.0f} and no longer counts: further events are missed; clear it with: {clear_command(device, layer)}",
        sql=view.sql(name, row, column, 120),
    )


def clear_command(port: str, link_layer: str = "") -> str:
    """Return the command that clears the counters of port `mlx5_0/1`.

    InfiniBand: perfquery(8) without a LID asks the port itself; without a mask it clears all
    counters of PortCounters, including data and packets, and PortXmitWait if the port has it
    (rdma-core, infiniband-diags/perfquery.c). Ethernet has no performance management agent: mlxlink
    of NVIDIA's firmware tools clears all groups of the port's counters (mstflint, mlxlink: PPCNT
    with the bit clr).
    """
    device, _, number = port.partition("/")
    if link_layer == "Ethernet":
        return f"mlxlink -d {device} -p {number or 1} --pc"
    return f"perfquery -R -C {device} -P {number or 1}"


@detects(rules.UNTRACKED)
def unjudged_devices(view: FleetView) -> Iterator[Symptom]:
    """Name each host with more devices of a kind than memory holds: the rest are not judged."""
    for (host, kind), tables in view.fleet.evictions.untracked.items():
        if not view.awake[host]:
            continue
        table, count = max(tables.items(), key=lambda item: item[1])
        yield Symptom(
            rule=rules.UNTRACKED,
            host=host,
            device=kind,
            signal="telemetry",
            value=float(count),
            unit="devices",
            normal="0",
            message=f"{count} devices of kind {kind} are not judged: it reports more than the {DEVICES_PER_HOST_MAX} "
            "that a host may have of one kind",
            sql=view.sql_devices(table, host, 120.0),
            clears=f"the host reports at most {DEVICES_PER_HOST_MAX} of the kind at once",
        )


@detects(rules.FRAMES_LOST)
def lost_frames(view: FleetView) -> Iterator[Symptom]:
    """Name each agent that lost frames: its spool overflowed or its disk failed."""
    rows, lost = recent_counts(view, "agent_10s", "spool_dropped_frames")
    for row, frames in zip(rows.tolist(), lost.tolist(), strict=True):
        host, device = view.name("agent_10s", row)
        total = float(view.state("agent_10s", "spool_dropped_frames")[row])
        yield Symptom(
            rule=rules.FRAMES_LOST,
            host=host,
            device=device,
            signal="agent.spool_dropped_frames",
            value=total,
            normal="0",
            message=f"the agent lost {max(1.0, frames):.0f} frames recently ({total:.0f} in all): its spool was full or its disk failed",
            sql=view.sql("agent_10s", row, "spool_dropped_frames, spool_bytes", 600),
        )


@detects(rules.HOST_FINDING)
def host_findings(view: FleetView) -> Iterator[Symptom]:
    """Name hosts with findings of other parts: two hosts with one name, a wrong clock."""
    for finding in view.fleet.findings.values():
        host = view.fleet.index.get(finding.host)
        kind = FINDINGS.get(finding.name.partition(".")[0])
        if host is None or kind is None or finding.cleared_ns:
            continue
        reason, clears = kind
        yield Symptom(
            rule=rules.HOST_FINDING,
            host=host,
            device=f"{finding.name} {finding.subject}".strip(),
            signal=finding.name,
            value=1.0,
            unit="finding",
            normal="none",
            message=finding.message,
            sql=f"SELECT * FROM findings WHERE host = {quoted(finding.host)} AND name = {quoted(finding.name)} "
            f"AND subject = {quoted(finding.subject)} AND since = {timestamp_sql(finding.since_ns)}",
            reason=reason,
            clears=clears,
        )


def _first_received_sql(view: FleetView, host: int) -> str:
    name = quoted(view.fleet.names[host])
    seconds = (view.now_ns - view.fleet.first_received_ns[host]) / 1e9
    return (
        "SELECT min(time) AS first, max(time) AS last, "
        f"date_diff('second', min(time), max(time)) AS heard_seconds FROM ({RECEIVED_SOURCES}) "
        f"WHERE host = {name} AND time BETWEEN {view.timestamp_sql(-seconds - 0.5)} AND {view.timestamp_sql(1)}"
    )


def _registration_sql(view: FleetView, host: int) -> str:
    name = quoted(view.fleet.names[host])
    return f"SELECT host, address, registered, 0 AS heard_seconds FROM hosts WHERE host = {name}"
