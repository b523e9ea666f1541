"""GPUs as an operator names them: by UUID, or by PCI address in any spelling that tools show. Never by index."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..hardware.nvml import driver_gpu_uuid, driver_gpus

#: Of one name, and of names in one request.
NAME_CHARACTERS_MAX = 64
NAMES_MAX = 64

#: sysfs `0000:9b:00.0`, nvidia-smi `00000000:9B:00.0`, the driver's lines `PCI:0000:9b:00`, lspci `9b:00.0`.
_ADDRESS = re.compile(
    r"(?:PCI:)?(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([01][0-9a-f])(?:\.([0-7]))?", re.IGNORECASE
)
_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


class NotAGpu(ValueError):
    """That names no GPU; the words say what would."""


def canonical(name: str) -> str:
    """Return a PCI address as sysfs writes it, or a UUID in its usual letters. Raises NotAGpu."""
    name = name.strip()
    if match := _ADDRESS.fullmatch(name):
        domain, bus, device, function = match.groups()
        return f"{int(domain or '0', 16):04x}:{bus.lower()}:{device.lower()}.{function or 0}"
    if _UUID.fullmatch(name):
        return "GPU-" + name[4:].lower()
    shown = repr(name[:NAME_CHARACTERS_MAX])
    if name.isdigit():
        raise NotAGpu(
            f"{shown} is an index, and names another GPU once one is lost: "
            "give a UUID or PCI address, as nvidia-smi -L or lspci shows it"
        )
    if name.upper().startswith("MIG-"):
        raise NotAGpu(f"{shown} is a MIG instance: name the GPU that it is part of")
    raise NotAGpu(f"{shown}: expected a UUID (GPU-...) or a PCI address (0000:9b:00.0)")


def known_gpus(proc: Path) -> dict[str, str]:
    """Return PCI address -> UUID (empty when not known) of every GPU that the driver has, without entering it."""
    return {address: driver_gpu_uuid(proc, address) for address in driver_gpus(proc)}


def addresses_of(names: Sequence[str], known: Mapping[str, str]) -> frozenset[str]:
    """Return the PCI addresses of these GPUs. Raises NotAGpu for one that is not among the *known*.

    Where no GPU is known (there is no driver), addresses stand as they are.
    """
    if len(names) > NAMES_MAX:
        raise NotAGpu(f"{len(names)} names, at most {NAMES_MAX}; none stands for all GPUs")
    return frozenset(_address(canonical(name), known) for name in names)


def _address(name: str, known: Mapping[str, str]) -> str:
    if name in known or (not known and not name.startswith("GPU-")):
        return name
    for address, uuid in known.items():
        if uuid.lower() == name.lower():
            return address
    raise NotAGpu(f"{name}: this host has no such GPU; it has {_listed(known.items())}")


def _listed(gpus: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{address} {uuid}".strip() for address, uuid in gpus) or "none"
