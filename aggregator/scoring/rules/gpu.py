"""GPUs without readings, GPUs that request a repair, and errors of GPU memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypedDict

import numpy as np

from ...arrays import Flags
from ...model import HealthState, Reason
from ...rule_catalogue import gpu as rules
from ...sql import quoted
from ..detectors import detects
from ..rule_rows import recent_counts
from ..symptom import Symptom, short
from ..view import SILENT_SECONDS_MAX, FleetView
from .agent import GPU_GROUP, RELEASED, gpu_at

#: A new agent needs this time to read all GPUs.
NEVER_READ = replace(rules.UNSEEN, enter_seconds=SILENT_SECONDS_MAX)
#: A GPU that is released for repair longer than this is reported, because it may be forgotten.
OUT_SECONDS_MAX = 3600.0

#: `gpu.recovery_action_state` as text (nvml.h, nvmlDeviceGpuRecoveryAction).
ACTIONS = {
    1: "a reset",
    2: "a reboot",
    3: "its peer-to-peer work drained",
    4: "a drain and reset",
    5: "its IMEX domain recovered",
    6: "a reset of its PCIe bus",
    7: "a reboot of the system",
}
#: Actions that concern only the GPU's links to others.
PARTIAL = (3, 5)

#: `gpu.error_code_state` as text (nvmlReturn_t of nvml.h), and the codes of a GPU that cannot be
#: used. Others, such as 17 (operating system), 19 (in use) and 20 (memory), may concern the host or
#: the process.
NVML_ERRORS = {
    8: "INSUFFICIENT_POWER: its power cables are not attached",
    10: "TIMEOUT",
    11: "IRQ_ISSUE: the kernel found a problem with its interrupts",
    14: "CORRUPTED_INFOROM",
    16: "RESET_REQUIRED: it must be reset before it can be used",
    17: "OPERATING_SYSTEM",
    19: "IN_USE",
    20: "MEMORY",
    23: "INSUFFICIENT_RESOURCES",
    27: "NOT_READY",
    29: "INVALID_STATE",
    999: "UNKNOWN: an internal error of its driver",
}
RESET_REQUIRED = 16
UNUSABLE = frozenset((8, 10, 11, RESET_REQUIRED, 999))

#: Corrected errors within about 10 s: WATCH and SUSPECT. The median GPU has none in its life; the
#: tail is heavy, so only a change of the rate counts.
BURST_ERRORS, STORM_ERRORS = 10.0, 60.0
#: Ratio of the rate over 10 s to that over 10 minutes. A continuing burst becomes normal within
#: minutes, so a storm needs no change.
CHANGE_RATIO = 5.0
PER_TEN_SECONDS = "errors in 10 s"
STORM_HAZARD_FACTOR = 50.0
#: Data lost within this time has this larger factor.
LOST_DATA_NOW_HAZARD_FACTOR, LOST_DATA_NOW_SECONDS = 100.0, 600.0


@detects(rules.RECOVERY)
def recovery_actions(view: FleetView) -> Iterator[Symptom]:
    """Name each GPU whose driver requests a recovery action."""
    action = view.state("gpu_1s", "recovery_action_state")
    for row in np.flatnonzero((action > 0) & (action <= max(ACTIONS))).tolist():
        host, device = view.name("gpu_1s", row)
        partial = int(action[row]) in PARTIAL
        yield Symptom(
            rule=rules.RECOVERY,
            host=host,
            device=device,
            signal="gpu.recovery_action_state",
            value=float(action[row]),
            normal="0",
            message=f"{short(device)}: its driver requests {ACTIONS[int(action[row])]}",
            sql=view.sql("gpu_1s", row, "recovery_action_state", 120),
            state=HealthState.SUSPECT if partial else None,
            reason=Reason.NVLINK_ERRORS if partial else None,
            hazard_factor=50.0 if partial else 0.0,
        )


@detects(rules.NO_ANSWER)
def gpus_without_answer(view: FleetView) -> Iterator[Symptom]:
    """Name each GPU that answers no NVML call, or must be reset: CUDA fails there, too."""
    codes = view.state("gpu_1s_changes", "error_code_state")
    for row in np.flatnonzero(codes > 0).tolist():
        host, device = view.name("gpu_1s_changes", row)
        code = int(codes[row])
        error = f"NVML error {code}" + (f" ({NVML_ERRORS[code]})" if code in NVML_ERRORS else "")
        verb = "reports" if code == RESET_REQUIRED else "answers every call with"
        yield Symptom(
            rule=rules.NO_ANSWER,
            host=host,
            device=device,
            signal="gpu.error_code_state",
            value=float(code),
            normal="0",
            message=f"{short(device)} {verb} {error}",
            sql=view.sql("gpu_1s_changes", row, "error_code_state", 120),
            state=HealthState.UNHEALTHY if code in UNUSABLE else None,
            hazard_factor=1000.0 if code in UNUSABLE else 0.0,
        )


@detects(rules.UNSEEN)
def unseen_gpus(view: FleetView) -> Iterator[Symptom]:
    """Name each GPU without readings on a host that reports: fields vanish before faults.

    A GPU that its agent reports as hung or released, now or until a moment ago, is skipped while
    its hang is a finding, else for an hour, because a repair that never ends is a fault.
    """
    out_of_service = OutOfServiceGpus(view)
    yield from _vanished(view, out_of_service)
    yield from _never_read(view, out_of_service)


class _Weight(TypedDict, total=False):
    state: HealthState
    hazard_factor: float


class OutOfServiceGpus:
    """GPUs that need not be read, as their agents report, and releases in force."""

    def __init__(self, view: FleetView) -> None:
        fleet, hosts = view.fleet, view.fleet.devices["gpu"].host
        drivers = [
            row
            for row in np.flatnonzero(view.age_seconds("probe_1s") <= SILENT_SECONDS_MAX).tolist()
            if view.name("probe_1s", row)[1] == GPU_GROUP
        ]
        of_drivers = fleet.devices["probe"].host[drivers]
        everywhere = np.arange(len(fleet))
        is_out = np.isin(everywhere, of_drivers)
        seconds = view.gauge("probe_1s", "hung_seconds")[drivers]
        hangs = np.isin(everywhere, of_drivers[seconds > 0.0])
        known = np.minimum(fleet.last_received_ns - fleet.first_received_ns, view.host_now_ns) / 1e9
        #: By host: none of its GPUs needs readings, including GPUs that were never read.
        self.hosts: Flags = hangs | (is_out & (known <= OUT_SECONDS_MAX))
        age_seconds = view.age_seconds("gpu_1s")
        unread = np.where(np.isfinite(age_seconds), age_seconds, known[hosts])
        gpu_is_out = is_out[hosts] | (view.age_seconds("gpu_1s_probe") <= SILENT_SECONDS_MAX)
        gpu_hangs = hangs[hosts] | (view.gauge("gpu_1s_probe", "probe_hung_seconds") > 0.0)
        #: By GPU with a row of readings.
        self.gpus: Flags = gpu_hangs | (gpu_is_out & (unread <= OUT_SECONDS_MAX))
        self._released = set(_released(view))

    def message(self, host: int, device: str) -> str:
        """Return the remedy for a GPU that is missing because it was released."""
        if self._released.isdisjoint(((host, device), (host, ""))):
            return ""
        return ": its agent has released it; on the host `gangline release --status` shows why, and `gangline resume` reopens it"


def _released(view: FleetView) -> Iterator[tuple[int, str]]:
    """Yield (host, GPU) of each release in force; the GPU is "" if all of a host's are released."""
    for row in np.flatnonzero(view.state("probe_1s", "state") == RELEASED).tolist():
        host, name = view.name("probe_1s", row)
        yield host, gpu_at(view, host, name.partition(" ")[2])


def _vanished(view: FleetView, out_of_service: OutOfServiceGpus) -> Iterator[Symptom]:
    age_seconds, hosts = view.age_seconds("gpu_1s"), view.fleet.devices["gpu"].host
    silent = np.isfinite(age_seconds) & (age_seconds > SILENT_SECONDS_MAX)
    # If all GPUs of a host are silent, the fault is its driver or its agent.
    reporting = np.bincount(hosts[~silent], minlength=len(view.fleet))
    for row in np.flatnonzero(view.awake[hosts] & silent & ~out_of_service.gpus).tolist():
        host, device = view.name("gpu_1s", row)
        yield Symptom(
            rule=rules.UNSEEN,
            host=host,
            device=device,
            signal="gpu.sm_clock_hertz",
            value=float(round(age_seconds[row])),
            unit="seconds",
            normal="a reading every second",
            message=f"no reading of {short(device)} for {age_seconds[row]:.0f} s while its host keeps reporting"
            + out_of_service.message(host, device),
            sql=view.sql("gpu_1s", row, f"{view.age()}, sm_clock_hertz", age_seconds[row] + 60),
            fault_source="GPUs" if not reporting[host] or _is_gone(view, host, device) else "",
            **_weightless(view.unread_hosts[host]),
        )


def _is_gone(view: FleetView, host: int, device: str) -> bool:
    """Return whether the host no longer lists a GPU, which `missing_gpus.py` reports."""
    return device in view.fleet.known_gpus.of(view.fleet.names[host]).missing_gpus


def _weightless(is_unread: bool) -> _Weight:
    """Return the weight of an unread GPU: none if `gpu.none_read` covers its host."""
    return {"state": HealthState.HEALTHY, "hazard_factor": 1.0} if is_unread else {}


def _never_read(view: FleetView, out_of_service: OutOfServiceGpus) -> Iterator[Symptom]:
    """Name each GPU that is listed, or was present before, and has no reading in this boot."""
    gpus = view.fleet.devices["gpu"]
    is_read = view.fleet.gpus_read
    read = np.bincount(gpus.host[is_read], minlength=len(view.fleet))
    known, retired = view.fleet.known_gpus, view.gpus_declared
    for host in np.flatnonzero(view.awake & (read < view.fleet.gpus)).tolist():
        gone = {} if read[host] >= retired[host] else known.of(view.fleet.names[host]).missing_gpus
        listed = view.fleet.attributes[host]
        for kind, device in (
            *listed,
            *(("gpu", key) for key in gone if ("gpu", key) not in listed),
        ):
            row = gpus.find(host, device)
            settled = (
                out_of_service.hosts[host] if row < 0 else is_read[row] or out_of_service.gpus[row]
            )
            if kind != "gpu" or settled:
                continue
            state = "is there, but" if ("gpu", device) in listed else "was here before, and"
            yield Symptom(
                rule=NEVER_READ,
                host=host,
                device=device,
                signal="gpu.sm_clock_hertz",
                value=0.0,
                unit="readings",
                normal="a reading every second",
                message=f"{short(device)} {state} nothing reads it"
                + (" while its neighbours answer" if read[host] else "; nor any other GPU here")
                + out_of_service.message(host, device),
                sql=_readings_of_each(view, host),
                fault_source="GPUs" if device in gone or not read[host] else "",
                **_weightless(view.unread_hosts[host]),
            )


def _readings_of_each(view: FleetView, host: int) -> str:
    """Return the query for the number of readings per GPU of *host* in this boot."""
    booted = view.timestamp_sql(-view.host_now_ns[host] / 1e9)
    return (
        "SELECT device, attributes, (SELECT count(*) FROM readings.gpu_1s AS r WHERE r.host = d.host "
        f"AND r.device = d.device AND r.time BETWEEN {booted} AND {view.timestamp_sql(1)}) AS readings "
        f"FROM devices AS d WHERE host = {quoted(view.fleet.names[host])} AND kind = 'gpu' ORDER BY readings"
    )


@detects(rules.ECC)
def corrected_bursts(view: FleetView) -> Iterator[Symptom]:
    """Name each GPU that repairs far more bit errors than before, or more than any GPU should."""
    column = "ecc_corrected_volatile_errors"
    recent = view.recent("gpu_1s_changes", column)
    baseline = view.rates("gpu_1s_changes", column, slow=True)
    changed = recent / 10.0 > CHANGE_RATIO * baseline
    storms = recent >= STORM_ERRORS
    for row in np.flatnonzero(storms | ((recent >= BURST_ERRORS) & changed)).tolist():
        host, device = view.name("gpu_1s_changes", row)
        storm = bool(storms[row])
        yield Symptom(
            rule=rules.ECC,
            host=host,
            device=device,
            signal="gpu.ecc_corrected_volatile_errors",
            value=round(float(recent[row]), 1),
            unit=PER_TEN_SECONDS,
            normal=f"below {BURST_ERRORS:.0f}; most GPUs never have any",
            message=f"{short(device)} repaired about {recent[row]:.0f} bit errors in the last 10 s",
            sql=view.sql_counter("gpu_1s_changes", row, column, PER_TEN_SECONDS, 10),
            state=HealthState.SUSPECT if storm else None,
            hazard_factor=STORM_HAZARD_FACTOR if storm else 0.0,
        )


@detects(rules.LOST_DATA)
def lost_data(view: FleetView) -> Iterator[Symptom]:
    """Name each GPU with uncorrectable memory errors since its last reset."""
    column = "ecc_uncorrected_volatile_errors"
    errors = view.state("gpu_1s_changes", column)
    known = view.known("gpu_1s_changes", column)
    recent, _ = recent_counts(view, "gpu_1s_changes", column, 0.1, LOST_DATA_NOW_SECONDS)
    fresh = set(recent.tolist())
    for row in np.flatnonzero(known & (errors > 0) & (errors < 2**32 - 1)).tolist():
        host, device = view.name("gpu_1s_changes", row)
        now = row in fresh
        yield Symptom(
            rule=rules.LOST_DATA,
            host=host,
            device=device,
            signal="gpu.ecc_uncorrected_volatile_errors",
            value=float(errors[row]),
            normal="0",
            message=f"{short(device)} lost data: uncorrectable memory errors, {errors[row]} "
            + ("in all" if now else "since its last reset"),  # a finding's message stays for hours
            sql=view.sql("gpu_1s_changes", row, column, 600),
            state=HealthState.SUSPECT if now else None,
            hazard_factor=LOST_DATA_NOW_HAZARD_FACTOR if now else 0.0,
        )
