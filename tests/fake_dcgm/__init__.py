"""A stand-in for DCGM's client library and its host engine: builds it, writes what it plays."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.fake_nvml.build import compiler

SOURCE = Path(__file__).parent / "fake_dcgm.c"
MAJORS = (3, 4)


def build(folder: Path, major: int) -> Path:
    """Compile the library of one major into *folder* and return its path. Raises CalledProcessError."""
    library = folder / f"libdcgm.so.{major}"
    options = [
        "-std=gnu11",
        "-O1",
        "-Wall",
        "-Werror",
        "-fPIC",
        "-fvisibility=hidden",
        "-shared",
        "-pthread",
    ]
    link = [f"-DMAJOR={major}", f"-Wl,-soname,{library.name}", str(SOURCE), "-o", str(library)]
    subprocess.run([*compiler(), *options, *link], check=True)
    return library


def link_id(switch: int, port: int) -> int:
    """Return the id of a link of an NVSwitch, as dcgm_link_t packs it."""
    return 3 | port << 8 | switch << 16


@dataclass
class HostEngine:
    """What the stand-in plays; `write` makes it so, from the next call on."""

    path: Path
    gpus: dict[int, tuple[str, str, int]] = field(default_factory=dict[int, tuple[str, str, int]])
    lines: list[str] = field(default_factory=list[str])
    entities: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    values: dict[tuple[int, int, int], str] = field(default_factory=dict[tuple[int, int, int], str])

    def gpu(self, number: int, uuid: str, address: str, capability: int) -> None:
        """Add a GPU. *capability*: the major CUDA compute capability, 8 for Ampere, 9 for Hopper."""
        self.gpus[number] = (uuid, address, capability)
        self.set(number, 54, "s", 1, uuid)
        self.set(number, 57, "s", 1, f"0000{address.upper()}")
        self.set(number, 63, "i", 1, (capability << 16))

    def set(self, gpu: int, number: int, kind: str, timestamp_us: int, value: object) -> None:
        """Give a field its last value: a number, `blank`, or `!-16` (answers that status)."""
        self.set_of(1, gpu, number, kind, timestamp_us, value)

    def set_of(
        self, group: int, entity: int, number: int, kind: str, timestamp_us: int, value: object
    ) -> None:
        """Give a field of another entity its last value; *group* is its kind: 3 for an NVSwitch, 6 for a link."""
        line = f"field {group}:{entity} {number} {kind} {timestamp_us} {value}"
        self.values[group, entity, number] = line

    def switch(self, number: int, address: str, ports: int) -> list[int]:
        """Add an NVSwitch whose PCI address somebody has the engine watch; return the ids of its links."""
        links = [link_id(number, port) for port in range(ports)]
        self.entities += [(3, number), *((6, link) for link in links)]
        domain, bus, rest = address.split(":")
        device, function = rest.split(".")
        for field_id, digits in zip(range(866, 870), (domain, bus, device, function), strict=True):
            self.set_of(3, number, field_id, "i", 1, int(digits, 16))
        return links

    def write(self) -> None:
        """Play what is set now."""
        gpus = [f"gpu {number}" for number in self.gpus]
        gpus += [f"entity {group} {number}" for group, number in self.entities]
        new = self.path.with_suffix(".new")
        new.write_text("\n".join([*gpus, *self.values.values(), *self.lines]) + "\n")
        new.replace(self.path)

    @property
    def calls(self) -> list[str]:
        """Every call so far, with its arguments."""
        file = Path(f"{self.path}.calls")
        return file.read_text().splitlines() if file.exists() else []
