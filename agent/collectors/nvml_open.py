"""Loads and opens NVML, with the reason and the time of the next attempt if it fails."""

from __future__ import annotations

from pathlib import Path

from ...contract.gpu_set import PASSTHROUGH_DRIVERS
from ...ext.nvml import Nvml, NvmlAbsent, NvmlError
from ..collector import AccessDenied, NoData
from ..hardware import pci
from ..hardware.files import Roots
from ..hardware.nvidia import device_rules_deny, kernel_driver_version

LIBRARY = "libnvidia-ml.so.1"
SECOND_NS = 1_000_000_000
#: Interval of attempts to open NVML: a driver may be loaded, and GPUs may appear, after the agent
#: has started.
RETRY_SECONDS = 60
#: Interval while the kernel has a driver that NVML does not answer for: a reloaded one answers
#: within seconds.
RETRY_SOON_SECONDS = 10
# nvmlReturn_t of nvml.h
NO_PERMISSION, NOT_FOUND, DRIVER_NOT_LOADED, LOST, OTHER_VERSION, UNKNOWN = 4, 6, 9, 15, 18, 999
#: NVML's codes if it may not open the driver's devices.
REFUSED = frozenset((NO_PERMISSION, DRIVER_NOT_LOADED, UNKNOWN))
#: nvidia-docker #1671: systemd rewrites a container's device rules without the additions of
#: NVIDIA's runtime.
DEVICES_CLOSED = (
    "the device rules of this container exclude the GPUs (/dev/nvidiactl); no GPU is at fault. `systemctl daemon-reload` "
    "on the node does this under NVIDIA's legacy runtime: delete the pod. CDI or a privileged container prevents it"
)


class RetryTimer:
    """Decides when to open NVML again after a failure.

    At once if the kernel has loaded another driver since, soon after an error while a driver is
    loaded, else rarely: NVML may load the driver itself, against an operator who has just unloaded
    it.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._version, self._due_ns, self._checked_ns = "", 0, 0

    def start(self, reason: Exception, now_ns: int) -> None:
        """Start waiting after a failure with *reason*."""
        self._version, self._checked_ns = kernel_driver_version(self._proc), now_ns
        soon = isinstance(reason, NvmlError) and bool(self._version)
        self._due_ns = now_ns + (RETRY_SOON_SECONDS if soon else RETRY_SECONDS) * SECOND_NS

    def is_due(self, now_ns: int) -> bool:
        """Return whether to retry now. The kernel's driver is checked at most once a second."""
        if now_ns >= self._due_ns:
            return True
        if now_ns - self._checked_ns < SECOND_NS:
            return False
        self._checked_ns = now_ns
        return kernel_driver_version(self._proc) != self._version


def library_of(roots: Roots) -> str:
    """Return the name or path by which NVML is loaded."""
    return roots.nvml_library or LIBRARY


def open_nvml(roots: Roots) -> Nvml:
    """Load and initialize NVML, or raise a turn's error."""
    if roots.nvml_library is None and not roots.is_this_machine:
        raise NoData("this host is a folder: it has no driver")
    try:
        return Nvml(library_of(roots))
    except NvmlAbsent as missing:
        raise no_gpu_error(f"no NVML: {missing}", roots) from None
    except NvmlError as error:
        raise collector_error(error, roots) from None


def no_gpu_error(reason: str, roots: Roots) -> Exception:
    """Return a turn's error if NVML shows no GPU: AccessDenied if the PCI bus has one.

    GPUs that the host passes to virtual machines do not count.
    """
    drivers = pci.nvidia_gpus(roots.sys)
    host_gpus = {
        address: driver for address, driver in drivers.items() if driver not in PASSTHROUGH_DRIVERS
    }
    if drivers and not host_gpus:
        driver = next(iter(drivers.values()))
        return NoData(
            f"{reason}; {len(drivers)} NVIDIA GPUs are passed through to virtual machines ({driver})"
        )
    if not host_gpus:
        return NoData(reason)
    first, driver = next(iter(host_gpus.items()))
    bound = f", bound to {driver}" if driver else ""
    return AccessDenied(
        f"{reason}, and {len(host_gpus)} NVIDIA GPUs are on the PCI bus, the first at {first}{bound}"
    )


def collector_error(error: NvmlError, roots: Roots) -> Exception:
    """Return the error of a turn in which a call to NVML as a whole fails with *error*."""
    if error.code in REFUSED and device_rules_deny(roots.dev):
        return AccessDenied(DEVICES_CLOSED)
    if error.code == DRIVER_NOT_LOADED:
        return no_gpu_error("the NVIDIA driver is not loaded", roots)
    if error.code == NO_PERMISSION:
        return AccessDenied(f"{error}; let the agent open /dev/nvidiactl and /dev/nvidia[0-9]*")
    if error.code == OTHER_VERSION:
        version = kernel_driver_version(roots.proc)
        loaded = f", the kernel has {version} loaded" if version else ""
        return NvmlError(f"the driver is being updated: {error}{loaded}", error.code)
    return error
