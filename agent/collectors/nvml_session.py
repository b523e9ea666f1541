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
from typing import Protocol, runtime_checkable

from ...ext import nvml as library
from ...ext.nvml import Device, Nvml, NvmlError
from ..clock import Clock, SystemClock
from ..collector import AccessDenied, NoData, RestartRequired
from ..hardware.files import Roots, device_key
from ..hardware.nvidia import device_rules_deny, driver_gpu_uuid, driver_gpus, is_bound, pci_gpus
from . import nvml_open

#: While a GPU is lost, missing or without a UUID, NVML is reopened so that it can come back: after
#: this time, then at growing intervals up to the maximum, because that disturbs the healthy GPUs.
REOPEN_SECONDS, REOPEN_SECONDS_MAX = 60, 600
#: A GPU is skipped this long for its announced unbinding, which then counts as canceled.
UNBINDING_SECONDS = 60

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NvmlGpu:
    """A GPU of this host."""

    address: str
    key: str
    """Its UUID; its PCI address if the UUID is unknown or another GPU has it too."""
    excluded: bool = False


class NvmlUser(Protocol):
    """A collector with state that depends on the open NVML."""

    def release(self) -> None:
        """Free that state while NVML is still open. Never raises."""
        ...


@runtime_checkable
class EventPoller(Protocol):
    """A collector of events, which NVML may have at any time."""

    def poll_events(self) -> None:
        """Poll NVML once, without waiting. Never raises."""
        ...


class NvmlSession:
    """For one thread. It lives while a collector holds it."""

    def __init__(self, roots: Roots) -> None:
        self.clock: Clock = SystemClock()
        self.nvml: Nvml | None = None  # also None while every GPU is excluded
        self.gpus: Sequence[NvmlGpu] = ()  # in order of address
        self.driver_version = ""
        self.hidden = ""  # message about GPUs that NVML does not show
        #: Rises whenever state that depends on the open NVML becomes invalid.
        self.generation = 0
        #: Number of times that the driver was found gone or replaced: every GPU's counters restart
        #: then.
        self.driver_loads = 0
        #: PCI addresses of GPUs in MIG mode, as last read by their lane.
        self.mig_addresses: frozenset[str] = frozenset()
        #: GPU key -> PIDs of its compute processes, as last read by their lane; without GPUs that
        #: did not answer.
        self.compute_processes: Mapping[str, frozenset[int]] = {}
        #: Whether library and driver differ in version.
        self.is_updating = False
        self._roots = roots
        self._users: weakref.WeakSet[NvmlUser] = weakref.WeakSet()
        self._event_pollers: list[weakref.ref[EventPoller]] = []
        self._excluded: Collection[str] = ()
        self._unbinding: dict[str, int] = {}  # address -> end of the exclusion
        self._has_gpus = self._was_open = False
        self._is_complete = True  # all GPUs that NVML counts were found, each with its UUID
        self._last_error: Exception | None = None
        self._retry_timer = nvml_open.RetryTimer(roots.proc)
        self._reopen_ns = self._unhealthy_ns = 0
        self._reopen_wait_seconds = REOPEN_SECONDS

    def register(self, user: NvmlUser) -> None:
        """Release *user* whenever NVML is closed; a weak reference."""
        self._users.add(user)
        if isinstance(user, EventPoller):
            self._event_pollers.append(weakref.ref(user))

    def poll_events(self) -> None:
        """Poll the event collectors, about once a second between the turns."""
        for reference in self._event_pollers:
            if user := reference():
                user.poll_events()

    def open(self) -> None:
        """Open NVML and the GPUs that are not excluded; `nvml` is None if all GPUs are excluded.

        Raises NoData, AccessDenied or NvmlError, the same one until the next try is due;
        RestartRequired.
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
            # Else each raise would lengthen the traceback
            raise self._last_error.with_traceback(None)
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
        """Load NVML without opening a GPU. Never raises."""
        try:
            if self.nvml is None:
                self.nvml = nvml_open.open_nvml(self._roots)
        except (NoData, AccessDenied, NvmlError) as reason:
            log.info("NVML is not preloaded: %s", reason, extra={"cause": "gpu.warm"})

    def _give_up(self, reason: Exception, now_ns: int) -> None:
        """Release everything, and repeat the error until the next try is due."""
        self.close()
        self.is_updating = isinstance(reason, NvmlError) and reason.code == nvml_open.OTHER_VERSION
        if self.is_updating:
            if self._was_open and library.is_loaded(nvml_open.library_of(self._roots)):
                raise RestartRequired(
                    f"{reason}: the library of the previous driver cannot be unloaded"
                )
            self.gpus = self._with_keys([], self._addresses())  # without a call to the driver
        self._last_error = reason
        self._retry_timer.start(reason, now_ns)

    def _find(self) -> None:
        known = self._addresses()
        if known and all(self._is_excluded(address) for address in known):
            self.close()
            self.gpus, self._has_gpus = self._with_keys([], known), True
            return
        if self.nvml is None:
            self.nvml = nvml_open.open_nvml(self._roots)
        self._was_open = True
        self.driver_version = self.nvml.driver_version()
        count = self.nvml.count()
        if known:
            devices = self._devices(self.nvml, known)
        else:  # only NVML knows the addresses: it attaches all GPUs for that
            devices = [d for d in self.nvml.devices(count) if not self._is_excluded(d.address)]
        devices = [d if d.uuid else d._replace(uuid=self._uuid(d.address)) for d in devices]
        for device in devices:
            library.remember(device.address, uuid=device.uuid)
        excluded = [address for address in known if self._is_excluded(address)]
        if not devices and not excluded:
            if device_rules_deny(self._roots.dev):
                raise AccessDenied(nvml_open.DEVICES_CLOSED)
            raise nvml_open.no_gpu_error("the NVIDIA driver has no GPU", self._roots)
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
        """Return the addresses of GPUs without a call to NVML.

        If the kernel does not show them, return the last ones when one is excluded, because NVML
        would attach it.
        """
        addresses = driver_gpus(self._roots.proc) or pci_gpus(self._roots.sys)
        if not addresses:
            known = library.accounts()
            remembered = [account.address for account in known if account.address and account.uuid]
            addresses = remembered if any(map(self._is_excluded, remembered)) else []
        return sorted({*addresses, *self._unbinding} if addresses else addresses)[
            : library.GPUS_MAX
        ]

    def _devices(self, nvml: Nvml, addresses: Sequence[str]) -> list[Device]:
        """Return the GPUs that are not excluded, including GPUs that a fault keeps closed."""
        devices = []
        for address in addresses:
            if self._is_excluded(address):
                continue
            try:
                devices.append(nvml.device(address))
            except NvmlError as error:
                if not self._is_hidden(error.code):
                    devices.append(Device(address, "", "", ""))
        return devices

    def _is_hidden(self, code: int) -> bool:
        """Return whether *code*, for a GPU's handle, means that the agent may not see the GPU."""
        if code in (nvml_open.NO_PERMISSION, nvml_open.NOT_FOUND, library.LEFT_OUT):
            return True
        return code in nvml_open.REFUSED and device_rules_deny(self._roots.dev)

    def _uuid(self, address: str) -> str:
        """Return a GPU's last UUID, or the kernel's, if the GPU does not report it."""
        return library.account(address).uuid or driver_gpu_uuid(self._roots.proc, address)

    def _with_keys(self, devices: Sequence[Device], excluded: Sequence[str]) -> Sequence[NvmlGpu]:
        """Return the GPUs by their UUIDs. An excluded GPU keeps its last UUID."""
        silent = [Device(a, library.account(a).uuid, "", "") for a in excluded]
        claims = Counter(device.uuid for device in (*devices, *silent))
        return tuple(
            NvmlGpu(
                device.address,
                device_key(
                    device.uuid if device.uuid and claims[device.uuid] == 1 else device.address
                ),
                device in silent,
            )
            for device in sorted((*devices, *silent))
        )

    def refresh(self) -> None:
        """Release the collectors' state; the GPUs stay attached."""
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
        """Close every GPU, NVML and their descriptors; the next `open` opens them again."""
        self.refresh()
        if self.nvml is not None:
            self.nvml.close()
        self.nvml, self._reopen_ns = None, 0

    def reopen(self, *, driver_loaded: bool) -> None:
        """Close NVML, so that it notices changes.

        *driver_loaded*: the driver was or may have been replaced.
        """
        self.driver_loads += driver_loaded
        self.close()

    def schedule_reopen(self) -> None:
        """Reopen NVML later: a GPU has a problem that only reopening shows or resolves."""
        now_ns = self.clock.boottime_ns()
        if now_ns - self._unhealthy_ns > 2 * REOPEN_SECONDS_MAX * nvml_open.SECOND_NS:
            self._reopen_wait_seconds = REOPEN_SECONDS
        self._unhealthy_ns = now_ns
        if not self._reopen_ns:
            self._reopen_ns = now_ns + self._reopen_wait_seconds * nvml_open.SECOND_NS

    def cancel_reopen(self) -> None:
        """Cancel the reopening: no GPU is lost any more."""
        if self._reopen_ns and self._is_complete:
            self._reopen_ns, self._reopen_wait_seconds = 0, REOPEN_SECONDS

    def exclude(self, devices: Collection[str]) -> None:
        """Skip the GPUs at these PCI addresses, and no others.

        An empty name means the whole driver.

        If an open GPU is among them, everything is closed and reopened without it; also if a GPU is
        permitted again that was not there before, because NVML shows it only after reopening.
        """
        before = {gpu.address: gpu.excluded for gpu in self.gpus}
        returned = [address for address in self._excluded if address not in devices]
        self._excluded = devices
        if self._has_gpus and any(address not in before for address in returned):
            self.close()
        else:
            self._apply_exclusion(before)

    def unbind(self, address: str) -> None:
        """Release a GPU, or all if it is unknown, before the driver is unbound from it."""
        before = {gpu.address: gpu.excluded for gpu in self.gpus}
        until_ns = self.clock.boottime_ns() + UNBINDING_SECONDS * nvml_open.SECOND_NS
        for gpu_address in (address,) if address in before else tuple(before):
            self._unbinding[gpu_address] = until_ns
        self._apply_exclusion(before)

    def bind(self, address: str) -> None:
        """Open a GPU that the driver was bound to."""
        self._unbinding.pop(address, None)
        self.refresh()

    def _apply_exclusion(self, before: dict[str, bool]) -> None:
        now = {address: self._is_excluded(address) for address in before}
        if any(now[address] and not was_excluded for address, was_excluded in before.items()):
            self.close()
        elif now != before:
            self.refresh()
        elif not before:  # no GPU was found, perhaps because of a GPU that is excluded now
            self._last_error = None

    def _is_excluded(self, address: str) -> bool:
        return address in self._excluded or "" in self._excluded or address in self._unbinding

    def _end_unbinding(self, now_ns: int) -> None:
        """Open GPUs that were not unbound after all, or are bound again."""
        for address, until_ns in list(self._unbinding.items()):
            if now_ns >= until_ns:
                if is_bound(self._roots.sys, address) is False:
                    self._unbinding[address] = (
                        now_ns + nvml_open.RETRY_SOON_SECONDS * nvml_open.SECOND_NS
                    )
                else:
                    self.bind(address)


_SESSIONS: weakref.WeakValueDictionary[Roots, NvmlSession] = weakref.WeakValueDictionary()


def session_of(roots: Roots) -> NvmlSession:
    """Return the process's only session of a host's library."""
    session = _SESSIONS.get(roots)
    if session is None:
        session = _SESSIONS[roots] = NvmlSession(roots)
    return session
