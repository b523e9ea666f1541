"""GPUs, through NVML: what changes within a second, and what changes slowly at 10 s.

Each lane has a sweep of its own over all GPUs (`ext/nvml`): one pass, without the GIL, into blocks
that were made when the GPUs were found. A GPU is known by its UUID, and by its PCI address when it
fell off the bus before it could say who it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ...ext.nvml import Device, Nvml, NvmlAbsent, NvmlError, Sweep
from ...fingerprints.block import Block
from ...fingerprints.catalogue import PERIOD_SECONDS, TABLES, Pace
from ..hardware.files import device_key
from ..hardware.nvml import driver_gpu_uuid, driver_gpus
from ..hardware.roots import Roots
from ..turn import Blind, NoData

LIBRARY = "libnvidia-ml.so.1"
#: A driver may be loaded, and GPUs may appear, after the agent has started: looked for this often.
LOOK_AGAIN_SECONDS = 60

# nvmlReturn_t of nvml.h
_NO_PERMISSION, _DRIVER_NOT_LOADED, _LOST, _OTHER_VERSION = 4, 9, 15, 18


class GpuLane:
    """The GPU signals of one pace.

    `collect` raises NoData where there is no driver or no GPU, Blind where the agent may not look.
    A GPU's error is that GPU's missing cells, counted in a signal of its own; never its neighbours'.
    """

    enters_driver = True

    def __init__(self, pace: Pace, roots: Roots) -> None:
        """Loads nothing yet: the first `collect` does, in the thread that may be left behind."""
        self.name = f"gpu_{pace}"
        self.pace = pace
        self._roots = roots
        self._nvml: Nvml | None = None
        self._sweep: Sweep | None = None
        self._blocks: tuple[Block, ...] = ()
        self._nothing: Exception | None = None
        self._turns_to_wait = 0

    def collect(self) -> Sequence[Block]:
        """Read every GPU once."""
        sweep = self._sweep or self._find()
        sweep.run()
        return self._blocks

    def whereabouts(self) -> str:
        """Say, from another thread, which call on which GPU has not returned: a hang is named by it."""
        sweep = self._sweep
        return sweep.words() if sweep else "finding the GPUs"

    def release(self) -> None:
        """Let go of all GPUs, so that they can be reset; the next `collect` opens them again.

        Not while a `collect` runs: a handle cannot be taken from a call that uses it.
        """
        if self._nvml:
            self._nvml.close()
        self._nvml = self._sweep = self._nothing = None
        self._blocks = ()

    def _find(self) -> Sweep:
        """Open NVML and all GPUs; where there are none, say so and look again after a while."""
        if self._nothing is not None and self._turns_to_wait > 0:
            self._turns_to_wait -= 1
            raise self._nothing.with_traceback(None)  # or each raise would make it longer
        try:
            self._nvml = _nvml(self._roots)
            self._blocks, self._sweep = _sweep(self._nvml, self.pace, self._roots)
        except (NoData, Blind, NvmlError) as reason:
            self.release()
            self._nothing = reason
            self._turns_to_wait = LOOK_AGAIN_SECONDS // PERIOD_SECONDS[self.pace]
            raise
        return self._sweep


class GpuSecond(GpuLane):
    """What changes within a second: clocks and why they are held down, power, heat, use, ECC totals."""

    def __init__(self, roots: Roots) -> None:
        super().__init__(Pace.SECOND, roots)


class GpuTenSeconds(GpuLane):
    """What changes slowly: limits, lifetime ECC counts, row remapping, the PCIe link."""

    def __init__(self, roots: Roots) -> None:
        super().__init__(Pace.TEN_SECONDS, roots)


def _nvml(roots: Roots) -> Nvml:
    """Load and initialise NVML, or say in the words of a turn why there is none."""
    if roots.nvml_library is None and not roots.is_this_machine:
        raise NoData("this host is a folder: it has no driver")
    try:
        return Nvml(roots.nvml_library or LIBRARY)
    except NvmlAbsent as absent:
        raise NoData(f"no NVML: {absent}") from None
    except NvmlError as error:
        if error.code == _DRIVER_NOT_LOADED:
            raise NoData("the NVIDIA driver is not loaded") from None
        if error.code == _NO_PERMISSION:
            raise Blind(
                f"{error}; let the agent open /dev/nvidiactl and /dev/nvidia[0-9]*"
            ) from None
        if error.code == _OTHER_VERSION:
            raise NvmlError(f"the driver is being updated: {error}", error.code) from None
        raise


def _sweep(nvml: Nvml, pace: Pace, roots: Roots) -> tuple[tuple[Block, ...], Sweep]:
    """Make the blocks of *pace*, a row for each GPU in order of address, and the sweep that fills them."""
    devices = sorted(_devices(nvml, roots))
    if not devices:
        raise NoData("the NVIDIA driver has no GPU")
    keys = _keys(devices)
    blocks = (Block(f"gpu_{pace}", keys), Block(f"gpu_{pace}_changes", keys))
    targets = {
        signal.column: (block.cells, block.valid, column)
        for block in blocks
        for column, signal in enumerate(TABLES[block.table])
    }
    return blocks, Sweep(nvml, [device.address for device in devices], targets)


def _devices(nvml: Nvml, roots: Roots) -> Iterator[Device]:
    """Yield every GPU, also those that the driver lists and NVML answers to be lost."""
    found = {device.address: device for device in nvml.devices()}
    yield from found.values()
    for address in driver_gpus(roots.proc):
        if address not in found:
            try:
                yield nvml.device(address)
            except NvmlError as error:
                if error.code == _LOST:  # any other answer: not a GPU that we may see
                    yield Device(address, driver_gpu_uuid(roots.proc, address), "", "")


def _keys(devices: Sequence[Device]) -> list[str]:
    """Return each GPU's UUID; its address where it has none, or another claims the same."""
    claims = Counter(device.uuid for device in devices)
    return [device_key(d.uuid if claims[d.uuid] == 1 and d.uuid else d.address) for d in devices]
