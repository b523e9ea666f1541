"""GPUs that a host had, or was declared to have, and does not have now; and GPU hosts of which no GPU is read.

Missing is neither zero nor healthy: a host that boots with seven of eight GPUs is no sounder than with eight, and one
that boots with none is no host without GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import NamedTuple

import numpy as np

from ...fleet.collector_status import BLIND, ERROR, HUNG
from ...fleet.known_gpus import EXPECTED_KIND, ExpectedGpus, Shown
from ...model import Reason, State
from ...sql import quoted
from ..rule import Rule, Symptom, short
from ..view import Present
from .gpu import Out

#: What evidence of missing GPUs bears, as the row of `contract/host_policy.toml` does.
SIGNAL = "gpu.missing"
#: A driver that is loaded again, or a reset of all GPUs, takes less (assumed).
SETTLING_SECONDS = 120.0
#: After a boot the driver is built, loaded, and starts its GPUs (assumed; ports are given as long).
BOOTING_SECONDS = 300.0
#: GPUs that the words name one by one.
NAMED_MAX = 4

MISSING = Rule(
    SIGNAL,
    State.UNHEALTHY,
    Reason.XID_FATAL,
    "the host has as many GPUs as before, or `[[expected]] gpus` declares fewer for it",
    enter_seconds=SETTLING_SECONDS,
    leave_seconds=10.0,
    hazard_factor=20_000.0,
)
#: The same on a host that is booting: it counts once the host has had time.
BOOTING = replace(MISSING, enter_seconds=inf)
UNREAD = Rule(
    "gpu.none_read",
    State.UNKNOWN,
    Reason.BLIND,
    "readings of its GPUs come for 5 s",
    leave_seconds=5.0,
    hazard_factor=10.0,
)
#: By this its holds are found, too.
UNREAD_KEY = UNREAD.name, "host"


class Lack(NamedTuple):
    """How many GPUs a host has of how many, and which are missing (GPU -> PCI address), as far as that is known."""

    has: int
    of: int
    gone: dict[str, str]
    declared: str  # where so many are declared; "" where the host had them


def missing_gpus(present: Present) -> Iterator[Symptom]:
    """A host has fewer GPUs than it had before, or than are declared for it."""
    fleet, out = present.fleet, Out(present)
    known = fleet.known_gpus
    wanted = present.gpus_declared
    hosts = {fleet.index[name] for name in known.lacking if name in fleet.index}
    hosts.update(np.flatnonzero(wanted > present.gpus_read).tolist())
    for host in sorted(hosts):
        if not present.awake[host] or out.hosts[host] or not _is_trusted(present, host):
            continue
        expected = fleet.expecting.expected.get(host)
        where = expected.where if expected and np.isfinite(wanted[host]) else ""
        lack = _lack(present, host, out, int(wanted[host]) if where else None, str(where))
        if lack is not None:
            yield _symptom(present, host, lack)


def _is_trusted(present: Present, host: int) -> bool:
    """Say whether the host's inventory could list its GPUs: one that failed at that says nothing of them."""
    unwell = (BLIND, ERROR, HUNG)
    return not any(
        source.name == "inventory" and source.outcome in unwell and "GPUs:" in source.words
        for source in present.fleet.sources.of(host)
    )


def _lack(present: Present, host: int, out: Out, wanted: int | None, where: str) -> Lack | None:
    """Return what *host* lacks of *wanted* GPUs (None: of those that it had); None for nothing."""
    fleet, gpus = present.fleet, present.fleet.devices["gpu"]
    name = fleet.names[host]
    known = fleet.known_gpus.of(name)
    if known.shown is None:
        return None
    shown, is_read = known.shown, present.gpu_is_read
    there = {*shown.found, *shown.hidden}
    for row in gpus.rows_of(host):
        if is_read[row] or out.gpus[row]:
            device = gpus.names[row]
            there.add(fleet.known_gpus.key_at(name, device) or device)
    gone = {key: at for key, at in known.lacks.items() if key not in there}
    has = len(there) + len(shown.passed)
    if wanted is None:
        return Lack(has, has + len(gone), gone, "") if gone else None
    return Lack(has, wanted, gone, where) if has < wanted else None


def _symptom(present: Present, host: int, lack: Lack) -> Symptom:
    known = present.fleet.known_gpus.of(present.fleet.names[host])
    booting = 0 < present.host_now_ns[host] < BOOTING_SECONDS * 1e9
    told = f"{lack.of} declared ({lack.declared})" if lack.declared else f"it had {lack.of}"
    return Symptom(
        rule=BOOTING if booting else MISSING,
        host=host,
        device="host",
        signal=SIGNAL,
        value=float(lack.of - lack.has),
        unit="GPUs",
        normal=f"{lack.of} GPUs",
        words=f"{lack.has} GPUs, {told}{_named(lack.gone)}{_bus(known.shown, lack)}",
        sql=f"SELECT kind, device, attributes FROM devices WHERE host = {quoted(present.fleet.names[host])} "
        f"AND kind IN ('gpu', '{EXPECTED_KIND}') ORDER BY kind DESC, device",
        whose="GPUs",
    )


def _named(gone: dict[str, str]) -> str:
    if not gone:
        return ""
    named = [f"{short(key)} at {at}" if at else short(key) for key, at in list(gone.items())]
    more = [f"{len(named) - NAMED_MAX} more"] if len(named) > NAMED_MAX else []
    return f": {', '.join([*named[:NAMED_MAX], *more])} missing"


def _bus(shown: Shown | None, lack: Lack) -> str:
    """Say what the PCI bus shows, where that was told: it tells a driver that does not start from a GPU that is gone."""
    if shown is None or not shown.on_bus:
        return ""
    if shown.on_bus >= lack.of:
        return f"; the PCI bus shows {shown.on_bus}, so look at the driver (dmesg)"
    return f"; the PCI bus shows {shown.on_bus}"


def unread_hosts(present: Present) -> Iterator[Symptom]:
    """A host has GPUs, and none of them is read: nothing is known of what jobs would meet there."""
    out, gpus = Out(present), present.fleet.gpus
    for host in np.flatnonzero(present.unread_hosts & ~out.hosts).tolist():
        count = int(gpus[host])
        known = present.fleet.known_gpus.of(present.fleet.names[host])
        yield Symptom(
            rule=UNREAD,
            host=host,
            device="host",
            signal=UNREAD.name,
            value=0.0,
            unit="GPUs",
            normal=f"{count} GPUs read",
            words=f"none of its {count} GPUs is read{_because(present, host, known)}",
            sql=f"SELECT device, attributes FROM devices WHERE host = {quoted(present.fleet.names[host])} "
            "AND (kind = 'gpu' OR attributes['vendor'] = '0x10de') ORDER BY device",
            whose="GPUs",
        )


def _because(present: Present, host: int, known: ExpectedGpus) -> str:
    """Return what the collector of GPUs says of it."""
    sources = present.fleet.sources.of(host)
    words = next((s.words for s in sources if s.name.startswith("gpu_") and s.words), "")
    if words:
        return f": {words}"
    on_bus = known.shown.on_bus if known.shown else 0
    return f"; {on_bus} are on its PCI bus" if on_bus else ""
