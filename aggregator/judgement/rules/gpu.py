"""GPUs that are gone, that ask for help, or that nothing is heard of."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...verdicts import Reason, State
from ..present import SILENT_SECONDS_MAX, Present, quoted
from ..symptoms import Rule, Symptom, short

LOST = Rule(
    "gpu.lost",
    State.UNHEALTHY,
    Reason.XID_FATAL,
    "the host boots with the GPU back on the bus",
    leave_seconds=10.0,
    hazard_factor=20_000.0,
)
RECOVERY = Rule(
    "gpu.recovery_action",
    State.UNHEALTHY,
    Reason.XID_FATAL,
    "the driver asks for no recovery any more",
    enter_seconds=2.0,
    leave_seconds=10.0,
    hazard_factor=1000.0,
)
UNSEEN = Rule(
    "gpu.unseen",
    State.WATCH,
    Reason.BLIND,
    "readings of the GPU come again",
    leave_seconds=10.0,
    hazard_factor=3.0,
)

#: `gpu.recovery_action_state` in words (nvml.h, nvmlDeviceGpuRecoveryAction).
ACTIONS = {
    1: "a reset",
    2: "a reboot",
    3: "its peer-to-peer work drained",
    4: "a drain and reset",
    5: "its IMEX domain recovered",
    6: "a reset of its PCIe bus",
    7: "a reboot of the system",
}
#: What concerns its links to others only.
PARTIAL = (3, 5)


def lost_gpus(present: Present) -> Iterator[Symptom]:
    """A GPU fell off the bus."""
    for row in np.flatnonzero(present.state("gpu_1s", "lost_state") == 1).tolist():
        host, device = present.name("gpu_1s", row)
        yield Symptom(
            rule=LOST,
            host=host,
            device=device,
            signal="gpu.lost_state",
            value=1.0,
            normal="0",
            words=f"{short(device)} has fallen off the bus; only a reboot brings it back",
            sql=present.sql("gpu_1s", row, "lost_state, calls_failed_errors", 120),
        )


def recovery_actions(present: Present) -> Iterator[Symptom]:
    """The driver says what it needs to go on; nobody knows better."""
    action = present.state("gpu_1s", "recovery_action_state")
    for row in np.flatnonzero((action > 0) & (action <= max(ACTIONS))).tolist():
        host, device = present.name("gpu_1s", row)
        partial = int(action[row]) in PARTIAL
        yield Symptom(
            rule=RECOVERY,
            host=host,
            device=device,
            signal="gpu.recovery_action_state",
            value=float(action[row]),
            normal="0",
            words=f"{short(device)}: its driver asks for {ACTIONS[int(action[row])]}",
            sql=present.sql("gpu_1s", row, "recovery_action_state", 120),
            state=State.SUSPECT if partial else None,
            reason=Reason.NVLINK_ERRORS if partial else None,
            hazard_factor=50.0 if partial else 0.0,
        )


def unseen_gpus(present: Present) -> Iterator[Symptom]:
    """The host speaks, but not of a GPU that it has: vanished fields come before faults.

    One that its agent says is out, as it hangs or was released, or was until a moment ago, is not missing.
    """
    hosts_out = _hosts_with_all_out(present)
    yield from _vanished(present, hosts_out)
    yield from _never_seen(present, hosts_out)


def _hosts_with_all_out(present: Present) -> frozenset[int]:
    """Return the hosts whose agents say that they enter no GPU: the driver hangs, or all are released."""
    said = np.flatnonzero(present.heard("probe_1s") <= SILENT_SECONDS_MAX).tolist()
    rows = (present.name("probe_1s", row) for row in said)
    return frozenset(host for host, name in rows if name == "gpu")


def _vanished(present: Present, hosts_out: frozenset[int]) -> Iterator[Symptom]:
    heard, hosts = present.heard("gpu_1s"), present.fleet.devices["gpu"].host
    out = np.isin(hosts, list(hosts_out)) | (present.heard("gpu_1s_probe") <= SILENT_SECONDS_MAX)
    missing = present.awake[hosts] & np.isfinite(heard) & (heard > SILENT_SECONDS_MAX) & ~out
    for row in np.flatnonzero(missing).tolist():
        host, device = present.name("gpu_1s", row)
        yield Symptom(
            rule=UNSEEN,
            host=host,
            device=device,
            signal="gpu.sm_clock_hertz",
            value=float(round(heard[row])),
            unit="seconds",
            normal="a reading every second",
            words=f"no reading of {short(device)} for {heard[row]:.0f} s while its host goes on",
            sql=present.sql("gpu_1s", row, f"{present.age()}, sm_clock_hertz", heard[row] + 60),
        )


def _never_seen(present: Present, hosts_out: frozenset[int]) -> Iterator[Symptom]:
    """A GPU that the inventory lists has no reading, while its neighbours have."""
    gpus = present.fleet.devices["gpu"]
    heard_seconds = (present.fleet.heard_ns - present.fleet.first_ns) / 1e9
    read = np.bincount(gpus.host, minlength=len(present.fleet))
    lacks = present.awake & (heard_seconds > SILENT_SECONDS_MAX) & (read < present.fleet.gpus)
    for host in set(np.flatnonzero(lacks).tolist()) - hosts_out:
        for kind, device in present.fleet.attributes[host]:
            if kind != "gpu" or (host, device) in gpus.row_of:
                continue
            alone = not gpus.of_host(host)
            yield Symptom(
                rule=UNSEEN,
                host=host,
                device=device,
                signal="gpu.sm_clock_hertz",
                value=0.0,
                unit="readings",
                normal="a reading every second",
                words=f"{short(device)} is there, but nothing reads it"
                + ("; nor any other GPU here" if alone else " while its neighbours answer"),
                sql=_readings_of_each(present.fleet.names[host]),
                state=State.HEALTHY if alone else None,
                hazard_factor=1.0 if alone else 0.0,
            )


def _readings_of_each(host: str) -> str:
    """Return the query for how many readings there are of each GPU that *host* has."""
    return (
        "SELECT device, attributes, (SELECT count(*) FROM readings.gpu_1s AS r WHERE r.host = d.host "
        f"AND r.device = d.device) AS readings FROM devices AS d WHERE host = {quoted(host)} "
        "AND kind = 'gpu'"
    )
