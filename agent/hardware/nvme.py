"""NVMe controllers: sysfs, and the SMART log page by the admin ioctl.

NVMe. Sources: drivers/nvme/host/sysfs.c (states, files), include/uapi/linux/nvme_ioctl.h (the
ioctl), NVM Express Base Specification 2.0, 5.16.1.3 (log page 02h, SMART / Health Information).
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import zlib
from array import array
from dataclasses import dataclass
from pathlib import Path

from .files import FILE_READER, FileReader, names_in, read_text
from .pci import is_asleep

#: Codes of `nvme.controller_state`, in the order of the kernel's enum nvme_ctrl_state. Only kernels
#: before 5.4 and 4.17 have `only-admin` and `reconnecting`.
NVME_STATES = {
    "new": 0,
    "live": 1,
    "resetting": 2,
    "connecting": 3,
    "reconnecting": 3,
    "deleting": 4,
    "deleting (no IO)": 5,
    "dead": 6,
    "only-admin": 7,
}
SMART_BYTES = 512
_CONTROLLER = re.compile(r"nvme\d+$")
_NAMESPACE = re.compile(r"nvme\d+(c\d+)?n\d+$")
#: _IOWR('N', 0x41, struct nvme_passthru_cmd), which has 72 bytes.
_ADMIN_COMMAND = 0xC0484E41
_PASSTHROUGH = struct.Struct("<BBHIIIQQII6III")
_GET_LOG_PAGE = 0x02
_ALL_NAMESPACES = 0xFFFFFFFF
#: Log page 02h, and its number of 4-byte words minus one.
_SMART_PAGE = 0x02 | (SMART_BYTES // 4 - 1) << 16
#: The page up to the last field that is read: warning, temperature, spare, threshold, used; ten
#: counters of 128 bits; minutes above both temperatures; eight sensors; transitions of both thermal
#: levels.
_SMART = struct.Struct("<BHBBB26x" + "16s" * 10 + "II16x" + "II")
_DATA_UNIT_BYTES = 512_000  # "thousands of units of 512 bytes"
_KELVIN = 273


@dataclass(frozen=True, slots=True)
class SmartLog:
    """Log page 02h of a controller. None: not reported, or over 64 bits."""

    critical_warning: int
    temperature_celsius: int | None
    spare_ratio: float | None
    spare_threshold_ratio: float | None
    used_ratio: float  # used share of the endurance; may exceed 1, at most 2.55
    read_bytes: int | None
    written_bytes: int | None
    busy_seconds: int | None
    power_cycles: int | None
    power_on_seconds: int | None
    unsafe_shutdowns: int | None
    media_errors: int | None
    error_log_entries: int | None
    warning_temperature_seconds: int | None
    critical_temperature_seconds: int | None
    light_throttles: int | None
    heavy_throttles: int | None


def nvme_controllers(sys: Path, files: FileReader = FILE_READER) -> dict[str, Path]:
    """Return the folder of each controller in class/nvme, by name."""
    folder = sys / "class/nvme"
    return {name: folder / name for name in files.names(folder) if _CONTROLLER.match(name)}


def nvme_identity(controller: Path) -> int | None:
    """Return 32 bits that differ for another drive of the same name; None without a serial."""
    serial = read_text(controller / "serial")
    model = read_text(controller / "model")
    return zlib.crc32(f"{serial} {model}".encode()) if serial else None


def parse_nvme_state(text: str | None) -> int | None:
    """Return the code of a controller's state; None for an unknown word."""
    return NVME_STATES.get(text) if text else None


def nvme_namespaces(controller: Path, files: FileReader = FILE_READER) -> list[str]:
    """Return the names of the controller's namespaces, or of its paths to them."""
    return [name for name in files.names(controller) if _NAMESPACE.match(name)]


def sensor_folder(controller: Path) -> Path | None:
    """Return the controller's hwmon folder; before Linux 5.12 it is below the PCI device."""
    for parent in (controller, controller / "device/hwmon"):
        for name in names_in(parent):
            if name.startswith("hwmon") and read_text(parent / name / "name") == "nvme":
                return parent / name
    return None


def is_awake(controller: Path) -> bool:
    """Return whether to send admin commands: the controller is live and not suspended.

    A resetting controller would block the caller, and a suspended one would be woken.
    """
    return read_text(controller / "state") == "live" and not is_asleep(controller / "device")


def read_smart_page(device: Path) -> bytes:
    """Return log page 02h from a controller's character device.

    Raises OSError; may wait for the drive. No other command is ever sent, and this one changes
    nothing. It has the driver's own time limit (timeout 0): a shorter one would make the driver
    reset a slow drive. The GIL is free meanwhile: fcntl.ioctl releases it for arguments of this
    size.
    """
    page = array("B", bytes(SMART_BYTES))
    command = bytearray(
        _PASSTHROUGH.pack(
            *(_GET_LOG_PAGE, 0, 0, _ALL_NAMESPACES, 0, 0, 0, page.buffer_info()[0], 0, SMART_BYTES),
            *(_SMART_PAGE, 0, 0, 0, 0, 0, 0, 0),
        )
    )
    descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = fcntl.ioctl(descriptor, _ADMIN_COMMAND, command)
    finally:
        os.close(descriptor)
    if status:  # positive: the NVMe status of a command that the controller rejected
        raise OSError(f"{device}: the controller rejects log page 02h, NVMe status {status:#x}")
    return page.tobytes()


def parse_smart_page(page: bytes) -> SmartLog | None:
    """Return a page's log.

    None unless the page has 512 bytes, and for all ones (a device off the bus).
    """
    if len(page) != SMART_BYTES or page == b"\xff" * SMART_BYTES:
        return None
    warning, kelvin, spare, threshold, used, *rest = _SMART.unpack_from(page)
    counters = [_counter(raw) for raw in rest[:10]]
    read, written, _, _, busy_minutes, cycles, hours, unsafe, media, errors = counters
    warm_minutes, hot_minutes, light, heavy = (n if n < 0xFFFFFFFF else None for n in rest[10:])
    # Virtual drives report 0 for both, which does not mean worn out
    reports_spare = bool(spare or threshold)
    return SmartLog(
        critical_warning=warning,
        temperature_celsius=_celsius(kelvin),
        spare_ratio=_percent(spare) if reports_spare else None,
        spare_threshold_ratio=_percent(threshold) if reports_spare else None,
        used_ratio=used / 100,
        read_bytes=_times(read, _DATA_UNIT_BYTES),
        written_bytes=_times(written, _DATA_UNIT_BYTES),
        busy_seconds=_times(busy_minutes, 60),
        power_cycles=cycles,
        power_on_seconds=_times(hours, 3600),
        unsafe_shutdowns=unsafe,
        media_errors=media,
        error_log_entries=errors,
        warning_temperature_seconds=_times(warm_minutes, 60),
        critical_temperature_seconds=_times(hot_minutes, 60),
        light_throttles=light,
        heavy_throttles=heavy,
    )


def _counter(raw: bytes) -> int | None:
    value = int.from_bytes(raw, "little")
    return value if value < (1 << 64) - 1 else None


def _times(value: int | None, factor: int) -> int | None:
    return None if value is None else _counter((value * factor).to_bytes(16, "little"))


def _celsius(kelvin: int) -> int | None:
    """Return degrees Celsius; None for the 0 K or 65535 K of virtual and dead drives."""
    return kelvin - _KELVIN if 200 <= kelvin <= 500 else None


def _percent(value: int) -> float | None:
    return value / 100 if value <= 100 else None
