"""Hosts with hostile files: any file may hold anything; one bad device affects no other."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gangline.agent.collector import Collector, CollectOutcome, run_collector
from gangline.agent.collectors import COLLECTORS
from gangline.agent.collectors.counter_files import CounterFileCollector
from gangline.ext.nvml import forget_accounts
from tests import hosts
from tests.agent.test_collectors import as_nobody
from tests.fake_nvml.build import build
from tests.fake_nvml.scenario import FIELDS, VALUES, Scenario, Steps
from tests.fuzzing.harm import damaged_files, taken_out
from tests.fuzzing.hosts import (
    Host,
    Reading,
    assert_sane,
    differences,
    files_below,
    names_of,
    victims,
)
from tests.hosts.reading import StoppedClock, collectors_of, gpus_of, let_go, rows_of
from tests.processes import GUARD_SECONDS

#: Full turns of a complete host; a few dozen keep a test within seconds.
ROUNDS = 8
#: Thousands of small files are written here, which is slow on a disk.
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
ODD_NAMES = (
    os.fsdecode(b"b\xe4d if"), "a b", "x\ny", "n" * 200, "-rf", "%n%s", "\N{SNOWMAN}", "..x", "\\x41", "'; drop", "\x7f",
)  # fmt: skip

#: Read by `NumberFiles`, like the others of `ext.counterfiles` by a `CounterFileCollector`.
_NUMBER_FILES = (
    "scaling_cur_freq",
    "core_throttle_count",
    "package_throttle_count",
    "package_throttle_total_time_ms",
)


@pytest.fixture(scope="module", params=hosts.NAMES)
def whole(request: pytest.FixtureRequest) -> Iterator[tuple[Host, Reading]]:
    """Yield a host and its undamaged reading, in a folder that other users can read."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        os.chmod(folder, 0o755)
        host = Host(request.param, Path(folder))
        yield host, host.read()


@pytest.fixture(autouse=True)
def _within_seconds() -> Iterator[None]:
    """End a read that does not return: an open of a FIFO waits forever."""

    def late(*_: object) -> None:
        raise RuntimeError("a read blocks")  # not an OSError, which readers handle

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, GUARD_SECONDS)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_an_undamaged_host_reads_alike_twice(whole: tuple[Host, Reading]) -> None:
    """The other tests compare with this reading: differences must have a cause."""
    host, reading = whole
    assert_sane(reading)
    again = host.read()
    assert (again.cells, again.devices) == (reading.cells, reading.devices)
    assert sum(value is not None for value in reading.cells.values()) > 50


@pytest.mark.slow
def test_any_file_may_hold_anything(whole: tuple[Host, Reading]) -> None:
    """Firmware wrote `N/A`, 2^32-1, a megabyte; a file was a folder, a loop, or missing."""
    host, _ = whole
    for case in range(ROUNDS):
        source = random.Random(f"{host.name} {case}")
        struck = source.sample(host.files, min(len(host.files), (1, 8, 40, 150)[case % 4]))
        assert_sane(host.read(damaged_files(struck, f"{case}"), spared=struck))


@pytest.mark.parametrize("way", ["blank", "word", "nothing", "vanished", "binary"])
def test_every_file_of_a_host_may_be_the_same_wreck(whole: tuple[Host, Reading], way: str) -> None:
    """A virtual machine's /sys had 2^32-1 in all files, which became four billion errors."""
    host, _ = whole
    reading = host.read(damaged_files(host.files, way, [way]), spared=host.files)
    assert_sane(reading)


@pytest.mark.slow
def test_one_bad_device_never_costs_its_neighbours(whole: tuple[Host, Reading]) -> None:
    """One NIC of nine returned garbage, and nine rows were missing."""
    host, reading = whole
    source = random.Random(host.name)
    chosen = victims(host)
    for victim in source.sample(chosen, min(len(chosen), 2 * ROUNDS)):
        struck = files_below(victim)
        hurt = host.read(damaged_files(struck, victim.name), spared=struck)
        assert_sane(hurt)
        assert not differences(reading, hurt, names_of(host, victim)), victim


@pytest.mark.slow
def test_a_device_that_goes_between_two_turns_costs_itself(whole: tuple[Host, Reading]) -> None:
    """A card was pulled between list and read; links to it dangled."""
    host, reading = whole
    source = random.Random(f"{host.name} gone")
    chosen = victims(host)
    for victim in source.sample(chosen, min(len(chosen), ROUNDS)):
        names = names_of(host, victim)
        hurt = host.read(between=taken_out(victim, host.root / "aside"))
        assert_sane(hurt)
        assert not differences(reading, hurt, names), victim


@pytest.mark.slow
def test_a_file_that_breaks_between_two_turns(whole: tuple[Host, Reading]) -> None:
    """The first turn kept a descriptor; then the file became another file, or a folder."""
    host, _ = whole
    for case in range(ROUNDS // 2):
        struck = random.Random(f"{host.name} {case} between").sample(
            host.files, min(50, len(host.files))
        )
        assert_sane(host.read(between=damaged_files(struck, f"{case}"), spared=struck))


def test_a_fifo_in_place_of_a_file_holds_nobody(whole: tuple[Host, Reading]) -> None:
    """A mount over /proc/driver contained a FIFO; open(2) waited for a writer until the restart.

    The counter files of /sys are excluded, because /sys has no FIFO: their reader is abandoned when
    it hangs, and tests make it hang by a FIFO.
    """
    host, _ = whole
    counters = {
        path for collector in collectors_of(host.roots) for path in _counter_files(collector)
    }
    struck = [p for p in host.files if p not in counters and p.name not in _NUMBER_FILES]
    assert len(struck) > 20
    assert_sane(host.read(damaged_files(struck, "", ["fifo"]), spared=struck))


def _counter_files(collector: Collector) -> set[Path]:
    run_collector(collector, StoppedClock())
    paths = collector.paths if isinstance(collector, CounterFileCollector) else []
    return {Path(path).resolve() for path in paths}


@pytest.mark.slow
def test_devices_with_odd_names(whole: tuple[Host, Reading]) -> None:
    """Latin-1, a blank, 200 characters: keys that fit a frame, without effect on others."""
    host, reading = whole
    for case, kind in enumerate(
        ("class/net", "class/infiniband", "block", "class/hwmon", "class/nvme", "bus/pci/devices")
    ):
        folder = host.roots.sys / kind
        if not folder.is_dir():
            continue
        with ExitStack() as stack:
            names = {name for i, name in enumerate(ODD_NAMES) if i % 3 == case % 3}
            model = min(folder.iterdir())
            for name in names:
                stack.enter_context(_twin(model, folder / name))
            hurt = host.read()
        assert_sane(hurt)
        # twins of one chip are distinguished by their order, and a NIC's twin is equally near
        touched = names_of(host, model.resolve())
        assert not differences(reading, hurt, touched), (kind, names)
        assert all("\n" not in device or "\n" in "".join(names) for _, device, _ in hurt.cells)


@contextmanager
def _twin(model: Path, place: Path) -> Iterator[None]:
    place.symlink_to(model.resolve())
    try:
        yield
    finally:
        place.unlink()


def test_files_that_nobody_may_read(whole: tuple[Host, Reading]) -> None:
    """Hardened hosts: every file 0000. No data, or blind with a remedy; never an error."""
    host, _ = whole
    with ExitStack() as stack:
        for path in host.files:
            stack.callback(path.chmod, path.stat().st_mode & 0o777)
            path.chmod(0)
        stack.enter_context(as_nobody())
        collectors = [make(host.roots) for name, make in COLLECTORS.items() if "gpu" not in name]
        for _ in range(2):
            for collector in collectors:
                turn = run_collector(collector, StoppedClock())
                assert turn.outcome in (
                    CollectOutcome.OK,
                    CollectOutcome.NO_DATA,
                    CollectOutcome.BLIND,
                ), turn
                values = [row for block in turn.blocks for _, row in rows_of(block) if row]
                assert turn.outcome is not CollectOutcome.NO_DATA or not values


@pytest.mark.parametrize("answer", [2**32 - 1, 2**64 - 1, 2**63 - 1, "!15", "!3", "!999"])
def test_one_gpu_of_eight_answers_garbage(
    answer: int | str, tmp_path: Path, nvml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU with a broken InfoROM returned 2^32-1 for everything."""
    host = hosts.unpack("h100-ib", tmp_path / "host")
    whole, hurt = (
        _gpu_rows(host, tmp_path / f"{bad}.so", nvml, bad, monkeypatch) for bad in (None, answer)
    )
    uuid = gpus_of(host)[3].uuid
    others = {key for key in whole if uuid not in key[1]}
    assert len(others) >= 7 * 2
    assert {key: hurt.get(key) for key in others} == {key: whole[key] for key in others}
    ours = {key: row for key, row in hurt.items() if uuid in key[1] and key[0].startswith("gpu_1")}
    assert ours and all(row != whole[key] for key, row in ours.items() if whole[key])
    values = {value for row in ours.values() if row for value in row.values()}
    if isinstance(answer, int):
        assert values.isdisjoint((float(answer), answer / 1e3, answer * 1e6))


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the stand-in library, a copy for each reading: it reads its scenario once."""
    return build(tmp_path_factory.mktemp("nvml"))


def _gpu_rows(
    host: hosts.HostFolder,
    library: Path,
    nvml: Path,
    answer: int | str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> dict[tuple[str, str], dict[str, float | int | None] | None]:
    """Return all GPU rows of the second turn; the fourth GPU answers *answer* to all calls."""
    shutil.copy(nvml, library)
    forget_accounts()  # the other run's calls and counts
    gpus = gpus_of(host)
    if answer is not None:
        fields: dict[int, tuple[str, Steps]] = {
            i: (kind, answer) for i, (kind, _) in FIELDS.items()
        }
        gpus[3] = replace(gpus[3], values=dict.fromkeys(VALUES, answer), fields=fields)
    scenario = Scenario(library.with_suffix(".scenario"), gpus)
    monkeypatch.setenv("GANGLINE_FAKE_NVML", str(scenario.path))
    roots = replace(host.roots, nvml_library=str(library))
    kinds = ("gpu", "nvlink", "c2c", "mig")
    collectors = [make(roots) for name, make in COLLECTORS.items() if name.startswith(kinds)]
    rows: dict[tuple[str, str], dict[str, float | int | None] | None] = {}
    for step in range(2):
        scenario.step(step)
        for collector in collectors:
            turn = run_collector(collector, StoppedClock())
            assert turn.outcome is not CollectOutcome.ERROR, turn
            rows |= {(b.table, device): row for b in turn.blocks for device, row in rows_of(b)}
    let_go(collectors)
    return rows
