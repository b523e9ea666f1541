"""Drift: differences between registered and declared hardware of hosts. Kept until either changes.

A value that a host did not report is not a difference: missing is not zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..sql import quoted
from .expectations import ITEMS, Expectation
from .model import NOTHING, Declared
from .patterns import matches_pattern
from .reported_inventory import HostHardware, ReportedInventory


class Difference(NamedTuple):
    """A difference from the declaration."""

    item: str
    actual: float
    normal: str
    message: str
    sql: str


class DriftDetector:
    """The expectation for each host, and the differences of its inventory. For a single thread."""

    def __init__(self) -> None:
        self._declared = NOTHING
        self._version = -1
        self._known: list[tuple[HostHardware, Expectation | None]] = []
        #: By node index: the expectation, for hosts with a declaration.
        self.expected: dict[int, Expectation] = {}
        #: By node index: the differences of its inventory, if any.
        self.differences: dict[int, list[Difference]] = {}
        self._expected_values: dict[str, NDArray[np.float64]] = {}

    def update(
        self, declared: Declared, inventory: ReportedInventory, names: Sequence[str]
    ) -> None:
        """Update to the declarations and reports; the cost depends only on the changes."""
        same = declared is self._declared
        if same and self._version == inventory.version and len(self._known) == len(names):
            return
        if not same:
            self._known, self.expected, self.differences = [], {}, {}
        self._declared, self._version, self._expected_values = declared, inventory.version, {}
        for host, name in enumerate(names):
            hardware = inventory.hardware(name)
            if host >= len(self._known):
                self._known.append((hardware, self._compare(host, name, hardware)))
            elif self._known[host][0] is not hardware:
                self._known[host] = hardware, self._compare(host, name, hardware)

    def _compare(self, host: int, name: str, hardware: HostHardware) -> Expectation | None:
        expected = self._declared.expected(hardware.model, name) if hardware.is_known else None
        self.expected.pop(host, None)
        self.differences.pop(host, None)
        if expected is not None:
            self.expected[host] = expected
            if differences := list(inventory_differences(name, hardware, expected)):
                self.differences[host] = differences
        return expected

    def expected_values(self, item: str) -> NDArray[np.float64]:
        """Return the declared values of *item* (of `ITEMS`) by node index; NaN if not declared."""
        assert item in ITEMS
        known = self._expected_values.get(item)
        if known is None:
            known = self._expected_values[item] = np.full(len(self._known), np.nan)
            for host, expected in self.expected.items():
                known[host] = expected.items.get(item, np.nan)
        return known


def inventory_differences(
    host: str, hardware: HostHardware, expected: Expectation
) -> Iterator[Difference]:
    """Yield the differences of the registered *hardware*."""
    yield from _gpu_differences(host, hardware, expected)
    labels = f"SELECT labels, registered FROM main.hosts WHERE host = {quoted(host)}"
    for item, actual, noun in (
        ("numa_nodes", hardware.numa_nodes, "NUMA nodes"),
        ("nvme_drives", hardware.nvme_drives, "NVMe drives"),
        ("cpu_cores", hardware.cpu_cores, "processors"),
    ):
        expected_value = expected.items.get(item)
        if expected_value is not None and actual is not None and actual != expected_value:
            sql = labels if item == "cpu_cores" else _devices(host, item.partition("_")[0])
            text = f"{actual} {noun}, {expected_value:g} expected"
            yield Difference(item, actual, f"{expected_value:g}", text, sql)
    expected_value = expected.items.get("memory_gigabytes_min")
    if expected_value is not None and hardware.memory_bytes is not None:
        gigabytes = hardware.memory_bytes / 1e9
        if gigabytes < expected_value:
            message = f"{gigabytes:,.1f} GB of memory, {expected_value:,g} expected"
            normal = f"at least {expected_value:,g} GB"
            yield Difference("memory_gigabytes_min", gigabytes, normal, message, labels)
    for item, text, noun in (
        ("nvidia_drivers", hardware.driver, "NVIDIA driver"),
        ("kernels", hardware.kernel, "kernel"),
    ):
        yield from _unlisted_versions(item, {text}, noun, expected, labels)


def _gpu_differences(
    host: str, hardware: HostHardware, expected: Expectation
) -> Iterator[Difference]:
    sql = _devices(host, "gpu")
    count = sum(number for _, number in hardware.gpus)
    expected_value = expected.items.get("gpus")
    if expected_value is not None and count != expected_value:
        yield Difference(
            "gpus", count, f"{expected_value:g}", f"{count} GPUs, {expected_value:g} expected", sql
        )
    unexpected = [
        (gpu.model, number)
        for gpu, number in hardware.gpus
        if expected.model and gpu.model and not matches_pattern(gpu.model, expected.model)
    ]
    if unexpected:
        message = ", ".join(f"{number} of {count} GPUs are {model}" for model, number in unexpected)
        actual = sum(number for _, number in unexpected)
        yield Difference(
            "model", actual, expected.model, f"{message}, expected {expected.model}", sql
        )
    minimum = expected.items.get("gpu_memory_gigabytes_min")
    sizes = [gpu.memory_bytes / 1e9 for gpu, _ in hardware.gpus if gpu.memory_bytes]
    if minimum is not None and sizes and min(sizes) < minimum:
        message = f"a GPU with {min(sizes):.1f} GB of memory, {minimum:g} expected"
        normal = f"at least {minimum:g} GB"
        yield Difference("gpu_memory_gigabytes_min", min(sizes), normal, message, sql)
    links = expected.items.get("nvlinks_per_gpu")
    fewest = [gpu.nvlinks for gpu, _ in hardware.gpus if gpu.nvlinks]
    if links is not None and fewest and min(fewest) != links:
        message = f"a GPU with {min(fewest)} NVLinks, {links:g} expected"
        yield Difference("nvlinks_per_gpu", min(fewest), f"{links:g}", message, sql)
    yield from _unlisted_versions(
        "vbioses", {gpu.vbios for gpu, _ in hardware.gpus}, "VBIOS", expected, sql
    )


def _unlisted_versions(
    item: str, texts: set[str], noun: str, expected: Expectation, sql: str
) -> Iterator[Difference]:
    allowed = expected.texts.get(item, ())
    unexpected = sorted(text for text in texts if text and not _is_listed(text, allowed))
    if allowed and unexpected:
        normal = " or ".join(allowed)
        message = f"{noun} {', '.join(unexpected)}, expected {normal}"
        yield Difference(item, float(len(unexpected)), normal, message, sql)


@lru_cache(maxsize=4_096)
def _is_listed(text: str, allowed: tuple[str, ...]) -> bool:
    """Return whether a pattern of *allowed* matches; cached for thousands of equal hosts."""
    return any(matches_pattern(text, pattern) for pattern in allowed)


def _devices(host: str, kind: str) -> str:
    return f"SELECT * FROM main.devices WHERE host = {quoted(host)} AND kind = {quoted(kind)}"
