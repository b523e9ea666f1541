"""Finding GPUs, and the pass over them, against faulty drivers."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
from pathlib import Path

import pytest

from gangline.ext import nvml, place
from gangline.ext.nvml import Nvml, NvmlError, Sweep
from tests.ext.sweeping import Sweeping, addresses, missing
from tests.fake_nvml.fixtures import Play
from tests.fake_nvml.scenario import gpus
from tests.processes import GUARD_SECONDS

#: A longer wait fails the test; it is not used for timing.


def test_a_garbage_count_is_bounded(library: str, play: Play) -> None:
    """A count of four thousand million must not be four thousand million calls."""
    counted = ctypes.CDLL(library).fake_nvml_calls
    for count in (4294967295, 100):
        play(gpus(2), host=f"count {count}")
        before = counted(b"nvmlDeviceGetHandleByIndex_v2")
        result = Nvml(library)
        assert len(result.devices()) == 2
        assert counted(b"nvmlDeviceGetHandleByIndex_v2") - before <= nvml.GPUS_MAX
        result.close()


def test_a_gpu_that_cannot_be_found_does_not_hide_the_others(library: str, play: Play) -> None:
    """One faulty GPU made the list of GPUs of its host empty."""
    devices = gpus(4)
    devices[1].lines.append("error nvmlDeviceGetHandleByIndex_v2 15")
    devices[2].lines.append("error nvmlDeviceGetUUID 999")
    play(devices)
    nvml = Nvml(library)
    assert [d.uuid for d in nvml.devices()] == [devices[0].uuid, "", devices[3].uuid]
    with pytest.raises(NvmlError, match="Not Found"):
        nvml.device("0000:ff:00.0")
    nvml.close()


def test_a_sweep_attaches_only_the_gpus_it_is_given(library: str, play: Play) -> None:
    """A GPU set aside for repair must stay closed: an open handle defeats its reset."""
    counted = ctypes.CDLL(library).fake_nvml_calls
    devices = gpus(8)
    play(devices)
    names = (b"nvmlDeviceGetHandleByPciBusId_v2", b"nvmlDeviceGetHandleByIndex_v2")
    before = [counted(name) for name in names]
    with Sweeping(library, [devices[5].address]) as sweeping:
        assert sweeping.read()[0]["sm_clock_hertz"] == (345 + 15 * 5) * 1e6
        sweeping.read()
    assert [counted(name) - b for name, b in zip(names, before, strict=True)] == [1, 0]


def test_one_call_gives_all_fields_of_a_gpu(library: str, play: Play) -> None:
    """Real calls take 0.1 to 20 ms: their number matters."""
    counted = ctypes.CDLL(library).fake_nvml_calls
    devices = gpus(8)
    play(devices)
    fields, whole = counted(b"nvmlDeviceGetFieldValues"), counted(b"nvmlDeviceGetTotalEccErrors")
    with Sweeping(library, addresses(devices)) as sweeping:
        sweeping.sweep.run()
    assert counted(b"nvmlDeviceGetFieldValues") - fields == 8
    assert counted(b"nvmlDeviceGetTotalEccErrors") - whole == 0


def test_only_what_is_wanted_is_called(library: str, play: Play) -> None:
    """Each lane pays for its own readings only."""
    gpu = gpus(1)[0]
    play([gpu])
    with Sweeping(library, [gpu.address], ["power_limit_watts", "lost_state"]) as sweeping:
        assert sweeping.read() == [{"power_limit_watts": 700.0, "lost_state": 0}]
        assert sweeping.sweep.calls == 2  # including the open of the GPU


def test_a_sweep_allocates_nothing(library: str, play: Play) -> None:
    """A leak of a hundred bytes a second is 8 MB a day on each of ten thousand hosts."""
    devices = gpus(8)
    devices[3].lines.append("error * 15")
    play(devices)
    with Sweeping(library, addresses(devices)) as sweeping:
        run = sweeping.sweep.run
        for _ in range(10):
            run()
        before = sys.getallocatedblocks()
        for _ in range(1000):
            run()
        assert sys.getallocatedblocks() - before < 10


def test_while_a_call_blocks_python_goes_on(library: str, play: Play, tmp_path: Path) -> None:
    """A faulty GPU blocked a call for 45 s; an agent that held the GIL meanwhile was blocked as
    well.

    The fifo synchronizes both sides: opening it returns during the call, and the call returns when
    it is closed.
    """
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    devices = gpus(2)
    devices[1].lines.append(f"block nvmlDeviceGetPerformanceState fifo {fifo}")
    play(devices)
    with Sweeping(library, addresses(devices)) as sweeping:
        assert place.here().entered_ns == 0
        thread = threading.Thread(target=sweeping.sweep.run, daemon=True)
        thread.start()
        held = os.open(fifo, os.O_WRONLY)
        seen = place.here()
        assert (seen.device, seen.call) == (devices[1].address, "nvmlDeviceGetPerformanceState")
        assert seen.entered_ns > 0
        assert missing(sweeping.row(0)) == set()  # the neighbor was read before
        assert thread.is_alive()
        os.close(held)
        thread.join(GUARD_SECONDS)
        assert not thread.is_alive()
        assert [missing(sweeping.row(row)) for row in range(2)] == [set(), set()]
        assert place.here().entered_ns == 0


def test_closed_is_closed(library: str, play: Play) -> None:
    """`gangline release` closes every handle, so that a GPU can be reset."""
    play(gpus(1))
    with Sweeping(library, ["0000:19:00.0"]) as sweeping:
        sweeping.read()
        sweeping.nvml.close()
        sweeping.nvml.close()
        for act in (sweeping.sweep.run, sweeping.nvml.devices, sweeping.nvml.driver_version):
            with pytest.raises(NvmlError, match="let go of"):
                act()


def test_memory_outside_the_block_is_refused(library: str, play: Play) -> None:
    """A column too many would be written over memory behind the block."""
    play(gpus(1))
    nvml = Nvml(library)
    cells, valid = bytearray(16), bytearray(2)
    Sweep(nvml, ["0000:19:00.0"], {"lost_state": (cells, valid, 1)}).run()
    assert valid == b"\0\1"
    for column in (2, -1):
        with pytest.raises(ValueError, match=f"column {column} of 1 rows lies outside"):
            Sweep(nvml, ["0000:19:00.0"], {"lost_state": (cells, valid, column)})
    with pytest.raises(KeyError):
        Sweep(nvml, ["0000:19:00.0"], {"no_such_reading": (cells, valid, 0)})
    with pytest.raises(ValueError, match="PCI address"):
        Sweep(nvml, ["0000:19:00.0" * 3], {})
    nvml.close()


def test_memory_in_use_cannot_be_moved(library: str, play: Play) -> None:
    """A bytearray that grows under a sweep would leave it writing into freed memory."""
    play(gpus(1))
    nvml = Nvml(library)
    cells, valid = bytearray(8), bytearray(1)
    sweep = Sweep(nvml, ["0000:19:00.0"], {"lost_state": (cells, valid, 0)})
    for memory in (cells, valid):
        with pytest.raises(BufferError):
            memory.extend(b"more")
    sweep.run()
    assert not math.isnan(cells[0])
    nvml.close()
