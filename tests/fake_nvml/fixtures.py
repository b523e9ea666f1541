"""Fixtures of tests with the stand-in NVML; the conftest of a folder imports them."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from gangline.ext import nvml

from .build import build
from .parts_scenario import host_lines
from .scenario import Gpu, Scenario

#: Writes a scenario and makes the library play it: `play(gpus(2), host="count 2")`.
Play = Callable[..., Scenario]


@pytest.fixture(autouse=True)
def accounts() -> Iterator[None]:
    """Forget GPUs and call counts of the previous test."""
    nvml.forget_accounts()
    nvml.cap(0)
    yield
    nvml.forget_accounts()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where this module's libraries are built."""
    return tmp_path_factory.mktemp("fake_nvml")


@pytest.fixture(scope="module")
def library(folder: Path) -> str:
    """Return the path of a library with all functions."""
    return str(build(folder))


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Return a function that writes a scenario and makes the library play it."""

    def write(devices: Iterable[Gpu] = (), host: str = "") -> Scenario:
        monkeypatch.setenv("GANGLINE_FAKE_NVML", str(tmp_path / "scenario"))
        listed = list(devices)
        if any(device.uuid.startswith("MIG-") for device in listed):
            host = f"{host_lines(listed)}\n{host}"
        return Scenario(tmp_path / "scenario", listed, host=host)

    return write
