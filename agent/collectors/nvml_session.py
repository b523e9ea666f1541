"""The process's NVML session, opened once and shared by its collectors, which run one at a time.

NVML keeps a descriptor of each GPU open until the whole library is shut down, and only then notices a reloaded driver
or a returned GPU. So only this module opens the library. It opens each GPU by its PCI address, and closes all at once.
When `generation` changes, a collector's handles are invalid. A GPU that is released or in quarantine is not opened,
named or counted.
"""

from __future__ import annotations

import logging
import weakref
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from ...contract.gpu_set import PASSTHROUGH_DRIVERS
from ...ext import nvml as library
from ...ext.nvml import Device, Nvml, NvmlAbsent, NvmlError
from ..clock import Clock, SystemClock
from ..collector import AccessDenied, NoData, RestartRequired
from ..hardware import pci
from ..hardware.files import Roots, device_key
from ..hardware.nvidia import (
    device_rules_deny,
    driver_gpu_uuid,
    driver_gpus,
    is_bound,
    kernel_driver_version,
    pci_gpus,
)

# ----------------------------------------------------------------------
# Loading NVML, and why there is none, in the words of a turn; and when to look again.

LIBRARY = "libnvidia-ml.so.1"
SECOND_NS = 1_000_000_000
#: A driver may be loaded, and GPUs may appear, after the agent has started: looked for this often.
RETRY_SECONDS = 60
#: While the kernel has a driver loaded that NVML does not respond for: one loaded again does so within seconds.
RETRY_SOON_SECONDS = 10

# nvmlReturn_t of nvml.h
NO_PERMISSION, NOT_FOUND, DRIVER_NOT_LOADED, LOST, OTHER_VERSION, UNKNOWN = 4, 6, 9, 15, 18, 999
#: What NVML answers where it may not open the driver's devices.
REFUSED = frozenset((NO_PERMISSION, DRIVER_NOT_LOADED, UNKNOWN))
#: nvidia-docker #1671: systemd writes the device rules of a container again, without what NVIDIA's runtime had added.
DEVICES_CLOSED = (
    "the device rules of this container exclude the GPUs (/dev/nvidiactl); no GPU is at fault. `systemctl daemon-reload` "
    "on the node does this under NVIDIA's legacy runtime: delete the pod. CDI or a privileged container prevents it"
)


class RetryTimer:
    """When to open NVML again after that failed.

    At once when the kernel has another driver loaded than then, and soon after an error while it has one. Else
    seldom: NVML may load the driver itself, in the way of an operator who has just unloaded it.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._version, self._due_ns, self._checked_ns = "", 0, 0

    def start(self, reason: Exception, now_ns: int) -> None:
        """It failed just now, for that."""
        self._version, self._checked_ns = kernel_driver_version(self._proc), now_ns
        soon = isinstance(reason, NvmlError) and bool(self._version)
        self._due_ns = now_ns + (RETRY_SOON_SECONDS if soon else RETRY_SECONDS) * SECOND_NS

    def is_due(self, now_ns: int) -> bool:
        """Return whether to try again now. The kernel's side is looked at once a second at most."""
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
    """Load and initialise NVML, or say in the words of a turn why there is none."""
    if roots.nvml_library is None and not roots.is_this_machine:
        raise NoData("this host is a folder: it has no driver")
    try:
        return Nvml(library_of(roots))
    except NvmlAbsent as missing:
        raise no_gpu_error(f"no NVML: {missing}", roots) from None
    except NvmlError as error:
        raise collector_error(error, roots) from None


def no_gpu_error(reason: str, roots: Roots) -> Exception:
    """Return what a turn raises where NVML shows no GPU, for the reason in *reason*: AccessDenied where the PCI bus has some.

    GPUs that the host hands to virtual machines are no GPUs of its own.
    """
    found = pci.nvidia_gpus(roots.sys)
    host_gpus = {at: driver for at, driver in found.items() if driver not in PASSTHROUGH_DRIVERS}
    if found and not host_gpus:
        driver = next(iter(found.values()))
        return NoData(
            f"{reason}; {len(found)} NVIDIA GPUs are passed through to virtual machines ({driver})"
        )
    if not host_gpus:
        return NoData(reason)
    first, driver = next(iter(host_gpus.items()))
    bound = f", bound to {driver}" if driver else ""
    return AccessDenied(
        f"{reason}, and {len(host_gpus)} NVIDIA GPUs are on the PCI bus, the first at {first}{bound}"
    )


def collector_error(error: NvmlError, roots: Roots) -> Exception:
    """Return what a turn raises where NVML as a whole answers with *error*."""
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


#: While a GPU is lost, missing or without a name NVML is reopened, without which it could not come back: after
#: this long, then ever more rarely, for it disturbs the GPUs that are well.
REOPEN_SECONDS, REOPEN_SECONDS_MAX = 60, 600
#: The driver was to be taken off a GPU: if it has not been by then, it will not be.
UNBINDING_SECONDS = 60

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NvmlGpu:
    """A GPU of this host."""

    address: str
    key: str
    """Its UUID; its PCI address where that is not known, or is claimed by another too."""
    excluded: bool = False


class NvmlUser(Protocol):
    """A collector that makes something of an open NVML."""

    def release(self) -> None:
        """Free and forget what was made. NVML is still open. Never raises."""
        ...


@runtime_checkable
class EventPoller(Protocol):
    """A collector that NVML may have something to tell at any time."""

    def poll_events(self) -> None:
        """Ask NVML once, without waiting. Never raises."""
        ...


class NvmlSession:
    """For one thread. Who uses it keeps it."""

    def __init__(self, roots: Roots) -> None:
        self.clock: Clock = SystemClock()
        self.nvml: Nvml | None = None  # None also while every GPU is spared
        self.gpus: Sequence[NvmlGpu] = ()  # in order of address
        self.driver_version = ""
        self.hidden = ""  # as text: GPUs that NVML does not show
        #: Rises whenever what was made of the open NVML is of no use any more.
        self.generation = 0
        #: How often the driver was found gone or another: every GPU's counters started over each time.
        self.driver_loads = 0
        #: PCI addresses of the GPUs that are split into MIG instances, as their lane last read it.
        self.mig_addresses: frozenset[str] = frozenset()
        #: Of each GPU that answered, by its key, the processes that compute on it, as their lane last read them.
        self.compute_processes: Mapping[str, frozenset[int]] = {}
        #: Library and driver are of different versions.
        self.is_updating = False
        self._roots = roots
        self._users: weakref.WeakSet[NvmlUser] = weakref.WeakSet()
        self._event_pollers: list[weakref.ref[EventPoller]] = []
        self._excluded: Collection[str] = ()
        self._unbinding: dict[str, int] = {}  # address -> until when it is skipped
        self._has_gpus = self._was_open = False
        self._is_complete = True  # all that NVML counts were found, each under its UUID
        self._last_error: Exception | None = None
        self._retry_timer = RetryTimer(roots.proc)
        self._reopen_ns = self._unhealthy_ns = 0
        self._reopen_wait_seconds = REOPEN_SECONDS

    def register(self, user: NvmlUser) -> None:
        """Have *user* let go whenever NVML is closed; it is not kept alive by that."""
        self._users.add(user)
        if isinstance(user, EventPoller):
            self._event_pollers.append(weakref.ref(user))

    def poll_events(self) -> None:
        """Let those hear who can, between the turns; it is called about once a second."""
        for each in self._event_pollers:
            if user := each():
                user.poll_events()

    # ---- opening ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Have NVML open, and every GPU found that is not spared; `nvml` is None when all are.

        Raises NoData, AccessDenied or NvmlError as it did the last time until it is time to look again; RestartRequired.
        """
        if self._has_gpus and not self._reopen_ns and not self._unbinding:
            return
        now_ns = self.clock.boottime_ns()
        if self._unbinding:
            self._end_unbinding(now_ns)
        if self._reopen_ns and now_ns >= self._reopen_ns:
            self._reopen_wait_seconds = min(2 * self._reopen_wait_seconds, REOPEN_SECONDS_MAX)
            self.close()
        if self._has_gpus:
            return
        if self._last_error is not None and not self._retry_timer.is_due(now_ns):
            raise self._last_error.with_traceback(None)  # or each raise would make it longer
        try:
            self._find()
        except (NoData, AccessDenied, NvmlError) as reason:
            self._give_up(reason, now_ns)
            raise
        except BaseException:
            self.close()
            raise
        self._last_error, self._has_gpus, self.is_updating = None, True, False

    def warm_up(self) -> None:
        """Load NVML, and open no GPU. Never raises."""
        try:
            if self.nvml is None:
                self.nvml = open_nvml(self._roots)
        except (NoData, AccessDenied, NvmlError) as reason:
            log.info("NVML is not preloaded: %s", reason, extra={"cause": "gpu.warm"})

    def _give_up(self, reason: Exception, now_ns: int) -> None:
        """Let go, and give the same answer until it is time to look again."""
        self.close()
        self.is_updating = isinstance(reason, NvmlError) and reason.code == OTHER_VERSION
        if self.is_updating:
            if self._was_open and library.is_loaded(library_of(self._roots)):
                raise RestartRequired(
                    f"{reason}: the library of the previous driver cannot be unloaded"
                )
            self.gpus = self._known_gpus()
        self._last_error = reason
        self._retry_timer.start(reason, now_ns)

    def _find(self) -> None:
        known = self._addresses()
        if known and all(self._is_excluded(address) for address in known):
            self.close()
            self.gpus, self._has_gpus = self._with_keys([], known), True
            return
        if self.nvml is None:
            self.nvml = open_nvml(self._roots)
        self._was_open = True
        self.driver_version = self.nvml.driver_version()
        count = self.nvml.count()
        devices = self._devices(self.nvml, known) if known else self._by_number(self.nvml, count)
        devices = [d if d.uuid else d._replace(uuid=self._uuid(d.address)) for d in devices]
        for device in devices:
            library.remember(device.address, uuid=device.uuid)
        excluded = [address for address in known if self._is_excluded(address)]
        if not devices and not excluded:
            if device_rules_deny(self._roots.dev):
                raise AccessDenied(DEVICES_CLOSED)
            raise no_gpu_error("the NVIDIA driver has no GPU", self._roots)
        self.gpus = self._with_keys(devices, excluded)
        listed = set(driver_gpus(self._roots.proc)) - {gpu.address for gpu in self.gpus}
        remedy = "let the agent open /dev/nvidia[0-9]*"
        hidden = ", ".join(sorted(listed))
        self.hidden = f"NVML does not show GPU {hidden}; {remedy}" if hidden else ""
        self._reopen_ns = 0
        has_uuids = all(gpu.excluded or gpu.key.startswith("GPU-") for gpu in self.gpus)
        self._is_complete = len(self.gpus) >= count and has_uuids
        if not self._is_complete:
            self.schedule_reopen()

    def _addresses(self) -> list[str]:
        """Return where GPUs are, as far as that is known without asking NVML.

        Where the kernel does not say so, they are where they were, if NVML would attach one that is spared.
        """
        found = driver_gpus(self._roots.proc) or pci_gpus(self._roots.sys)
        if not found:
            known = library.accounts()
            remembered = [each.address for each in known if each.address and each.uuid]
            found = remembered if any(map(self._is_excluded, remembered)) else []
        return sorted({*found, *self._unbinding} if found else found)[: library.GPUS_MAX]

    def _devices(self, nvml: Nvml, addresses: Sequence[str]) -> list[Device]:
        """Return the GPUs at *addresses* that are not spared, also those that cannot be opened because of a fault."""
        found = []
        for address in addresses:
            if self._is_excluded(address):
                continue
            try:
                found.append(nvml.device(address))
            except NvmlError as error:
                if not self._is_hidden(error.code):
                    found.append(Device(address, "", "", ""))
        return found

    def _is_hidden(self, code: int) -> bool:
        """Return whether *code*, for a GPU's handle, means that the agent may not see the GPU."""
        if code in (NO_PERMISSION, NOT_FOUND, library.LEFT_OUT):
            return True
        return code in REFUSED and device_rules_deny(self._roots.dev)

    def _by_number(self, nvml: Nvml, count: int) -> list[Device]:
        """Return the GPUs where nobody but NVML says where they are: it attaches all of them to say so."""
        return [d for d in nvml.devices(count) if not self._is_excluded(d.address)]

    def _uuid(self, address: str) -> str:
        """Return the UUID that a GPU had, or that the kernel's side knows: it does not say it itself."""
        return library.account(address).uuid or driver_gpu_uuid(self._roots.proc, address)

    def _known_gpus(self) -> Sequence[NvmlGpu]:
        """Return the GPUs without asking them or the driver anything."""
        return self._with_keys([], self._addresses())

    def _with_keys(self, devices: Sequence[Device], excluded: Sequence[str]) -> Sequence[NvmlGpu]:
        """Return the GPUs by their UUIDs. One that is spared has the UUID that it had."""
        silent = [Device(a, library.account(a).uuid, "", "") for a in excluded]
        claims = Counter(device.uuid for device in (*devices, *silent))
        return tuple(
            NvmlGpu(
                each.address,
                device_key(each.uuid if each.uuid and claims[each.uuid] == 1 else each.address),
                each in silent,
            )
            for each in sorted((*devices, *silent))
        )

    # ---- letting go -------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Have everything recreated of the GPUs, which stay attached."""
        for user in list(self._users):
            try:
                user.release()
            except Exception:
                log.exception(
                    "a collector does not release the GPUs", extra={"cause": "gpu.let_go"}
                )
        self.generation += 1
        self._has_gpus, self._last_error, self.gpus = False, None, ()

    def close(self) -> None:
        """Release every GPU and NVML, so that no descriptor is left; the next `open` opens them again."""
        self.refresh()
        if self.nvml is not None:
            self.nvml.close()
        self.nvml, self._reopen_ns = None, 0

    def reopen(self, *, driver_loaded: bool) -> None:
        """Let go, for NVML to see what is new. *driver_loaded*: the driver is, or may be, another one."""
        self.driver_loads += driver_loaded
        self.close()

    def schedule_reopen(self) -> None:
        """Something is wrong with a GPU that NVML does not find out without being reopened: do so after a while."""
        now_ns = self.clock.boottime_ns()
        if now_ns - self._unhealthy_ns > 2 * REOPEN_SECONDS_MAX * SECOND_NS:
            self._reopen_wait_seconds = REOPEN_SECONDS
        self._unhealthy_ns = now_ns
        if not self._reopen_ns:
            self._reopen_ns = now_ns + self._reopen_wait_seconds * SECOND_NS

    def cancel_reopen(self) -> None:
        """No GPU is lost any more."""
        if self._reopen_ns and self._is_complete:
            self._reopen_ns, self._reopen_wait_seconds = 0, REOPEN_SECONDS

    # ---- GPUs that are skipped -----------------------------------------------------------------

    def exclude(self, devices: Collection[str]) -> None:
        """Ask the GPUs at these PCI addresses nothing from now on; an empty name is the driver as a whole.

        What is open is closed when one of them is among it, and taken up again without them. It is, too, when
        one is back that was not there: NVML shows it once it is reopened.
        """
        before = {gpu.address: gpu.excluded for gpu in self.gpus}
        returned = [each for each in self._excluded if each not in devices]
        self._excluded = devices
        if self._has_gpus and any(each not in before for each in returned):
            self.close()
        else:
            self._apply_exclusion(before)

    def unbind(self, address: str) -> None:
        """The driver is about to be unbound from a GPU: release it, or all GPUs if it is unknown."""
        before = {gpu.address: gpu.excluded for gpu in self.gpus}
        until_ns = self.clock.boottime_ns() + UNBINDING_SECONDS * SECOND_NS
        for each in (address,) if address in before else tuple(before):
            self._unbinding[each] = until_ns
        self._apply_exclusion(before)

    def bind(self, address: str) -> None:
        """The driver has been put onto a GPU: take it up."""
        self._unbinding.pop(address, None)
        self.refresh()

    def _apply_exclusion(self, before: dict[str, bool]) -> None:
        now = {address: self._is_excluded(address) for address in before}
        if any(now[address] and not was_excluded for address, was_excluded in before.items()):
            self.close()
        elif now != before:
            self.refresh()
        elif not before:  # nothing was found, or could be: what is spared now may be why
            self._last_error = None

    def _is_excluded(self, address: str) -> bool:
        return address in self._excluded or "" in self._excluded or address in self._unbinding

    def _end_unbinding(self, now_ns: int) -> None:
        """Take up GPUs that the driver was not taken off after all, or that it is on again."""
        for address, until_ns in list(self._unbinding.items()):
            if now_ns >= until_ns:
                if is_bound(self._roots.sys, address) is False:
                    self._unbinding[address] = now_ns + RETRY_SOON_SECONDS * SECOND_NS
                else:
                    self.bind(address)


_SESSIONS: weakref.WeakValueDictionary[Roots, NvmlSession] = weakref.WeakValueDictionary()


def session_of(roots: Roots) -> NvmlSession:
    """Return the session of a host's library, one for the whole process."""
    session = _SESSIONS.get(roots)
    if session is None:
        session = _SESSIONS[roots] = NvmlSession(roots)
    return session
