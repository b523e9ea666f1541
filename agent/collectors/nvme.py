"""NVMe controllers: their state from sysfs, their wear and errors from the drive itself."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path

from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ..entering import Spares, entering
from ..hardware import nvme
from ..hardware.files import Files, read_unsigned
from ..hardware.nvme import SmartLog
from ..hardware.roots import Roots
from ..turn import NoData
from .columns import block_of, places_of, put
from .folders import DEVICES_MAX
from .remembering import Remembered

_ABSENT = "no NVMe controller in /sys/class/nvme"

#: In the order of `_state_of`.
_CONTROLLER = ("nvme.controller_state", "nvme.namespaces_count", "nvme.queues_count")
#: Signals of the SMART log, and where they stand in it.
_SMART: Mapping[str, Callable[[SmartLog], float | None]] = {
    "nvme.critical_warning_flags": attrgetter("critical_warning"),
    "nvme.spare_ratio": attrgetter("spare_ratio"),
    "nvme.spare_threshold_ratio": attrgetter("spare_threshold_ratio"),
    "nvme.used_ratio": attrgetter("used_ratio"),
    "nvme.media_errors": attrgetter("media_errors"),
    "nvme.error_log_count": attrgetter("error_log_entries"),
    "nvme.unsafe_shutdowns_count": attrgetter("unsafe_shutdowns"),
    "nvme.power_cycles_count": attrgetter("power_cycles"),
    "nvme.power_on_seconds": attrgetter("power_on_seconds"),
    "nvme.busy_seconds": attrgetter("busy_seconds"),
    "nvme.read_bytes": attrgetter("read_bytes"),
    "nvme.written_bytes": attrgetter("written_bytes"),
    "nvme.warning_temperature_seconds": attrgetter("warning_temperature_seconds"),
    "nvme.critical_temperature_seconds": attrgetter("critical_temperature_seconds"),
    "nvme.light_throttles_count": attrgetter("light_throttles"),
    "nvme.heavy_throttles_count": attrgetter("heavy_throttles"),
}


class NvmeControllers:
    """State, namespaces and queues of each controller, as the kernel keeps them: no drive is asked."""

    name = "nvme_10s"
    pace = Pace.TEN_SECONDS
    enters_driver = False

    def __init__(self, roots: Roots) -> None:
        self._sys = roots.sys
        self._controllers = Remembered(self._work_out)
        self._block = Block("nvme_10s", ())

    def collect(self) -> Sequence[Block]:
        """Return the one block. Raises NoData without a controller."""
        is_new = self._controllers.look()
        if not self._controllers.value:
            raise NoData(_ABSENT)
        if is_new:
            self._block = block_of(self._block, self._controllers.value)
            places = places_of(self._block, _CONTROLLER)
            for row, values in enumerate(self._controllers.value.values()):
                places.put(row, values)
        return (self._block,)

    def _work_out(self, files: Files) -> dict[str, tuple[int | None, ...]]:
        found = list(nvme.controllers(self._sys, files).items())[:DEVICES_MAX]
        return {name: _state_of(folder, files) for name, folder in found}


def _state_of(folder: Path, files: Files) -> tuple[int | None, ...]:
    """Return state, namespaces and queues of a controller."""
    state = nvme.parse_state(files.text(folder / "state"))
    spaces = nvme.namespaces(folder, files)
    return (
        state,
        len(spaces) if state is not None else None,
        files.unsigned(folder / "queue_count"),
    )


class NvmeSmart(Spares):
    """Temperature, wear, errors of each live controller, from its sensor and its SMART log, and whose they are.

    Both ask the drive. The log needs privileges: without them the temperature alone is there, and
    `blind_words` say what is missing.
    """

    name = "nvme_60s"
    pace = Pace.MINUTE
    enters_driver = True

    def __init__(
        self, roots: Roots, read_smart_page: Callable[[Path], bytes] = nvme.read_smart_page
    ) -> None:
        self._sys, self._dev = roots.sys, roots.dev
        self._read_smart_page = read_smart_page
        self._block = Block("nvme_60s", ())
        self.blind_words = ""

    def collect(self) -> Sequence[Block]:
        """Return the one block; a controller that is not live has no value. NoData without one."""
        found = _controllers(self._sys)
        self._block = block_of(self._block, found)
        self._block.clear()
        self.blind_words = ""
        for row, (name, folder) in enumerate(found.items()):
            if not self.is_spared(name) and nvme.is_awake(folder):
                put(self._block, "nvme.counter_epoch_count", row, nvme.identity(folder))
                log = self._put_smart(row, name)
                with entering(name, "read temp1_input"):
                    self._put_temperature(row, folder, log)
        return (self._block,)

    def _put_smart(self, row: int, name: str) -> SmartLog | None:
        try:
            with entering(name, "NVME_IOCTL_ADMIN_CMD, SMART log"):
                log = nvme.parse_smart_page(self._read_smart_page(self._dev / name))
        except OSError as error:
            self.blind_words = self.blind_words or _blind_words(name, error)
            return None
        if log is not None:
            for signal, value_of in _SMART.items():
                put(self._block, signal, row, value_of(log))
        return log

    def _put_temperature(self, row: int, folder: Path, log: SmartLog | None) -> None:
        sensor = nvme.sensor_folder(folder)
        now: float | None = log.temperature_celsius if log else None
        if now is None:
            now = _celsius(sensor, "temp1_input")
        put(self._block, "nvme.temperature_celsius", row, now)
        critical = _celsius(sensor, "temp1_crit")
        put(self._block, "nvme.temperature_critical_celsius", row, critical)


def _controllers(sys: Path) -> dict[str, Path]:
    found = dict(list(nvme.controllers(sys).items())[:DEVICES_MAX])
    if not found:
        raise NoData(_ABSENT)
    return found


def _celsius(sensor: Path | None, file: str) -> float | None:
    value = read_unsigned(sensor / file) if sensor else None
    return value / 1000 if value is not None and value < 200_000 else None


def _blind_words(name: str, error: OSError) -> str:
    """Return what opens the log. The kernel lets only CAP_SYS_ADMIN send this command.

    A drive that refuses the page (a virtual one) is not hidden by anybody: nothing opens that.
    """
    if error.errno in (errno.ENOENT, errno.ENXIO):
        return (
            f"SMART log of {name}: there is no /dev/{name} here; open it with PrivateDevices=no in the "
            f"agent's unit, or give the container --device=/dev/{name}"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"SMART log of {name}: {error.strerror}; "
            "open it with AmbientCapabilities=CAP_SYS_ADMIN CAP_DAC_READ_SEARCH "
            "and DeviceAllow=char-nvme r in the agent's unit"
        )
    return ""
