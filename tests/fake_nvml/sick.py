"""Faults of GPUs: each function adds a fault to one, from a step of the scenario."""

from __future__ import annotations

from pathlib import Path

from tests.fake_nvml.scenario import Gpu

#: Garbage that drivers have returned in place of missing values.
GARBAGE = (2**64 - 1, 2**32 - 1, 0x7FFFFFFFFFFFFFF0, 0xDEADBEEFDEADBEEF, 2**63)


def blocks(gpu: Gpu, seconds: float, call: str = "*", *, step: int = 1) -> Gpu:
    """Make a call, or each, take that long."""
    gpu.lines.append(f"block {call} at {step} seconds {seconds}")
    return gpu


def blocks_for_ever(gpu: Gpu, path: Path, call: str = "*", *, step: int = 1) -> Gpu:
    """Make calls read a file: a FUSE file without answers blocks them despite SIGKILL."""
    gpu.lines.append(f"block {call} at {step} read {path}")
    return gpu


def crashes(gpu: Gpu, call: str = "*", *, step: int = 1) -> Gpu:
    """Make a call, or each, die of SIGSEGV."""
    gpu.lines.append(f"block {call} at {step} crash -")
    return gpu


def is_lost(gpu: Gpu, *, step: int = 1) -> Gpu:
    """Make it fall off the bus."""
    gpu.lines.append("error * " + " ".join(["0"] * step + ["15"]))
    return gpu


def talks_garbage(gpu: Gpu) -> Gpu:
    """Make each value impossible, from the start."""
    for i, name in enumerate(gpu.values):
        gpu.values[name] = GARBAGE[i % len(GARBAGE)]
    for i, (number, (kind, _)) in enumerate(gpu.fields.items()):
        gpu.fields[number] = (kind, GARBAGE[i % len(GARBAGE)])
    return gpu


def is_unbound(gpu: Gpu, *, step: int = 1, again: int = 0) -> Gpu:
    """Unbind its driver, and bind it again at a later step (0: never)."""
    gpu.lines.append(f"system_event {step} 1")
    if again:
        gpu.lines.append(f"system_event {again} 2")
    return gpu
