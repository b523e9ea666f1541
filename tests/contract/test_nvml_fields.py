"""NVML field ids by driver, against NVIDIA's own headers and its binding."""

from __future__ import annotations

import re
from itertools import pairwise

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.contract.nvml_fields import (
    FIELDS,
    NEEDS_VALIDATION,
    NEWEST,
    fields_of,
    parse_driver_version,
)
from gangline.contract.signals import BY_NAME
from gangline.ext.nvml import READINGS
from tests.fake_nvml.build import header_folder, older_header_folder

MOVED = (
    "violation_sw_thermal_nanoseconds",
    "violation_hw_thermal_nanoseconds",
    "violation_hw_power_brake_nanoseconds",
)
#: nvmlClocksEventReason* of nvml.h, and older names that it still contains.
REASONS = {
    "SwThermalSlowdown": MOVED[0],
    "HwThermalSlowdown": MOVED[1],
    "HwPowerBrakeSlowdown": MOVED[2],
}


def header(folder: str) -> dict[str, int]:
    text = (
        (older_header_folder() if folder == "older" else header_folder())
        .joinpath("nvml.h")
        .read_text()
    )
    return {
        n: int(i) for n, i in re.findall(r"^#define\s+(NVML_FI_\w+)\s+(\d+)", text, re.MULTILINE)
    }


def names_of_sources() -> dict[str, str]:
    result = {}
    for field in FIELDS:
        source = BY_NAME[f"gpu.{field.reading}"].source
        name = re.search(r"NVML_FI_\w+", source)
        assert name, f"gpu.{field.reading} does not name its field: {source}"
        result[field.reading] = name.group()
    return result


@pytest.mark.parametrize(("folder", "driver"), [("older", "575.57.08"), ("newest", "9999.0")])
def test_ids_are_the_headers(folder: str, driver: str) -> None:
    """NVIDIA's header of 12.9 and its newest disagree about three, and so does this table."""
    theirs, ours = header(folder), fields_of(driver)
    names = names_of_sources()
    assert {r: i for r, (i, _) in ours.items()} == {r: theirs[n] for r, n in names.items()}


def test_ids_are_the_bindings() -> None:
    """The project's tests read values by nvidia-ml-py."""
    for reading, name in names_of_sources().items():
        assert fields_of("9999.0")[reading][0] == getattr(pynvml, name)


def test_the_reasons_are_the_headers() -> None:
    """A field verified by another cause's flag would be published under the wrong name."""
    text = header_folder().joinpath("nvml.h").read_text()
    bits = dict(re.findall(r"#define nvmlClocks(?:Event|Throttle)Reason(\w+)\s+(0x\w+?)LL", text))
    assert {reading: int(bits[name], 16) for name, reading in REASONS.items()} == NEEDS_VALIDATION


@pytest.mark.parametrize(
    ("driver", "first"),
    [
        ("535.161.08", None), ("550.54.15", None), ("560.35.03", None), ("570.86.15", None),
        ("570.211.01", None), ("575.51.03", 251), ("580.65.06", 251), ("580.76.05", 251),
        ("580.82.07", 269), ("580.126.09", 269), ("590.48.01", 269), ("600.1", 269), ("?", 269),
    ],
)  # fmt: skip
def test_the_three_that_moved(driver: str, first: int | None) -> None:
    """Id 251 switches power smoothing on 570 and 590; on 575 it counts throttled time."""
    asked = [fields_of(driver).get(reading) for reading in MOVED]
    assert asked == ([None] * 3 if first is None else [(first + i, 0) for i in range(3)])


def test_every_field_has_a_reading_once() -> None:
    """A field without a reading would be requested every second for nothing."""
    readings = [field.reading for field in FIELDS]
    assert len(readings) == len(set(readings))
    assert set(readings) <= set(READINGS)
    for field in FIELDS:
        assert all(older < newer for (older, _), (newer, _) in pairwise(field.ids)), field.reading
    for driver in ("550.54.15", "575.51.03", "590.48.01"):
        asked = list(fields_of(driver).values())
        assert len(asked) == len(set(asked))


@given(st.text() | st.from_regex(r"\A\d{1,5}(\.\d{1,5}){0,3}\Z"))
def test_a_version_is_one_or_none(words: str) -> None:
    """The agent continues with any version text of NVML."""
    version = parse_driver_version(words)
    assert version is None or (len(version) == 3 and version < NEWEST)
    fields_of(words)


def test_versions_are_ordered_as_numbers() -> None:
    """580.126 is newer than 580.82, unlike in text order."""
    assert parse_driver_version("580.126.09") == (580, 126, 9)
    assert parse_driver_version(" 590.48\n") == (590, 48, 0)
    for none in ("", "590", "590.", "590.48.01.02", "v590.48", "-1.2"):
        assert parse_driver_version(none) is None
