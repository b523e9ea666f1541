"""How what hosts registered with differs from what was declared for them. Kept until either changes.

What a host did not say is no difference: missing is not zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..sql import quoted
from .fields import fits
from .model import ITEMS, NOTHING, Declared, Expected
from .reported_inventory import Hardware, Told


class Difference(NamedTuple):
    """One thing that is not as declared."""

    item: str  # its name in the file
    has: float
    normal: str
    words: str
    sql: str


class Expecting:
    """Of each host what it must have, and how its inventory differs. One thread's."""

    def __init__(self) -> None:
        self._declared = NOTHING
        self._version = -1
        self._known: list[tuple[Hardware, Expected | None]] = []
        #: By node index: what the host must have, of those of which something is declared.
        self.expected: dict[int, Expected] = {}
        #: By node index: how its inventory differs, where it does.
        self.differences: dict[int, list[Difference]] = {}
        self._wanted: dict[str, NDArray[np.float64]] = {}

    def renew(self, declared: Declared, told: Told, names: Sequence[str]) -> None:
        """Bring it up to what is declared and what was told; costs only what changed."""
        same = declared is self._declared
        if same and self._version == told.version and len(self._known) == len(names):
            return
        if not same:
            self._known, self.expected, self.differences = [], {}, {}
        self._declared, self._version, self._wanted = declared, told.version, {}
        for host, name in enumerate(names):
            hardware = told.hardware(name)
            if host >= len(self._known):
                self._known.append((hardware, self._look(host, name, hardware)))
            elif self._known[host][0] is not hardware:
                self._known[host] = hardware, self._look(host, name, hardware)

    def _look(self, host: int, name: str, hardware: Hardware) -> Expected | None:
        expected = self._declared.expected(hardware.model, name) if hardware.is_known else None
        self.expected.pop(host, None)
        self.differences.pop(host, None)
        if expected is not None:
            self.expected[host] = expected
            if found := list(of_inventory(name, hardware, expected)):
                self.differences[host] = found
        return expected

    def wanted(self, item: str) -> NDArray[np.float64]:
        """Return what is declared of *item* (of `ITEMS`) by node index; NaN where nothing is."""
        assert item in ITEMS
        known = self._wanted.get(item)
        if known is None:
            known = self._wanted[item] = np.full(len(self._known), np.nan)
            for host, expected in self.expected.items():
                known[host] = expected.items.get(item, np.nan)
        return known


def of_inventory(host: str, hardware: Hardware, expected: Expected) -> Iterator[Difference]:
    """Yield how *hardware*, as it was registered, differs."""
    yield from _of_gpus(host, hardware, expected)
    labels = f"SELECT labels, registered FROM main.hosts WHERE host = {quoted(host)}"
    for item, has, noun in (
        ("numa_nodes", hardware.numa_nodes, "NUMA nodes"),
        ("nvme_drives", hardware.nvme_drives, "NVMe drives"),
        ("cpu_cores", hardware.cpu_cores, "processors"),
    ):
        wanted = expected.items.get(item)
        if wanted is not None and has is not None and has != wanted:
            sql = labels if item == "cpu_cores" else _devices(host, item.partition("_")[0])
            yield Difference(item, has, f"{wanted:g}", f"{has} {noun}, {wanted:g} expected", sql)
    wanted = expected.items.get("memory_gigabytes_min")
    if wanted is not None and hardware.memory_bytes is not None:
        gigabytes = hardware.memory_bytes / 1e9
        if gigabytes < wanted:
            words = f"{gigabytes:,.1f} GB of memory, {wanted:,g} expected"
            normal = f"at least {wanted:,g} GB"
            yield Difference("memory_gigabytes_min", gigabytes, normal, words, labels)
    for item, text, noun in (
        ("nvidia_drivers", hardware.driver, "NVIDIA driver"),
        ("kernels", hardware.kernel, "kernel"),
    ):
        yield from _unlisted(item, {text}, noun, expected, labels)


def _of_gpus(host: str, hardware: Hardware, expected: Expected) -> Iterator[Difference]:
    sql = _devices(host, "gpu")
    count = sum(number for _, number in hardware.gpus)
    wanted = expected.items.get("gpus")
    if wanted is not None and count != wanted:
        yield Difference("gpus", count, f"{wanted:g}", f"{count} GPUs, {wanted:g} expected", sql)
    strange = [
        (gpu.model, number)
        for gpu, number in hardware.gpus
        if expected.model and gpu.model and not fits(gpu.model, expected.model)
    ]
    if strange:
        words = ", ".join(f"{number} of {count} GPUs are {model}" for model, number in strange)
        has = sum(number for _, number in strange)
        yield Difference("model", has, expected.model, f"{words}, expected {expected.model}", sql)
    least = expected.items.get("gpu_memory_gigabytes_min")
    sizes = [gpu.memory_bytes / 1e9 for gpu, _ in hardware.gpus if gpu.memory_bytes]
    if least is not None and sizes and min(sizes) < least:
        words = f"a GPU with {min(sizes):.1f} GB of memory, {least:g} expected"
        normal = f"at least {least:g} GB"
        yield Difference("gpu_memory_gigabytes_min", min(sizes), normal, words, sql)
    links = expected.items.get("nvlinks_per_gpu")
    fewest = [gpu.nvlinks for gpu, _ in hardware.gpus if gpu.nvlinks]
    if links is not None and fewest and min(fewest) != links:
        words = f"a GPU with {min(fewest)} NVLinks, {links:g} expected"
        yield Difference("nvlinks_per_gpu", min(fewest), f"{links:g}", words, sql)
    yield from _unlisted("vbioses", {gpu.vbios for gpu, _ in hardware.gpus}, "VBIOS", expected, sql)


def _unlisted(
    item: str, texts: set[str], noun: str, expected: Expected, sql: str
) -> Iterator[Difference]:
    allowed = expected.texts.get(item, ())
    strange = sorted(text for text in texts if text and not _is_listed(text, allowed))
    if allowed and strange:
        normal = " or ".join(allowed)
        words = f"{noun} {', '.join(strange)}, expected {normal}"
        yield Difference(item, float(len(strange)), normal, words, sql)


@lru_cache(maxsize=4_096)
def _is_listed(text: str, allowed: tuple[str, ...]) -> bool:
    """Say whether one of the patterns *allowed* fits: of thousands of hosts that say the same it is asked once."""
    return any(fits(text, one) for one in allowed)


def _devices(host: str, kind: str) -> str:
    return f"SELECT * FROM main.devices WHERE host = {quoted(host)} AND kind = {quoted(kind)}"
