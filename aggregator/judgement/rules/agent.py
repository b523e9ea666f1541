"""What we do not see: silent hosts, hung drivers, collectors that fail, counters stuck, frames lost."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...fleet.sources import BLIND, ERROR, HUNG
from ...verdicts import Reason, State
from ..present import Present, quoted
from ..readings import Standing, above, standing
from ..symptoms import Rule, Symptom

#: A host is UNKNOWN until it was heard for this long.
ENOUGH_SECONDS = 5.0
#: Sources whose hanging means that a driver does, and how bad that is. Collectors are named by source
#: and pace (`gpu_1s`).
DRIVERS = {"gpu": State.UNHEALTHY, "rdma": State.SUSPECT}
HUNG_HAZARD_FACTORS = {"gpu": 1000.0, "rdma": 50.0}

NEW = Rule("host.new", State.UNKNOWN, Reason.NONE, "", leave_seconds=0.0, hazard_factor=10.0)
#: Telemetry that goes missing is itself a leading sign of a fault.
SILENT = Rule(
    "host.silent", State.STALE, Reason.STALE_TELEMETRY, "", leave_seconds=0.0, hazard_factor=5.0
)
HANGS = Rule(
    "collector.hung",
    State.WATCH,
    Reason.DRIVER_HUNG,
    "the call returns, and readings come for 30 s",
    enter_seconds=3.0,
    leave_seconds=30.0,
)
#: The agent itself waited before it said so, and tries again by itself. Of a driver that hangs as a whole the first device
#: is told a second or two before: by then it is that driver's finding.
DEVICE_HANGS = Rule(
    "device.hung",
    State.WATCH,
    Reason.DRIVER_HUNG,
    "the agent's own trial of it answers in time, and for 30 s after",
    enter_seconds=3.0,
    leave_seconds=30.0,
)
DRIVER_HANGS = Rule(
    "driver.hung",
    State.UNHEALTHY,
    Reason.DRIVER_HUNG,
    "the agent's own trial of the driver answers in time, and for 30 s after",
    leave_seconds=30.0,
    hazard_factor=1000.0,
)
#: Of `probe_1s.state` (`agent/sampler/ward.py`).
WELL, _HUNG, _ABANDONED, LEFT_ALONE, SLOW, TRIED = range(6)
FAILS = Rule(
    "collector.failed",
    State.HEALTHY,
    Reason.BLIND,
    "the collector reads again",
    leave_seconds=5.0,
)
STUCK = Rule(
    "counter.saturated",
    State.HEALTHY,
    Reason.BLIND,
    "the counter is cleared and reads less than its ceiling",
    leave_seconds=0.0,
)
FRAMES_LOST = Rule(
    "data.lost",
    State.WATCH,
    Reason.DATA_LOST,
    "the agent loses no frames for 5 minutes",
    leave_seconds=300.0,
)
#: What the host's own policy condemns, its operator's rows too: a fault of that policy shows as many such hosts, and the
#: fleet's permit is withheld.
BARS = Rule(
    "host.barred",
    State.UNHEALTHY,
    Reason.POLICY,
    "`gangline check` on the host finds nothing to enforce for 30 s",
    leave_seconds=30.0,
)
BARRED = Standing(
    BARS,
    "agent_1s",
    "barring_findings_count",
    above(0.0),
    "counts {value:.0f} findings for which the host takes no job while the permit is in force: "
    "`gangline check` there names them",
)
FOUND = Rule("finding", State.WATCH, Reason.IDENTITY, "", leave_seconds=0.0)

#: Findings that stand against a host: beginning of the name -> reason, what ends it.
FINDINGS = {
    "identity": (Reason.IDENTITY, "one host alone reports under this name"),
    "clock": (Reason.CLOCK, "the host's clock is within 2 s of ours"),
}


def new_hosts(present: Present) -> Iterator[Symptom]:
    """Nothing can be said yet. Missing is neither zero nor healthy."""
    heard, first = present.fleet.heard_ns, present.fleet.first_ns
    for host in np.flatnonzero(heard - first < ENOUGH_SECONDS * 1e9).tolist():
        seconds = (heard[host] - first[host]) / 1e9 if heard[host] else 0.0
        known = f"heard for {seconds:.0f} s only" if heard[host] else "registered, never heard"
        yield Symptom(
            rule=NEW,
            host=host,
            device="host",
            signal="telemetry",
            value=float(seconds),
            unit="seconds",
            normal=f"heard for {ENOUGH_SECONDS:.0f} s",
            words=known,
            sql=_first_heard(present, host) if heard[host] else _registered(present, host),
            clears=f"it was heard for {ENOUGH_SECONDS:.0f} s",
        )


def silent_hosts(present: Present, frozen: frozenset[int]) -> Iterator[Symptom]:
    """A host that spoke is silent. *frozen*: too many at once, so that the fault is likely ours."""
    silent = present.silent_seconds
    for host in np.flatnonzero(np.isfinite(silent) & ~present.awake).tolist():
        ours = host in frozen
        words = f"silent for {silent[host]:.0f} s"
        backlog = present.fleet.backlog_age_seconds(host, present.now_ns)
        if backlog < 15.0:
            words += ", but it is sending what it kept meanwhile"
        yield Symptom(
            rule=SILENT,
            host=host,
            device="host",
            signal="telemetry",
            value=float(round(silent[host])),
            unit="seconds",
            normal="a frame every second",
            words=words + (", as many others: more likely our fault than theirs" if ours else ""),
            sql=_last_heard(present, host),
            state=State.HEALTHY if ours else None,
            hazard_factor=1.0 if ours else 0.0,
            clears="it is heard again",
        )


def hung_devices(present: Present) -> Iterator[Symptom]:
    """A device whose calls do not return, by name and call; all of a driver's at once are one finding of the host."""
    states, seconds = (
        present.state("probe_1s", "state"),
        present.gauge("probe_1s", "hung_seconds"),
    )
    rows = np.flatnonzero((states != WELL) & ((seconds > 0.0) | (states == SLOW))).tolist()
    names = {row: present.name("probe_1s", row) for row in rows}
    whole = {(host, name) for host, name in names.values() if " " not in name}
    for row, (host, name) in names.items():
        lane, _, device = name.partition(" ")
        if device and (host, lane) in whole:
            continue
        yield _hung(present, row, device, float(seconds[row]), int(states[row]) == SLOW)


def _hung(present: Present, row: int, device: str, seconds: float, is_slow: bool) -> Symptom:
    host, name = present.name("probe_1s", row)
    lane, said = name.partition(" ")[0], present.fleet.hangs.of(host, name)
    kind = "gpu" if lane == "gpu" else said.collector.partition("_")[0]
    key = gpu_at(present, host, device) if kind == "gpu" else device
    what = f"{kind} {device}".strip() if device else "the GPU driver as a whole"
    verb = (
        "answers too slowly for its neighbours"
        if is_slow
        else f"did not return for {seconds:.1f} s"
    )
    return Symptom(
        rule=DEVICE_HANGS if device else DRIVER_HANGS,
        host=host,
        device=key or "host",
        signal="probe.hung_seconds",
        value=seconds,
        unit="seconds",
        normal="below 0.9 s",
        words=f"{what} {verb}" + (f": {said.words}" if said.words else ""),
        sql=present.sql("probe_1s", row, "hung_seconds, state, abandoned_count", 120),
        state=DRIVERS.get(kind) if device and not is_slow else None,
        hazard_factor=HUNG_HAZARD_FACTORS.get(kind, 0.0) if device and not is_slow else 0.0,
    )


def gpu_at(present: Present, host: int, address: str) -> str:
    """Return the UUID of the GPU at a PCI address, or the address where that is all that is known."""
    for (kind, key), attributes in present.fleet.attributes[host].items():
        if kind == "gpu" and attributes.get("pci_address") == address:
            return key
    return address


def failing_collectors(present: Present) -> Iterator[Symptom]:
    """A collector hangs in a driver, fails, or is blind, in whole or in part.

    One that hangs on a host whose agent names the device is left to `hung_devices`.
    """
    outcomes = present.state("collector_1s", "outcome_state")
    unwell = np.flatnonzero(present.state("probe_1s", "state") != WELL).tolist()
    named = {present.name("probe_1s", row)[0] for row in unwell}
    for row in np.flatnonzero((outcomes >= BLIND) & (outcomes <= HUNG)).tolist():
        host, name = present.name("collector_1s", row)
        outcome, source = int(outcomes[row]), name.partition("_")[0]
        if outcome == HUNG and host in named:
            continue
        said = next((s.words for s in present.fleet.sources.of(host) if s.name == name), "")
        rule = HANGS if outcome == HUNG else FAILS
        verb = {BLIND: "is blind", ERROR: "fails", HUNG: "hangs in the driver"}[outcome]
        yield Symptom(
            rule=rule,
            host=host,
            device=name,
            signal="collector.outcome_state",
            value=float(outcome),
            normal="0 (ok) or 1 (no-data)",
            words=f"collector {name} {verb}" + (f": {said}" if said else ""),
            sql=present.sql("collector_1s", row, "outcome_state, turn_seconds", 120),
            state=DRIVERS.get(source) if outcome == HUNG else None,
            hazard_factor=HUNG_HAZARD_FACTORS.get(source, 0.0) if outcome == HUNG else 0.0,
        )


def stuck_counters(present: Present) -> Iterator[Symptom]:
    """A counter stands at its ceiling: it says nothing for ever, which is not the same as quiet.

    Rules that read it see no step and so stay silent: this symptom says that they are blind.
    """
    for name, table in present.fleet.tables.items():
        for column in table.sticky:
            stuck = table.saturated(column) & present.fresh(name)
            for row in np.flatnonzero(stuck).tolist():
                yield _stuck(present, name, row, column)


def _stuck(present: Present, name: str, row: int, column: str) -> Symptom:
    host, device = present.name(name, row)
    table = present.fleet.tables[name]
    kind, value = table.devices.kind, float(table.state(column)[row])
    layer = present.fleet.attributes[host].get((kind, device), {}).get("link_layer", "")
    what = "RDMA port" if kind == "rdma" else kind
    return Symptom(
        rule=Rule(
            f"{STUCK.name}.{column}", STUCK.state, STUCK.reason, STUCK.clears, leave_seconds=0.0
        ),
        host=host,
        device=device,
        signal=f"{kind}.{column}",
        value=value,
        normal=f"below {value:.0f}",
        words=f"{what} {device}: {column} stands at its ceiling of {value:.0f} and counts no more: "
        f"what comes now is not seen; clear it with: {clear_command(device, layer)}",
        sql=present.sql(name, row, column, 120),
    )


def clear_command(port: str, link_layer: str = "") -> str:
    """Return what sets the counters of port `mlx5_0/1` to zero.

    InfiniBand: perfquery(8) without a LID asks the port itself; without a mask it clears all counters of
    PortCounters, those of data and packets too, and PortXmitWait where the port has it (rdma-core,
    infiniband-diags/perfquery.c). Ethernet has no performance management agent: mlxlink of NVIDIA's
    firmware tools clears all groups of the port's counters (mstflint, mlxlink: PPCNT with `clr`).
    """
    device, _, number = port.partition("/")
    if link_layer == "Ethernet":
        return f"mlxlink -d {device} -p {number or 1} --pc"
    return f"perfquery -R -C {device} -P {number or 1}"


def lost_frames(present: Present) -> Iterator[Symptom]:
    """An agent's spool overflowed, or its disk failed: readings are gone."""
    lost = present.recent("agent_1s", "spool_dropped_frames", slow=True)
    for row in np.flatnonzero(lost > 0.6).tolist():
        host, device = present.name("agent_1s", row)
        total = float(present.state("agent_1s", "spool_dropped_frames")[row])
        yield Symptom(
            rule=FRAMES_LOST,
            host=host,
            device=device,
            signal="agent.spool_dropped_frames",
            value=total,
            normal="0",
            words=f"the agent lost {max(1.0, lost[row]):.0f} frames lately "
            f"({total:.0f} in all): its spool was full or its disk failed",
            sql=present.sql("agent_1s", row, "spool_dropped_frames, spool_bytes", 600),
        )


def barred_hosts(present: Present) -> Iterator[Symptom]:
    """A host that bars itself from jobs by its own policy, or would under the fleet's permit."""
    return standing(present, (BARRED,))


def standing_findings(present: Present) -> Iterator[Symptom]:
    """Findings of others about a host: two hosts of one name, a clock that is off."""
    for finding in present.fleet.findings.values():
        host = present.fleet.index.get(finding.host)
        kind = FINDINGS.get(finding.name.partition(".")[0])
        if host is None or kind is None or finding.cleared_ns:
            continue
        reason, clears = kind
        yield Symptom(
            rule=FOUND,
            host=host,
            device=f"{finding.name} {finding.subject}".strip(),
            signal=finding.name,
            value=1.0,
            unit="finding",
            normal="none",
            words=finding.words,
            sql=f"SELECT * FROM findings WHERE host = {quoted(finding.host)} "
            f"AND name = {quoted(finding.name)}",
            reason=reason,
            clears=clears,
        )


def _last_heard(present: Present, host: int) -> str:
    name = quoted(present.fleet.names[host])
    return (
        f"SELECT time, {present.age()}, device, outcome_state, turn_seconds "
        f"FROM readings.collector_1s WHERE host = {name} ORDER BY time DESC LIMIT 20"
    )


def _first_heard(present: Present, host: int) -> str:
    name = quoted(present.fleet.names[host])
    seconds = (present.now_ns - present.fleet.first_ns[host]) / 1e9
    return (
        "SELECT min(time) AS first, max(time) AS last, "
        "date_diff('second', min(time), max(time)) AS heard_seconds FROM readings.collector_1s "
        f"WHERE host = {name} AND time > {present.moment(-seconds - 0.5)}"
    )


def _registered(present: Present, host: int) -> str:
    name = quoted(present.fleet.names[host])
    return f"SELECT host, address, registered, 0 AS heard_seconds FROM hosts WHERE host = {name}"
