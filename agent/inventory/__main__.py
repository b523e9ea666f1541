"""The inventory child: reads everything once, prints one JSON object on one line, exits.

A section that fails or hangs loses only its own data: the rest is printed, with the error message.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ..hardware.files import Roots
from . import HostDevice, host, links
from .gpus import amd_devices, gpus

#: In the order of the output.
SECTIONS: dict[str, Callable[[Roots], list[HostDevice]]] = {
    "NUMA nodes": host.numa_nodes,
    "PCIe functions": host.pcie_functions,
    "disks": host.disks,
    "NVMe controllers": host.nvme_controllers,
    "filesystems": host.filesystems,
    "sensors": host.sensors,
    "memory modules": host.memory_modules,
    "kernel settings": host.kernel_settings,
    "RDMA ports": links.rdma,
    "network interfaces": links.interfaces,
    "GPUs": gpus,
    "AMD GPUs": amd_devices,
}


def main(arguments: list[str]) -> int:
    """Print the inventory. Exits 0 even if parts are missing: the object lists the problems."""
    parser = argparse.ArgumentParser(prog="gangline.agent.inventory")
    parser.add_argument("--sys", type=Path, default=Path("/sys"))
    parser.add_argument("--proc", type=Path, default=Path("/proc"))
    parser.add_argument("--nvml", help="path of the NVML library")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="time limit of all sections together"
    )
    parser.add_argument(
        "--until-stdin-ends",
        action="store_true",
        help="exit when standard input closes, which happens when the agent exits",
    )
    parser.add_argument(
        "--leave-out", default="", help="GPUs not to touch: PCI addresses with commas, or `all`"
    )
    options = parser.parse_args(arguments)
    if options.until_stdin_ends:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    roots = Roots(options.sys, options.proc, options.nvml)
    left_out = None if options.leave_out == "all" else _names(options.leave_out)
    sections = SECTIONS | {
        "GPUs": lambda roots: gpus(roots, left_out),
        "AMD GPUs": lambda roots: amd_devices(roots, left_out),
    }
    devices, problems = run_sections(sections, roots, options.seconds)
    answer = {
        "devices": [
            {"kind": d.kind, "key": d.key, "attributes": dict(d.attributes)} for d in devices
        ],
        "labels": host.labels(roots),
        "problems": problems,
    }
    sys.stdout.write(json.dumps(answer, sort_keys=True) + "\n")
    sys.stdout.flush()
    return 0


def _names(text: str) -> frozenset[str]:
    return frozenset(filter(None, text.split(",")))


def _end_with_stdin() -> None:
    """Exit when the agent exits, which closes the other end of the pipe."""
    while os.read(0, 1):
        pass
    os._exit(1)


def run_sections(
    sections: Mapping[str, Callable[[Roots], list[HostDevice]]], roots: Roots, seconds_max: float
) -> tuple[list[HostDevice], list[str]]:
    """Return the sections' devices, and the problems of the others, within *seconds_max*.

    They run concurrently: a section that a driver blocks does not delay the others.
    """
    all_devices: list[HostDevice] = []
    problems: list[str] = []
    threads = {name: _SectionThread(section, roots) for name, section in sections.items()}
    deadline = time.monotonic() + seconds_max
    for name, section in threads.items():
        section.join(max(0.0, deadline - time.monotonic()))
        devices, problem = section.answer or ([], f"no answer within {seconds_max:g} s")
        all_devices += devices
        if problem:
            problems.append(f"{name}: {problem}")
    return all_devices, problems


class _SectionThread(threading.Thread):
    """A section in its own thread, which is abandoned if a driver does not return."""

    def __init__(self, section: Callable[[Roots], list[HostDevice]], roots: Roots) -> None:
        super().__init__(daemon=True)
        self._section, self._roots = section, roots
        self.answer: tuple[list[HostDevice], str] | None = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self._section(self._roots), ""
        except Exception as error:  # noqa: BLE001 - must not affect other sections
            self.answer = [], f"{type(error).__name__}: {error}"[:200]


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)  # an abandoned thread in a driver must not delay the exit
