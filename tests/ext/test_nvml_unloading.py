"""A driver is updated under the agent: its old library is unloaded, and never called again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gangline.ext.nvml import Nvml, NvmlError, Sweep
from gangline.ext.nvml_gpm import Gpm
from gangline.ext.nvml_parts import EventSet, FieldPass, Parts, ProcessLists
from tests.fake_nvml.build import build
from tests.fake_nvml.parts_scenario import with_gpm
from tests.fake_nvml.scenario import Scenario, gpus

OLDER, NEWER = "580.65.06", "590.48.01"


class Driver:
    """A driver and its library, each replaceable."""

    def __init__(self, folder: Path) -> None:
        self.library = folder / "libnvidia-ml.so.1"
        self._built = {v: build(folder / v, version=v) for v in (OLDER, NEWER)}
        self._scenario = folder / "scenario"

    def install(self, version: str) -> None:
        """Replace the library by renaming, like a package."""
        created = self.library.with_name("new")
        shutil.copy(self._built[version], created)
        created.rename(self.library)

    def load(self, version: str, *lines: str) -> Scenario:
        """Set the version of the kernel's driver, or several versions over the steps."""
        gpu = with_gpm(gpus(1)[0])
        gpu.lines += lines
        return Scenario(self._scenario, [gpu], host=f"driver {version}")

    def is_mapped(self) -> bool:
        """Return whether this process has the library mapped, the current file or an earlier one."""
        return str(self.library) in Path("/proc/self/maps").read_text()


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    monkeypatch.setenv("GANGLINE_FAKE_NVML", str(tmp_path / "scenario"))
    created = Driver(tmp_path)
    created.install(OLDER)
    created.load(OLDER)
    return created


def test_nothing_is_called_in_a_library_that_was_let_go_of(driver: Driver) -> None:
    """An event set closed after its library would crash the agent."""
    address = gpus(1)[0].address
    nvml = Nvml(str(driver.library))
    parts = Parts(nvml)
    parts.open(address)
    events, fields, sweep = EventSet(parts), FieldPass(parts), Sweep(nvml, [address], {})
    fields.ask(address, 83, 0, bytearray(8), bytearray(1), 0)
    gpm = Gpm(nvml, [nvml.handle_address(address)], [])
    assert gpm.supported == [True]
    lists = ProcessLists(parts, [address])
    nvml.close()
    assert driver.is_mapped()
    driver.load(NEWER)
    with pytest.raises(NvmlError, match="NVML error 18"):
        Nvml(str(driver.library))
    assert not driver.is_mapped()
    calls: list[Callable[[], object]] = [
        fields.run,
        sweep.run,
        nvml.devices,
        lambda: gpm.run(0),
        lambda: events.wait(1),
        lambda: EventSet(parts),
        lambda: parts.open(address),
        lists.run,
        lambda: parts.mig_devices(address, 7),
        lambda: Gpm(nvml, [0], []),
    ]
    for call in calls:
        with pytest.raises(NvmlError, match="let go of"):
            call()
    events.close()
    gpm.close()
    driver.install(NEWER)
    renewed = Nvml(str(driver.library))
    assert renewed.driver_version() == NEWER
    renewed.close()
