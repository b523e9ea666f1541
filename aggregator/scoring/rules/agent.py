"""What we do not see: silent hosts, collectors that hang or fail, counters stuck, frames lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...counter_deltas import Flags
from ...fleet.active_events import Hang
from ...fleet.collector_status import BLIND, ERROR, HUNG
from ...fleet.devices import DEVICES_PER_HOST_MAX
from ...model import Reason, State
from ...sql import quoted
from ..evidence_sql import HEARD, last_heard, moment
from ..rule import Rule, Standing, Symptom, above, counted_lately, short, standing
from ..view import Present

# ----------------------------------------------------------------------
# Devices and drivers whose calls do not return, in one sentence each: which, in which call, since
# when, what to do.

#: Sources whose hanging means that a driver does, and how bad that is. Collectors are named by source
#: and pace (`gpu_1s`).
DRIVERS = {"gpu": State.UNHEALTHY, "rdma": State.SUSPECT}
HUNG_HAZARD_FACTORS = {"gpu": 1000.0, "rdma": 50.0}

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
#: Of `probe_1s.state` (`agent/sampler/quarantine.py`).
WELL, _HUNG, _ABANDONED, _LEFT_ALONE, SLOW, _TRIED, RELEASED = range(7)
#: The lane of all that calls NVIDIA's driver: what hangs there without a device is that driver.
GPU_LANE = "gpu"
#: A call that lasted no longer did not hang: it ended the agent's process that made it.
DIED_SECONDS_MAX = 0.1
#: What to do, as the host's own policy says it (`contract/host_policy.toml`).
ACTIONS = {
    "driver": "drain the host, look at its kernel log, reboot it",
    "gpu": "drain the host, look at its kernel log, reset the GPU; reboot the host if that hangs as well",
    "other": "look at the host's kernel log; reboot the host after the job if it stays",
}

Row = tuple[int, str]  # node index, and the row's name: `gpu 0000:9b:00.0`, `gpu`, `host mlx5_0/1`


def hung_devices(present: Present) -> Iterator[Symptom]:
    """A device whose calls do not return, by name and call; all of a driver's at once are one finding of the host."""
    states, seconds = (
        present.state("probe_1s", "state"),
        present.gauge("probe_1s", "hung_seconds"),
    )
    rows = np.flatnonzero((states != WELL) & ((seconds > 0.0) | (states == SLOW))).tolist()
    names: dict[int, Row] = {row: present.name("probe_1s", row) for row in rows}
    whole = {each for each in names.values() if _is_whole(present, each)}
    for row, (host, name) in names.items():
        if (host, name) in whole:
            within = [
                n for of, n in names.values() if of == host and _whole_of(present, of, n) == name
            ]
            yield _driver_hangs(present, row, float(seconds[row]), sorted(within))
        elif (host, _whole_of(present, host, name)) not in whole:
            yield _device_hangs(present, row, float(seconds[row]), int(states[row]) == SLOW)


def _is_whole(present: Present, row: Row) -> bool:
    """Say whether a row is of a driver: NVIDIA's, or of what one collector of files reads."""
    host, name = row
    device = name.partition(" ")[2]
    return not device or device == present.fleet.hangs.of(host, name).collector


def _whole_of(present: Present, host: int, name: str) -> str:
    """Return the row of the driver that a device's row belongs to."""
    lane = name.partition(" ")[0]
    return lane if lane == GPU_LANE else f"{lane} {present.fleet.hangs.of(host, name).collector}"


def _driver_hangs(present: Present, row: int, seconds: float, within: list[str]) -> Symptom:
    host, name = present.name("probe_1s", row)
    said, collector = present.fleet.hangs.of(host, name), name.partition(" ")[2]
    devices = ", ".join(each.partition(" ")[2] for each in within if each != name)
    first = f" ({devices} first)" if devices else ""
    who = f"what {collector} reads" if collector else "the GPU driver as a whole"
    action = ACTIONS["other" if collector else "driver"]
    words = f"{who} has not answered {_since(present, said, seconds)}{_in(said)}{first}: {action}"
    kind = collector.partition("_")[0]
    return _symptom(
        present,
        row,
        DEVICE_HANGS if collector else DRIVER_HANGS,
        device=collector or "host",
        seconds=seconds,
        words=words,
        kind=kind,
    )


def _device_hangs(present: Present, row: int, seconds: float, is_slow: bool) -> Symptom:
    host, name = present.name("probe_1s", row)
    lane, _, device = name.partition(" ")
    said = present.fleet.hangs.of(host, name)
    kind = "gpu" if lane == GPU_LANE else said.collector.partition("_")[0]
    key = gpu_at(present, host, device) if kind == "gpu" else device
    who = f"{'GPU' if kind == 'gpu' else kind} {device}".strip()
    who += f" ({short(key)})" if key != device else ""
    since, action = _since(present, said, seconds), ACTIONS["gpu" if kind == "gpu" else "other"]
    if is_slow:
        words = (
            f"{who} answers too slowly for its neighbours {since}{_in(said)}: {ACTIONS['other']}"
        )
    elif seconds < DIED_SECONDS_MAX:
        died = said.words.partition(" in ")[0] or "died"
        lasts = f" {since}" if said.since_ns else ""  # the seconds are of the call alone
        words = f"{who} is left alone{lasts}, as the agent's process {died}{_in(said)}: {action}"
    else:
        words = f"{who} has not answered {since}{_in(said)}: {action}"
    return _symptom(
        present,
        row,
        DEVICE_HANGS,
        device=key,
        seconds=seconds,
        words=words,
        kind="" if is_slow else kind,
    )


def _symptom(
    present: Present, row: int, rule: Rule, *, device: str, seconds: float, words: str, kind: str
) -> Symptom:
    """*kind*: of device, where its hanging means more than the rule says."""
    return Symptom(
        rule=rule,
        host=present.name("probe_1s", row)[0],
        device=device,
        signal="probe.hung_seconds",
        value=seconds,
        unit="seconds",
        normal="below 0.9 s",
        words=words,
        sql=present.sql("probe_1s", row, "hung_seconds, state, abandoned_count", 120),
        state=DRIVERS.get(kind),
        hazard_factor=HUNG_HAZARD_FACTORS.get(kind, 0.0),
    )


def _since(present: Present, said: Hang, seconds: float) -> str:
    """Return for how long, and since when: the reading ends where the call was given up, the trouble does not."""
    if not said.since_ns:
        return f"for {seconds:.1f} s"
    at = datetime.fromtimestamp(said.since_ns // 1_000_000_000, UTC)
    lasts = max(seconds, (present.now_ns - said.since_ns) / 1e9)
    return f"for {_span(lasts)}, since {at:%Y-%m-%d %H:%M:%S} UTC"


def _span(seconds: float) -> str:
    """Return a time in the unit that gives a number one can hold."""
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _in(said: Hang) -> str:
    return f", in {said.call}" if said.call else ""


def gpu_at(present: Present, host: int, address: str) -> str:
    """Return the UUID of the GPU at a PCI address, or the address where that is all that is known."""
    attributes: Mapping[tuple[str, str], Mapping[str, str]] = present.fleet.attributes[host]
    for (kind, key), known in attributes.items():
        if kind == "gpu" and known.get("pci_address") == address:
            return key
    return address


#: A host is UNKNOWN until it was heard for this long.
ENOUGH_SECONDS = 5.0
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
LEFT_OUT = Rule(
    "devices.left_out",
    State.HEALTHY,
    Reason.BLIND,
    f"the host reports at most {DEVICES_PER_HOST_MAX} of the kind at once",
    leave_seconds=60.0,
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
    "agent_10s",
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
            sql=last_heard(present.fleet.names[host], present.now_ns),
            state=State.HEALTHY if ours else None,
            hazard_factor=1.0 if ours else 0.0,
            clears="it is heard again",
        )


def failing_collectors(present: Present) -> Iterator[Symptom]:
    """A collector hangs in a driver, fails, or is blind, in whole or in part.

    One that hangs on a host whose agent names the device is left to `hung_devices`.
    """
    rows = present.where("collector_10s", "outcome_state", _is_unwell)
    outcomes = present.fleet.tables["collector_10s"].values_at("outcome_state", rows)
    unwell = ~np.isin(present.state("probe_1s", "state"), (WELL, RELEASED))
    named = {present.name("probe_1s", row)[0] for row in np.flatnonzero(unwell).tolist()}
    for row, code in zip(rows.tolist(), outcomes.tolist(), strict=True):
        host, name = present.name("collector_10s", row)
        outcome, source = int(code), name.partition("_")[0]
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
            sql=present.sql("collector_10s", row, "outcome_state, turn_seconds", 120),
            state=DRIVERS.get(source) if outcome == HUNG else None,
            hazard_factor=HUNG_HAZARD_FACTORS.get(source, 0.0) if outcome == HUNG else 0.0,
            whose=f"driver of {source}" if outcome == HUNG else "",
        )


def _is_unwell(outcomes: NDArray[Any]) -> Flags:
    return np.asarray((outcomes >= BLIND) & (outcomes <= HUNG), dtype=bool)


def stuck_counters(present: Present) -> Iterator[Symptom]:
    """A counter stands at its ceiling: it says nothing for ever, which is not the same as quiet.

    Rules that read it see no step and so stay silent: this symptom says that they are blind.
    """
    for name, table in present.fleet.tables.items():
        for column in table.sticky:
            stuck = np.flatnonzero(table.saturated(column))
            for row in stuck[present.fresh_at(name, stuck)].tolist():
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


def unjudged_devices(present: Present) -> Iterator[Symptom]:
    """A host reports more devices of a kind at once than are kept in memory: of the others nothing is said."""
    for (host, kind), tables in present.fleet.evictions.left_out.items():
        if not present.awake[host]:
            continue
        table, count = max(tables.items(), key=lambda one: one[1])
        yield Symptom(
            rule=LEFT_OUT,
            host=host,
            device=kind,
            signal="telemetry",
            value=float(count),
            unit="devices",
            normal="0",
            words=f"{count} devices of kind {kind} are not judged: it reports more than the {DEVICES_PER_HOST_MAX} "
            "that a host may have of one kind",
            sql=present.sql_devices(table, host, 120.0),
        )


def lost_frames(present: Present) -> Iterator[Symptom]:
    """An agent's spool overflowed, or its disk failed: readings are gone."""
    rows, lost = counted_lately(present, "agent_10s", "spool_dropped_frames")
    for row, frames in zip(rows.tolist(), lost.tolist(), strict=True):
        host, device = present.name("agent_10s", row)
        total = float(present.state("agent_10s", "spool_dropped_frames")[row])
        yield Symptom(
            rule=FRAMES_LOST,
            host=host,
            device=device,
            signal="agent.spool_dropped_frames",
            value=total,
            normal="0",
            words=f"the agent lost {max(1.0, frames):.0f} frames lately "
            f"({total:.0f} in all): its spool was full or its disk failed",
            sql=present.sql("agent_10s", row, "spool_dropped_frames, spool_bytes", 600),
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
            sql=f"SELECT * FROM findings WHERE host = {quoted(finding.host)} AND name = {quoted(finding.name)} "
            f"AND subject = {quoted(finding.subject)} AND since = {moment(finding.since_ns)}",
            reason=reason,
            clears=clears,
        )


def _first_heard(present: Present, host: int) -> str:
    name = quoted(present.fleet.names[host])
    seconds = (present.now_ns - present.fleet.first_ns[host]) / 1e9
    return (
        "SELECT min(time) AS first, max(time) AS last, "
        f"date_diff('second', min(time), max(time)) AS heard_seconds FROM ({HEARD}) "
        f"WHERE host = {name} AND time BETWEEN {present.moment(-seconds - 0.5)} AND {present.moment(1)}"
    )


def _registered(present: Present, host: int) -> str:
    name = quoted(present.fleet.names[host])
    return f"SELECT host, address, registered, 0 AS heard_seconds FROM hosts WHERE host = {name}"
