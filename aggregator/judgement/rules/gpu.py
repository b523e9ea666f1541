"""GPUs that are gone, that ask for help, or that nothing is heard of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...fleet.arrays import Flags
from ...sql import quoted
from ...verdicts import Reason, State
from ..present import SILENT_SECONDS_MAX, Present
from ..symptoms import Rule, Symptom, short
from .hangs import GPU_LANE, RELEASED, gpu_at

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
#: An agent that begins has not read them all at once.
NEVER_SEEN = replace(UNSEEN, enter_seconds=SILENT_SECONDS_MAX)
#: So long a GPU may be out for a repair before somebody is to look whether it was forgotten.
OUT_SECONDS_MAX = 3600.0

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

    One that its agent says is out, as it hangs or was released, or was until a moment ago, is not missing: for as long as
    its hanging is a finding, and else for an hour, as a repair that nobody ends is one.
    """
    out = _Out(present)
    yield from _vanished(present, out)
    yield from _never_seen(present, out)


class _Out:
    """Which GPUs need not be read, by their agents' word; and of which a release stands."""

    def __init__(self, present: Present) -> None:
        fleet, hosts = present.fleet, present.fleet.devices["gpu"].host
        drivers = [
            row
            for row in np.flatnonzero(present.heard("probe_1s") <= SILENT_SECONDS_MAX).tolist()
            if present.name("probe_1s", row)[1] == GPU_LANE
        ]
        of_drivers = fleet.devices["probe"].host[drivers]
        everywhere = np.arange(len(fleet))
        is_out = np.isin(everywhere, of_drivers)
        seconds = present.gauge("probe_1s", "hung_seconds")[drivers]
        hangs = np.isin(everywhere, of_drivers[seconds > 0.0])
        known = np.minimum(fleet.heard_ns - fleet.first_ns, present.host_now_ns) / 1e9
        #: By host: all its GPUs are, whether they were ever read or not.
        self.hosts: Flags = hangs | (is_out & (known <= OUT_SECONDS_MAX))
        heard = present.heard("gpu_1s")
        unread = np.where(np.isfinite(heard), heard, known[hosts])
        gpu_is_out = is_out[hosts] | (present.heard("gpu_1s_probe") <= SILENT_SECONDS_MAX)
        gpu_hangs = hangs[hosts] | (present.gauge("gpu_1s_probe", "probe_hung_seconds") > 0.0)
        #: By GPU that has a row of readings.
        self.gpus: Flags = gpu_hangs | (gpu_is_out & (unread <= OUT_SECONDS_MAX))
        self._released = set(_released(present))

    def words(self, host: int, device: str) -> str:
        """Return what to do about a GPU that is missing because it was released."""
        if self._released.isdisjoint(((host, device), (host, ""))):
            return ""
        return (
            ": its agent has let go of it; on the host `gangline release --status` says why, and "
            "`gangline resume` takes it back"
        )


def _released(present: Present) -> Iterator[tuple[int, str]]:
    """Yield (host, GPU) of what is released now; an empty GPU for all of a host's."""
    for row in np.flatnonzero(present.state("probe_1s", "state") == RELEASED).tolist():
        host, name = present.name("probe_1s", row)
        yield host, gpu_at(present, host, name.partition(" ")[2])


def _vanished(present: Present, out: _Out) -> Iterator[Symptom]:
    heard, hosts = present.heard("gpu_1s"), present.fleet.devices["gpu"].host
    silent = np.isfinite(heard) & (heard > SILENT_SECONDS_MAX)
    for row in np.flatnonzero(present.awake[hosts] & silent & ~out.gpus).tolist():
        host, device = present.name("gpu_1s", row)
        yield Symptom(
            rule=UNSEEN,
            host=host,
            device=device,
            signal="gpu.sm_clock_hertz",
            value=float(round(heard[row])),
            unit="seconds",
            normal="a reading every second",
            words=f"no reading of {short(device)} for {heard[row]:.0f} s while its host goes on"
            + out.words(host, device),
            sql=present.sql("gpu_1s", row, f"{present.age()}, sm_clock_hertz", heard[row] + 60),
        )


def _never_seen(present: Present, out: _Out) -> Iterator[Symptom]:
    """A GPU that the inventory lists has no reading in this boot, while its neighbours have."""
    gpus = present.fleet.devices["gpu"]
    is_read = present.fleet.gpus_read
    read = np.bincount(gpus.host[is_read], minlength=len(present.fleet))
    for host in np.flatnonzero(present.awake & (read < present.fleet.gpus)).tolist():
        for kind, device in present.fleet.attributes[host]:
            row = gpus.find(host, device)
            settled = out.hosts[host] if row < 0 else is_read[row] or out.gpus[row]
            if kind != "gpu" or settled:
                continue
            alone = not gpus.of_host(host)
            yield Symptom(
                rule=NEVER_SEEN,
                host=host,
                device=device,
                signal="gpu.sm_clock_hertz",
                value=0.0,
                unit="readings",
                normal="a reading every second",
                words=f"{short(device)} is there, but nothing reads it"
                + (" while its neighbours answer" if read[host] else "; nor any other GPU here")
                + out.words(host, device),
                sql=_readings_of_each(present, host),
                state=State.HEALTHY if alone else None,
                hazard_factor=1.0 if alone else 0.0,
            )


def _readings_of_each(present: Present, host: int) -> str:
    """Return the query for how many readings of this boot there are of each GPU that *host* has."""
    booted = present.moment(-present.host_now_ns[host] / 1e9)
    return (
        "SELECT device, attributes, (SELECT count(*) FROM readings.gpu_1s AS r WHERE r.host = d.host "
        f"AND r.device = d.device AND r.time BETWEEN {booted} AND {present.moment(1)}) AS readings "
        f"FROM devices AS d WHERE host = {quoted(present.fleet.names[host])} AND kind = 'gpu' ORDER BY readings"
    )
