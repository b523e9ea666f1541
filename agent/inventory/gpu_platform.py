"""Position of a GPU in its rack and NVLink fabric: bytes from NVML as text. No I/O.

Layouts: nvmlPlatformInfo_v1_t, nvmlPlatformInfo_v2_t and nvmlGpuFabricInfo_v2_t of nvml.h, NVML
12.9.
"""

from __future__ import annotations

import uuid

_VERSION_BYTES, _GUID_BYTES = 4, 16


_PLATFORM_BYTES = _VERSION_BYTES + 2 * _GUID_BYTES + 5
#: Names of the last five bytes, by version.
_LOCATION_FIELDS = {
    1: ("slot", "tray", "host_index", "peer_type", "module_id"),
    2: ("slot", "tray", "host_index", "peer_type", "module_id"),
}
_SECOND_GUID = {1: "rack_guid", 2: "chassis_serial"}
_PEER_TYPES = {0: "direct", 1: "switch"}
#: Switches of a fabric of several hosts (NVL72) log on the switch trays, not on the compute trays.
SWITCH_ERRORS = (
    "no-data: they are in the logs of the NVLink switch trays, not in this host's kernel log"
)


def platform(data: bytes, version: int) -> dict[str, str]:
    """Return the values of an nvmlPlatformInfo_t of *version*; {} for too few bytes.

    GUIDs and serial numbers of zeros are unknown, and are left out.
    """
    if len(data) < _PLATFORM_BYTES or version not in _LOCATION_FIELDS:
        return {}
    first = _VERSION_BYTES + _GUID_BYTES
    guid, second = data[_VERSION_BYTES:first], data[first : first + _GUID_BYTES]
    numbers = data[first + _GUID_BYTES : _PLATFORM_BYTES]
    attributes = {
        "platform_guid": guid.rstrip(b"\0").hex(),
        _SECOND_GUID[version]: text_or_hex(second),
    }
    attributes |= {
        name: str(value) for name, value in zip(_LOCATION_FIELDS[version], numbers, strict=True)
    }
    attributes["peer_type"] = _PEER_TYPES.get(numbers[3], attributes["peer_type"])
    return {name: value for name, value in attributes.items() if value}


def text_or_hex(data: bytes) -> str:
    """Return a serial number without its padding zeros: as text if printable, else as hex."""
    raw = data.rstrip(b"\0")
    text = raw.decode("ascii", errors="replace")
    return text.strip() if text.isprintable() and "\ufffd" not in text else raw.hex()


def fabric(cluster: bytes, clique: int, state: int) -> dict[str, str]:
    """Return cluster and clique once the registration is completed (state 3).

    Zeros as cluster mean the host's own NVSwitches; any other cluster has switches outside of the
    host.
    """
    if state != 3 or len(cluster) != _GUID_BYTES:
        return {}
    attributes = {"fabric_clique": str(clique)}
    if any(cluster):
        attributes |= {
            "fabric_cluster": str(uuid.UUID(bytes=cluster)),
            "nvswitch_errors": SWITCH_ERRORS,
        }
    return attributes
