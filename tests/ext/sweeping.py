"""A sweep over GPUs that a test plays, and its readings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Self

from gangline.contract.nvml_fields import fields_of
from gangline.ext.nvml import READINGS, Nvml, Sweep
from tests.fake_nvml.scenario import Gpu

#: NVML's readings; the others describe the sweep itself.
OF_THE_SWEEP = {"calls_failed_errors", "slow_calls_failed_errors", "settings_calls_failed_errors"}
LIBRARY_READINGS = set(READINGS) - OF_THE_SWEEP - {"lost_state", "error_code_state"}


class Sweeping:
    """A sweep of every reading of some GPUs, with memory of its own."""

    def __init__(
        self, library: str, addresses: Iterable[str], readings: Iterable[str] = READINGS
    ) -> None:
        self.addresses, self.readings = list(addresses), list(readings)
        count = len(self.addresses) * len(self.readings)
        self.cells, self.valid = bytearray(8 * count), bytearray(count)
        self.nvml = Nvml(library)
        targets = {name: (self.cells, self.valid, i) for i, name in enumerate(self.readings)}
        self.sweep = Sweep(self.nvml, self.addresses, targets, fields_of("590.48.01"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.nvml.close()

    def read(self) -> list[dict[str, float | int | None]]:
        self.sweep.run()
        return [self.row(i) for i in range(len(self.addresses))]

    def row(self, row: int) -> dict[str, float | int | None]:
        ints, floats = memoryview(self.cells).cast("Q"), memoryview(self.cells).cast("d")
        result: dict[str, float | int | None] = {}
        for column, name in enumerate(self.readings):
            cell = column * len(self.addresses) + row
            cells: memoryview[float] | memoryview[int] = floats if READINGS[name] is float else ints
            result[name] = cells[cell] if self.valid[cell] else None
        return result


def missing(said: Mapping[str, float | int | None]) -> set[str]:
    return {name for name, value in said.items() if value is None}


def addresses(devices: Iterable[Gpu]) -> list[str]:
    return [gpu.address for gpu in devices]
