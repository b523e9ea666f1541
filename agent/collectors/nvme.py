"""NVMe controllers: state from sysfs, wear and errors from the drive itself."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path

from ...contract.block import Block
from ..collector import Collector, ExcludingCollector, NoData, driver_call
from ..hardware import nvme
from ..hardware.files import FileReader, Roots, read_unsigned
from ..hardware.nvme import SmartLog
from .block_writer import block_of, put, row_writer
from .counter_files import DEVICES_MAX
from .file_cache import FileCache

_NO_CONTROLLER = "no NVMe controller in /sys/class/nvme"
#: In the order of `_state_of`.
_CONTROLLER = ("nvme.controller_state", "nvme.namespaces_count", "nvme.queues_count")
#: Signals of the SMART log, and their attributes in it.
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


class NvmeControllers(Collector):
    """State, namespaces and queues of each controller from sysfs; the drive gets no command."""

    name = "nvme_10s"

    def __init__(self, roots: Roots) -> None:
        self._sys = roots.sys
        self._controllers = FileCache(self._compute)
        self._block = Block("nvme_10s", ())

    def collect(self) -> Sequence[Block]:
        """Return the block. Raises NoData without a controller."""
        is_new = self._controllers.refresh()
        if not self._controllers.value:
            raise NoData(_NO_CONTROLLER)
        if is_new:
            self._block = block_of(self._block, self._controllers.value)
            writer = row_writer(self._block, _CONTROLLER)
            for row, values in enumerate(self._controllers.value.values()):
                writer.put(row, values)
        return (self._block,)

    def _compute(self, files: FileReader) -> dict[str, tuple[int | None, ...]]:
        folders = list(nvme.nvme_controllers(self._sys, files).items())[:DEVICES_MAX]
        return {name: _state_of(folder, files) for name, folder in folders}


def _state_of(folder: Path, files: FileReader) -> tuple[int | None, ...]:
    state = nvme.parse_nvme_state(files.text(folder / "state"))
    spaces = nvme.nvme_namespaces(folder, files)
    return (
        state,
        len(spaces) if state is not None else None,
        files.unsigned(folder / "queue_count"),
    )


class NvmeSmart(ExcludingCollector):
    """Temperature, wear, errors and identity of each live controller, from sensor and SMART log.

    Both read the drive. The log needs privileges: without them only the temperature is present, and
    `access_error` names the missing privilege.
    """

    name = "nvme_60s"
    enters_driver = True

    def __init__(
        self, roots: Roots, read_smart_page: Callable[[Path], bytes] = nvme.read_smart_page
    ) -> None:
        self._sys, self._dev = roots.sys, roots.dev
        self._read_smart_page = read_smart_page
        self._block = Block("nvme_60s", ())

    def collect(self) -> Sequence[Block]:
        """Return the block; only live controllers have values.

        Raises NoData without a controller.
        """
        folders = _controllers(self._sys)
        self._block = block_of(self._block, folders)
        self._block.clear()
        self.access_error = ""
        for row, (name, folder) in enumerate(folders.items()):
            if not self.is_excluded(name) and nvme.is_awake(folder):
                put(self._block, "nvme.counter_epoch_count", row, nvme.nvme_identity(folder))
                log = self._put_smart(row, name)
                with driver_call(name, "read temp1_input"):
                    self._put_temperature(row, folder, log)
        return (self._block,)

    def _put_smart(self, row: int, name: str) -> SmartLog | None:
        try:
            with driver_call(name, "NVME_IOCTL_ADMIN_CMD, SMART log"):
                log = nvme.parse_smart_page(self._read_smart_page(self._dev / name))
        except OSError as error:
            self.access_error = self.access_error or _smart_access_error(name, error)
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
    folders = dict(list(nvme.nvme_controllers(sys).items())[:DEVICES_MAX])
    if not folders:
        raise NoData(_NO_CONTROLLER)
    return folders


def _celsius(sensor: Path | None, file: str) -> float | None:
    value = read_unsigned(sensor / file) if sensor else None
    return value / 1000 if value is not None and value < 200_000 else None


def _smart_access_error(name: str, error: OSError) -> str:
    """Return the remedy for a hidden log: the kernel requires CAP_SYS_ADMIN for this command.

    A (virtual) drive that refuses the page itself has no remedy: "".
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
