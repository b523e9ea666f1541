"""GPUs that a host had, or was declared to have, and lacks; and hosts with no GPU read.

A host that boots with seven of eight GPUs is no healthier than with eight, and a host that boots
with none is still a GPU host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import NamedTuple

import numpy as np

from ...fleet.collector_status import BLIND, ERROR, HUNG
from ...fleet.known_gpus import ExpectedGpus, RegisteredGpus
from ...model import EXPECTED_KIND
from ...rule_catalogue import gpu as rules
from ...sql import quoted
from ..detectors import detects
from ..symptom import Symptom, short
from ..view import FleetView
from .gpu import OutOfServiceGpus

#: After a boot the driver is built, loaded, and starts its GPUs (assumed).
BOOTING_SECONDS = 300.0
#: Maximum GPUs named in a message.
NAMED_MAX = 4

#: MISSING on a booting host never becomes active.
BOOTING = replace(rules.MISSING, enter_seconds=inf)
#: Key of the tracked symptom of an unread host.
UNREAD_KEY = rules.UNREAD.name, "host"


class MissingGpus(NamedTuple):
    """GPUs that a host has and should have, and known missing ones (GPU -> PCI address)."""

    has: int
    expected: int
    missing: dict[str, str]
    declared: str  # where *expected* is declared; "" if the host had these GPUs before


@detects(rules.MISSING)
def missing_gpus(view: FleetView) -> Iterator[Symptom]:
    """Name each host with fewer GPUs than it had before, or than are declared for it."""
    fleet, out_of_service = view.fleet, OutOfServiceGpus(view)
    known = fleet.known_gpus
    wanted = view.gpus_declared
    hosts = {fleet.index[name] for name in known.hosts_missing_gpus if name in fleet.index}
    hosts.update(np.flatnonzero(wanted > view.gpus_read).tolist())
    for host in sorted(hosts):
        if not view.awake[host] or out_of_service.hosts[host] or not _is_trusted(view, host):
            continue
        expected = fleet.expectations.expected.get(host)
        where = expected.where if expected and np.isfinite(wanted[host]) else ""
        missing = _find_missing(
            view, host, out_of_service, int(wanted[host]) if where else None, str(where)
        )
        if missing is not None:
            yield _symptom(view, host, missing)


def _is_trusted(view: FleetView, host: int) -> bool:
    """Return whether the host's inventory could list its GPUs; a failed one cannot."""
    failed = (BLIND, ERROR, HUNG)
    return not any(
        status.name == "inventory" and status.outcome in failed and "GPUs:" in status.message
        for status in view.fleet.collector_statuses.of(host)
    )


def _find_missing(
    view: FleetView, host: int, out_of_service: OutOfServiceGpus, wanted: int | None, where: str
) -> MissingGpus | None:
    """Return the GPUs that *host* lacks of *wanted* (None: of its earlier GPUs); None for none."""
    fleet, gpus = view.fleet, view.fleet.devices["gpu"]
    name = fleet.names[host]
    known = fleet.known_gpus.of(name)
    if known.registered is None:
        return None
    registered, is_read = known.registered, view.gpu_is_read
    present = {*registered.found, *registered.hidden}
    for row in gpus.rows_of(host):
        if is_read[row] or out_of_service.gpus[row]:
            device = gpus.names[row]
            present.add(fleet.known_gpus.key_at(name, device) or device)
    missing = {key: address for key, address in known.missing_gpus.items() if key not in present}
    has = len(present) + len(registered.passed_through)
    if wanted is None:
        return MissingGpus(has, has + len(missing), missing, "") if missing else None
    return MissingGpus(has, wanted, missing, where) if has < wanted else None


def _symptom(view: FleetView, host: int, missing: MissingGpus) -> Symptom:
    known = view.fleet.known_gpus.of(view.fleet.names[host])
    booting = 0 < view.host_now_ns[host] < BOOTING_SECONDS * 1e9
    if missing.declared:
        expected_text = f"{missing.expected} declared ({missing.declared})"
    else:
        expected_text = f"it had {missing.expected}"
    return Symptom(
        rule=BOOTING if booting else rules.MISSING,
        host=host,
        device="host",
        signal=rules.MISSING.name,
        value=float(missing.expected - missing.has),
        unit="GPUs",
        normal=f"{missing.expected} GPUs",
        message=f"{missing.has} GPUs, {expected_text}{_missing_text(missing.missing)}{_bus_text(known.registered, missing)}",
        sql=f"SELECT kind, device, attributes FROM devices WHERE host = {quoted(view.fleet.names[host])} "
        f"AND kind IN ('gpu', '{EXPECTED_KIND}') ORDER BY kind DESC, device",
        fault_source="GPUs",
    )


def _missing_text(missing: dict[str, str]) -> str:
    if not missing:
        return ""
    named = [
        f"{short(key)} at {address}" if address else short(key)
        for key, address in list(missing.items())
    ]
    more = [f"{len(named) - NAMED_MAX} more"] if len(named) > NAMED_MAX else []
    return f": {', '.join([*named[:NAMED_MAX], *more])} missing"


def _bus_text(registered: RegisteredGpus | None, missing: MissingGpus) -> str:
    """Return the PCI bus's GPU count, if known: it separates failed drivers from lost GPUs."""
    if registered is None or not registered.on_bus:
        return ""
    if registered.on_bus >= missing.expected:
        return f"; the PCI bus shows {registered.on_bus}, so look at the driver (dmesg)"
    return f"; the PCI bus shows {registered.on_bus}"


@detects(rules.UNREAD)
def unread_hosts(view: FleetView) -> Iterator[Symptom]:
    """Name each host with GPUs of which none is read: a job's chances there are unknown."""
    out_of_service, gpus = OutOfServiceGpus(view), view.fleet.gpus
    for host in np.flatnonzero(view.unread_hosts & ~out_of_service.hosts).tolist():
        count = int(gpus[host])
        known = view.fleet.known_gpus.of(view.fleet.names[host])
        yield Symptom(
            rule=rules.UNREAD,
            host=host,
            device="host",
            signal=rules.UNREAD.name,
            value=0.0,
            unit="GPUs",
            normal=f"{count} GPUs read",
            message=f"none of its {count} GPUs has readings{_reason_text(view, host, known)}",
            sql=f"SELECT device, attributes FROM devices WHERE host = {quoted(view.fleet.names[host])} "
            "AND (kind = 'gpu' OR attributes['vendor'] = '0x10de') ORDER BY device",
            fault_source="GPUs",
        )


def _reason_text(view: FleetView, host: int, known: ExpectedGpus) -> str:
    sources = view.fleet.collector_statuses.of(host)
    message = next((s.message for s in sources if s.name.startswith("gpu_") and s.message), "")
    if message:
        return f": {message}"
    on_bus = known.registered.on_bus if known.registered else 0
    return f"; {on_bus} are on its PCI bus" if on_bus else ""
