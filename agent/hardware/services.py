"""Services that decide whether a GPU host can work: installed, enabled, running, without running a command.

Sources: systemd.unit(5) (where unit files are, `.wants`, masking), the cgroup of a unit
(Documentation/admin-guide/cgroup-v2.rst, `populated`), /run/systemd/units (a link `invocation:UNIT` for each
active unit, src/core/unit.c). A service in a container has no unit here and is known by its process.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from .files import names_in, parse_unsigned, read_bytes

#: Below the root of the host, first the operator's own (systemd.unit(5), table 1).
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
    """A service by its usual name, the names of its unit, and of its process as the kernel cuts it."""

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


def is_booted(run: Path) -> bool:
    """Say whether systemd runs this host (sd_booted(3)); without it unit files are dead letters."""
    return (run / "systemd/system").is_dir()


def is_installed(root: Path, service: Service) -> bool:
    """Say whether there is a unit file that an operator has not masked (a link to /dev/null)."""
    for unit in service.units:
        for folder in UNIT_FOLDERS:
            path = f"{root}/{folder}/{unit}"
            if os.path.lexists(path):
                if not _is_masked(path):
                    return True
                break  # the first folder wins, also when it says no
    return False


def _is_masked(path: str) -> bool:
    try:
        return os.readlink(path) == "/dev/null"
    except OSError:
        return False


def enabled_units(root: Path) -> frozenset[str]:
    """Return the units that something wants at boot, as `systemctl enable` links them."""
    found: set[str] = set()
    for folder in UNIT_FOLDERS:
        for name in names_in(root / folder):
            if name.endswith((".wants", ".requires")):
                found.update(names_in(root / folder / name))
    return frozenset(found)


def parse_populated(data: bytes | None) -> bool | None:
    """Return whether a cgroup.events file says that processes are left; None when it does not say."""
    match = _POPULATED.search(data or b"")
    return None if match is None else match[1] == b"1"


def parse_processes(data: bytes | None) -> list[int]:
    """Return the first process numbers of a cgroup.procs file. 0 (of another namespace) is none."""
    numbers = [parse_unsigned(word) for word in (data or b"").split()[:_PROCESSES_MAX]]
    return [number for number in numbers if number]


def processes_of_unit(sys: Path, service: Service) -> list[int] | None:
    """Return processes in the cgroup of the service's unit; None without a cgroup that has any.

    A unit whose processes are all in cgroups below its own has an empty list.
    """
    for unit in service.units:
        for tree in _CGROUP_TREES:
            folder = f"{sys}/fs/cgroup/{tree}/system.slice/{unit}"
            found = parse_processes(read_bytes(f"{folder}/cgroup.procs"))
            if found or parse_populated(read_bytes(f"{folder}/cgroup.events")):
                return found
    return None


def is_active(run: Path, service: Service) -> bool:
    """Say whether systemd holds a unit of the service to be active, also after it ran once and ended."""
    return any(os.path.lexists(f"{run}/systemd/units/invocation:{unit}") for unit in service.units)
