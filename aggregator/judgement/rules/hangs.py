"""Devices and drivers whose calls do not return, in one sentence each: which, in which call, since when, what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import numpy as np

from ...fleet.hangs import Hang
from ...verdicts import Reason, State
from ..present import Present
from ..symptoms import Rule, Symptom, short

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
#: Of `probe_1s.state` (`agent/sampler/ward.py`).
WELL, _HUNG, _ABANDONED, _LEFT_ALONE, SLOW, _TRIED, RELEASED = range(7)
#: The lane of all that calls NVIDIA's driver: what hangs there without a device is that driver.
GPU_LANE = "gpu"
#: A call that lasted no longer did not hang: it ended the agent's process that made it.
DIED_SECONDS_MAX = 0.1
#: What to do, as the host's own policy says it (`fingerprints/policy.toml`).
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
