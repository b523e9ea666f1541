"""The child: looks at everything once, prints one JSON object on one line, ends.

A section that fails or does not return costs only itself: the rest is printed, with the problem's words.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from ..hardware.roots import Roots
from . import Device, kernel, labels, links
from .gpus import gpus

#: Those that enter a driver's library come last.
SECTIONS: dict[str, Callable[[Roots], list[Device]]] = {
    "NUMA nodes": kernel.numa_nodes,
    "PCIe functions": kernel.pcie_functions,
    "disks": kernel.disks,
    "filesystems": kernel.filesystems,
    "sensors": kernel.sensors,
    "RDMA ports": kernel.rdma_ports,
    "network interfaces": links.interfaces,
    "GPUs": gpus,
}


def main(arguments: list[str]) -> int:
    """Print the inventory. Exits 0 also when parts are missing: the problems are in the object."""
    parser = argparse.ArgumentParser(prog="gangline.agent.inventory")
    parser.add_argument("--sys", type=Path, default=Path("/sys"))
    parser.add_argument("--proc", type=Path, default=Path("/proc"))
    parser.add_argument("--nvml", help="path of the NVML library")
    parser.add_argument("--seconds", type=float, default=10.0, help="limit of each section")
    parser.add_argument(
        "--until-stdin-ends",
        action="store_true",
        help="end when standard input does: the agent's end",
    )
    options = parser.parse_args(arguments)
    if options.until_stdin_ends:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    roots = Roots(options.sys, options.proc, options.nvml)
    found, problems = look(SECTIONS, roots, options.seconds)
    answer = {
        "devices": [
            {"kind": d.kind, "key": d.key, "attributes": dict(d.attributes)} for d in found
        ],
        "labels": labels.labels(roots),
        "problems": problems,
    }
    sys.stdout.write(json.dumps(answer, sort_keys=True) + "\n")
    sys.stdout.flush()
    return 0


def _end_with_stdin() -> None:
    """End this process at once when the agent's does: it holds the other end of the pipe."""
    while os.read(0, 1):
        pass
    os._exit(1)


def look(
    sections: dict[str, Callable[[Roots], list[Device]]], roots: Roots, seconds_max: float
) -> tuple[list[Device], list[str]]:
    """Return what the sections found and what was wrong with the others."""
    found: list[Device] = []
    problems: list[str] = []
    for name, section in sections.items():
        devices, problem = _within(section, roots, seconds_max)
        found += devices
        if problem:
            problems.append(f"{name}: {problem}")
    return found, problems


def _within(
    section: Callable[[Roots], list[Device]], roots: Roots, seconds_max: float
) -> tuple[list[Device], str]:
    """Run a section in a thread that can be left behind when a driver does not return."""
    answer: list[tuple[list[Device], str]] = []

    def run() -> None:
        try:
            answer.append((section(roots), ""))
        except Exception as error:  # noqa: BLE001 - one library's trouble must not cost the others
            answer.append(([], f"{type(error).__name__}: {error}"[:200]))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds_max)
    return answer[0] if answer else ([], f"no answer within {seconds_max:g} s")


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)  # a thread left behind in a driver must not hold up the end
