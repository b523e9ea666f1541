"""Opening NVML and finding the GPUs; and why there is none, in the words of a turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ...ext.nvml import Device, Nvml, NvmlAbsent, NvmlError
from ...fingerprints.catalogue import PERIOD_SECONDS, Pace
from ..hardware.files import device_key
from ..hardware.nvml import driver_gpu_uuid, driver_gpus, kernel_driver_version
from ..hardware.nvml_session import session_of
from ..hardware.roots import Roots
from ..turn import Blind, NoData

LIBRARY = "libnvidia-ml.so.1"
#: A driver may be loaded, and GPUs may appear, after the agent has started: looked for this often.
LOOK_AGAIN_SECONDS = 60
#: While the kernel has a driver loaded that NVML does not answer for: one loaded again does so within seconds.
LOOK_SOON_SECONDS = 10

# nvmlReturn_t of nvml.h
UNINITIALIZED, NO_PERMISSION, DRIVER_NOT_LOADED, LOST, OTHER_VERSION = 1, 4, 9, 15, 18


class LookAgain:
    """When to open NVML again after that failed, asked once a turn.

    At once when the kernel has another driver loaded than then, and soon after an error while it has one. Else
    seldom: NVML may load the driver itself, in the way of an operator who has just unloaded it.
    """

    def __init__(self, roots: Roots, pace: Pace) -> None:
        self._proc, self._period_seconds = roots.proc, PERIOD_SECONDS[pace]
        self._version, self._turns = "", 0

    def begin(self, reason: Exception) -> None:
        """It failed just now, for that. What is no error (no such part here) will not be otherwise soon."""
        self._version = kernel_driver_version(self._proc)
        soon = isinstance(reason, NvmlError) and bool(self._version)
        seconds = LOOK_SOON_SECONDS if soon else LOOK_AGAIN_SECONDS
        self._turns = seconds // self._period_seconds

    def is_due(self) -> bool:
        """Say whether to try again in this turn."""
        if self._turns <= 0 or kernel_driver_version(self._proc) != self._version:
            return True
        self._turns -= 1
        return False


def library_of(roots: Roots) -> str:
    """Return the name or path by which NVML is loaded."""
    return roots.nvml_library or LIBRARY


def open_nvml(roots: Roots) -> Nvml:
    """Load and initialise NVML, or say in the words of a turn why there is none. While it is to be opened anew,
    this waits for the others to let go of it, LEAVING_SECONDS_MAX at most."""
    if roots.nvml_library is None and not roots.is_this_machine:
        raise NoData("this host is a folder: it has no driver")
    session_of(library_of(roots)).wait_until_left()
    try:
        return Nvml(library_of(roots))
    except NvmlAbsent as absent:
        raise NoData(f"no NVML: {absent}") from None
    except NvmlError as error:
        raise in_words(error, roots) from None


def in_words(error: NvmlError, roots: Roots) -> Exception:
    """Return what a turn raises where NVML as a whole answers with *error*."""
    if error.code == DRIVER_NOT_LOADED:
        return NoData("the NVIDIA driver is not loaded")
    if error.code == NO_PERMISSION:
        return Blind(f"{error}; let the agent open /dev/nvidiactl and /dev/nvidia[0-9]*")
    if error.code == OTHER_VERSION:
        version = kernel_driver_version(roots.proc)
        loaded = f", the kernel has {version} loaded" if version else ""
        return NvmlError(f"the driver is being updated: {error}{loaded}", error.code)
    return error


def gpus_of(nvml: Nvml, roots: Roots) -> Iterator[Device]:
    """Yield every GPU, also those that the driver lists and NVML answers to be lost.

    One that does not say its UUID has the one that the kernel's side knows, if that knows it.
    """
    found = {device.address: device for device in nvml.devices()}
    for device in found.values():
        uuid = device.uuid or driver_gpu_uuid(roots.proc, device.address)
        yield device._replace(uuid=uuid)
    for address in driver_gpus(roots.proc):
        if address not in found:
            try:
                yield nvml.device(address)
            except NvmlError as error:
                if error.code == LOST:  # any other answer: not a GPU that we may see
                    yield Device(address, driver_gpu_uuid(roots.proc, address), "", "")


def is_complete(nvml: Nvml, keys: Sequence[str]) -> bool:
    """Say whether every GPU that NVML counts is there, and each under its UUID; if not, that may be so later on."""
    return len(keys) >= nvml.counted and all(key.startswith("GPU-") for key in keys)


def keys_of(devices: Sequence[Device]) -> list[str]:
    """Return each GPU's UUID; its address where it has none, or another claims the same."""
    claims = Counter(device.uuid for device in devices)
    return [device_key(d.uuid if claims[d.uuid] == 1 and d.uuid else d.address) for d in devices]
