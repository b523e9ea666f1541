"""Where a GPU stands in its rack and its NVLink fabric: bytes that NVML gives, as text. Pure.

Layouts: nvmlPlatformInfo_v1_t, nvmlPlatformInfo_v2_t and nvmlGpuFabricInfo_v2_t of nvml.h, NVML 12.9.
"""

from __future__ import annotations

import uuid

_VERSION_BYTES, _GUID_BYTES = 4, 16
_PLATFORM_BYTES = _VERSION_BYTES + 2 * _GUID_BYTES + 5
#: What the last five bytes are called, by version.
_PLACES = {
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
    """Return what an nvmlPlatformInfo_t of *version* says; what is all zeros was not told. Nothing when it is short."""
    if len(data) < _PLATFORM_BYTES or version not in _PLACES:
        return {}
    first = _VERSION_BYTES + _GUID_BYTES
    guid, second = data[_VERSION_BYTES:first], data[first : first + _GUID_BYTES]
    places = data[first + _GUID_BYTES : _PLATFORM_BYTES]
    said = {"platform_guid": guid.rstrip(b"\0").hex(), _SECOND_GUID[version]: text_or_hex(second)}
    said |= {name: str(value) for name, value in zip(_PLACES[version], places, strict=True)}
    said["peer_type"] = _PEER_TYPES.get(places[3], said["peer_type"])
    return {name: value for name, value in said.items() if value}


def text_or_hex(data: bytes) -> str:
    """Return a serial number as the text that it is; in hexadecimal when it is none. Zeros at its end are padding."""
    raw = data.rstrip(b"\0")
    text = raw.decode("ascii", errors="replace")
    return text.strip() if text.isprintable() and "\ufffd" not in text else raw.hex()


def fabric(cluster: bytes, clique: int, state: int) -> dict[str, str]:
    """Return cluster and clique once the registration is completed (state 3). A cluster of zeros is one host's own
    NVSwitches; any other has switches outside of it."""
    if state != 3 or len(cluster) != _GUID_BYTES:
        return {}
    said = {"fabric_clique": str(clique)}
    if any(cluster):
        said |= {"fabric_cluster": str(uuid.UUID(bytes=cluster)), "nvswitch_errors": SWITCH_ERRORS}
    return said
