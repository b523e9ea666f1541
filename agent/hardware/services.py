"""Services that a GPU host needs: installed, enabled and running, from unit files and cgroups, without systemd's API.

Services. Sources: systemd.unit(5) (folders of unit files, `.wants`, masking), the cgroup of a unit
(Documentation/admin-guide/cgroup-v2.rst, `populated`), /run/systemd/units (a link `invocation:UNIT`
for each active unit, src/core/unit.c). A service in a container has no unit on the host, and is
recognized by its process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .files import names_in, parse_unsigned, read_bytes

#: Below the host's root; the operator's own first (systemd.unit(5), table 1).
UNIT_FOLDERS = (
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
)
#: Below fs/cgroup: v2, the v2 tree of a hybrid host, v1.
_CGROUP_TREES = ("", "unified", "systemd")
_PROCESSES_MAX = 64
_POPULATED = re.compile(rb"^populated ([01])$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Service:
    """A service: usual name, unit names, and process name as the kernel truncates it."""

    name: str
    units: tuple[str, ...]
    process: str = ""  # empty: it runs once and leaves no process


def _daemon(process: str, *units: str) -> Service:
    return Service(units[0], tuple(f"{unit}.service" for unit in units), process[:15])


def _once(*units: str) -> Service:
    return Service(units[0], tuple(f"{unit}.service" for unit in units))


SERVICES = (
    _daemon("nv-fabricmanager", "nvidia-fabricmanager"),
    _daemon("nvidia-persistenced", "nvidia-persistenced"),
    _daemon("nvidia-imex", "nvidia-imex"),
    _daemon("nv-hostengine", "nvidia-dcgm", "dcgm"),
    _once("openibd"),
    _once("rdma-load-modules@rdma", "rdma"),
    _daemon("opensm", "opensm", "opensmd"),
    _daemon("slurmd", "slurmd"),
    _daemon("munged", "munge"),
    _daemon("kubelet", "kubelet"),
    _daemon("containerd", "containerd"),
    _daemon("chronyd", "chronyd", "chrony"),
    _daemon("ntpd", "ntpd", "ntp", "ntpsec"),
    _daemon("systemd-timesyncd", "systemd-timesyncd"),
    _daemon("ptp4l", "ptp4l"),
    _daemon("rasdaemon", "rasdaemon"),
    _daemon("irqbalance", "irqbalance"),
)
_UNITS = frozenset(unit for service in SERVICES for unit in service.units)


def is_booted(run: Path) -> bool:
    """Return whether systemd runs this host (sd_booted(3)); otherwise unit files have no effect."""
    return (run / "systemd/system").is_dir()


class UnitFiles:
    """The services' unit files, and the units wanted at boot, as listed at construction."""

    def __init__(self, root: Path) -> None:
        self._folders: dict[str, frozenset[str]] = {}
        enabled: set[str] = set()
        for folder in (f"{root}/{name}" for name in UNIT_FOLDERS):
            names = names_in(folder)
            self._folders[folder] = _UNITS.intersection(names)
            for name in names:
                if name.endswith((".wants", ".requires")):  # as `systemctl enable` links them
                    enabled.update(names_in(f"{folder}/{name}"))
        self.enabled = frozenset(enabled)

    def has(self, service: Service) -> bool:
        """Return whether a unit file exists that is not masked (a link to /dev/null)."""
        for unit in service.units:
            # The first folder wins, even with a masked unit.
            first = next((folder for folder, names in self._folders.items() if unit in names), "")
            if first and not _is_masked(f"{first}/{unit}"):
                return True
        return False


def _is_masked(path: str) -> bool:
    try:
        return os.readlink(path) == "/dev/null"
    except OSError:
        return False


def parse_populated(data: bytes | None) -> bool | None:
    """Return whether a cgroup.events file shows processes; None if it does not say."""
    match = _POPULATED.search(data or b"")
    return None if match is None else match[1] == b"1"


def parse_processes(data: bytes | None) -> list[int]:
    """Return the first PIDs of a cgroup.procs file, without 0 (a process of another namespace)."""
    numbers = [parse_unsigned(word) for word in (data or b"").split()[:_PROCESSES_MAX]]
    return [number for number in numbers if number]


def groups_of_units(sys: Path) -> dict[str, list[str]]:
    """Return the folders of the control groups of the services' units, by unit."""
    groups: dict[str, list[str]] = {}
    for tree in _CGROUP_TREES:
        folder = f"{sys}/fs/cgroup/{tree}/system.slice"
        for unit in _UNITS.intersection(names_in(folder)):
            groups.setdefault(unit, []).append(f"{folder}/{unit}")
    return groups


def processes_of_unit(groups: Mapping[str, Sequence[str]], service: Service) -> list[int] | None:
    """Return the processes in the control groups of the service's unit.

    Return None without a running process. The list is empty if all processes are in child cgroups.
    """
    for folder in (folder for unit in service.units for folder in groups.get(unit, ())):
        processes = parse_processes(read_bytes(f"{folder}/cgroup.procs"))
        if processes or parse_populated(read_bytes(f"{folder}/cgroup.events")):
            return processes
    return None


def is_active(run: Path, service: Service) -> bool:
    """Return whether systemd has an active unit of the service, also after a one-shot run."""
    return any(os.path.lexists(f"{run}/systemd/units/invocation:{unit}") for unit in service.units)
