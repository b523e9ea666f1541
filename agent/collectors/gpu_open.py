"""Loading NVML, and why there is none, in the words of a turn; and when to look again."""

from __future__ import annotations

from pathlib import Path

from ...ext.nvml import Nvml, NvmlAbsent, NvmlError
from ..hardware.nvml import kernel_driver_version
from ..hardware.roots import Roots
from ..turn import Blind, NoData

LIBRARY = "libnvidia-ml.so.1"
SECOND_NS = 1_000_000_000
#: A driver may be loaded, and GPUs may appear, after the agent has started: looked for this often.
LOOK_AGAIN_SECONDS = 60
#: While the kernel has a driver loaded that NVML does not answer for: one loaded again does so within seconds.
LOOK_SOON_SECONDS = 10

# nvmlReturn_t of nvml.h
NO_PERMISSION, DRIVER_NOT_LOADED, LOST, OTHER_VERSION = 4, 9, 15, 18


class LookAgain:
    """When to open NVML again after that failed.

    At once when the kernel has another driver loaded than then, and soon after an error while it has one. Else
    seldom: NVML may load the driver itself, in the way of an operator who has just unloaded it.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._version, self._due_ns, self._looked_ns = "", 0, 0

    def begin(self, reason: Exception, now_ns: int) -> None:
        """It failed just now, for that."""
        self._version, self._looked_ns = kernel_driver_version(self._proc), now_ns
        soon = isinstance(reason, NvmlError) and bool(self._version)
        self._due_ns = now_ns + (LOOK_SOON_SECONDS if soon else LOOK_AGAIN_SECONDS) * SECOND_NS

    def is_due(self, now_ns: int) -> bool:
        """Say whether to try again now. The kernel's side is looked at once a second at most."""
        if now_ns >= self._due_ns:
            return True
        if now_ns - self._looked_ns < SECOND_NS:
            return False
        self._looked_ns = now_ns
        return kernel_driver_version(self._proc) != self._version


def library_of(roots: Roots) -> str:
    """Return the name or path by which NVML is loaded."""
    return roots.nvml_library or LIBRARY


def open_nvml(roots: Roots) -> Nvml:
    """Load and initialise NVML, or say in the words of a turn why there is none."""
    if roots.nvml_library is None and not roots.is_this_machine:
        raise NoData("this host is a folder: it has no driver")
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
