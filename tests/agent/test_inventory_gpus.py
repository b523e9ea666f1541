"""The inventory of GPUs, MIG devices and the far ends of links."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent import inventory
from gangline.agent.hardware.files import Roots
from gangline.agent.inventory.gpu_platform import fabric, platform, text_or_hex
from gangline.agent.inventory.gpus import cuda_version
from tests.fake_nvml.parts_scenario import (
    host_lines,
    mig_device,
    with_fabric,
    with_inventory,
    with_links,
    with_mig,
)
from tests.fake_nvml.scenario import Gpu, Scenario, gpus


def read(
    devices: list[Gpu], library: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> inventory.Inventory:
    Scenario(folder / "scenario", devices, host=host_lines(devices))
    monkeypatch.setenv("GANGLINE_FAKE_NVML", str(folder / "scenario"))
    return inventory.read(Roots(folder / "sys", folder / "proc", library))


def of_kind(found: inventory.Inventory, kind: str) -> dict[str, dict[str, str]]:
    return {d.key: dict(d.attributes) for d in found.devices if d.kind == kind}


def test_unknown_sizes(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inventory had a GPU of 18 exabytes: NVML's all ones for "not available"."""
    gpu = gpus(1)[0]
    gpu.values["memory_total"] = 2**64 - 1
    attributes = of_kind(read([gpu], library, tmp_path, monkeypatch), "gpu")[gpu.uuid]
    assert "memory_bytes" not in attributes and attributes["name"]


def test_gpu_attributes(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs of one gang had different VBIOSes; this was invisible without a shell on each host."""
    gpu = with_inventory(with_fabric(with_links(gpus(1)[0], 18)))
    listed = read([gpu], library, tmp_path, monkeypatch)
    assert listed.reason == ""
    attributes = of_kind(listed, "gpu")[gpu.uuid]
    assert (
        attributes.items()
        >= {
            "name": "NVIDIA H100 80GB HBM3",
            "pci_address": "0000:19:00.0",
            "board_part_number": "692-2G520-0200-000",
            "board_id": "6400",
            "architecture": "Hopper",
            "compute_capability": "9.0",
            "cuda_cores": "16896",
            "memory_bytes": "85520809984",
            "memory_bus_bits": "5120",
            "nvlink_count": "18",
            "vbios": "96.00.74.00.01",
            "inforom_image": "G520.0200.00.05",
            "inforom_oem": "2.1",
            "inforom_ecc": "7.16",
            "module_id": "4",
            "driver": "590.48.01",
            "cuda_driver": "12.9",
            "gsp_mode": "1",
            "gsp_firmware": "590.48.01",
            "ecc_mode": "1",
            "persistence_mode": "1",
            "minor_number": "2",
            "numa_node": "1",
            "confidential_computing": "0",
            "fabric_cluster": "6c3f0d1a-2b4c-4d5e-8f90-112233445566",
            "fabric_clique": "1",
            "chassis_serial": "1820325191305",
            "slot": "24",
            "tray": "13",
            "host_index": "1",
            "peer_type": "switch",
            "platform_guid": "0102030405060708",
        }.items()
    )
    assert "sm_count" not in attributes  # NVML has it only for MIG devices: it is not guessed
    assert attributes["nvswitch_errors"].startswith("no-data: ")


@pytest.mark.parametrize("driver", ["535.183.01", "580.159.04", "590.36.01", "590.48.01"])
def test_every_driver_describes_its_gpus(
    driver: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An H200 had neither model nor serial: NO_ATTACH hides all GPUs before 590.37."""
    devices = [with_inventory(gpu) for gpu in gpus(2)]
    Scenario(tmp_path / "scenario", devices, host=f"driver {driver}\n{host_lines(devices)}")
    monkeypatch.setenv("GANGLINE_FAKE_NVML", str(tmp_path / "scenario"))
    listed = of_kind(inventory.read(Roots(tmp_path / "sys", tmp_path / "proc", library)), "gpu")
    assert {key: gpu["serial"] for key, gpu in listed.items()} == {
        gpu.uuid: gpu.serial for gpu in devices
    }


def test_far_ends_of_links(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A faulty link is the GPU's, the cable's or the switch's: the far end must be known."""
    gpu = with_links(gpus(1)[0], 3)
    gpu.lines += ["scoped 2 146 uint 33", "error nvmlDeviceGetNvLinkState 0"]
    links = of_kind(read([gpu], library, tmp_path, monkeypatch), "nvlink")
    assert list(links) == [f"{gpu.uuid}/link{i}" for i in range(3)]
    assert links[f"{gpu.uuid}/link2"] == {
        "gpu": gpu.uuid,
        "active": "1",
        "remote_kind": "switch",
        "remote_pci_address": "0000:c1:00.0",
        "remote_link": "33",
    }


def test_gpu_of_mig(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A MIG UUID alone does not identify the board."""
    gpu = with_mig(gpus(1)[0])
    listed = of_kind(read([gpu, mig_device(0, 1)], library, tmp_path, monkeypatch), "mig")
    assert (
        listed["MIG-00000000-0001-0009-0000-000000000000"].items()
        >= {
            "gpu": gpu.uuid,
            "gpu_instance": "1",
            "compute_instance": "0",
            "sm_count": "60",
            "memory_bytes": "42000000000",
        }.items()
    )


def test_a_silent_gpu(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A corrupted InfoROM removed the whole host's inventory."""
    devices = [with_inventory(gpu) for gpu in gpus(3)]
    devices[0].lines.append("error nvmlDeviceGetInforomImageVersion 14")
    devices[1].lines.append("error * 999")
    listed = of_kind(read(devices, library, tmp_path, monkeypatch), "gpu")
    assert set(listed) == {devices[0].uuid, devices[2].uuid}
    assert set(listed[devices[2].uuid]) - set(listed[devices[0].uuid]) == {"inforom_image"}


def test_garbage_counts(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four thousand million links are not plausible."""
    gpu = with_mig(with_links(gpus(1)[0], 18))
    gpu.fields[91] = ("uint", 4_294_967_294)
    gpu.values["mig_devices_max"] = 4_294_967_294
    listed = read([gpu, mig_device(0, 1)], library, tmp_path, monkeypatch)
    assert len(of_kind(listed, "nvlink")) == 64
    assert len(of_kind(listed, "mig")) == 1


@pytest.mark.parametrize(
    ("number", "text"), [(12090, "12.9"), (13010, "13.1"), (11080, "11.8"), (12000, "12.0")]
)
def test_cuda_versions(number: int, text: str) -> None:
    """12090 is not a readable version."""
    assert cuda_version(number) == text


def test_the_older_layout_has_a_rack_instead_of_a_chassis() -> None:
    """Version 1 has a GUID of 13 bytes that is a serial number only on some racks."""
    data = bytes(4) + bytes(16) + b"\xde\xad\xbe\xef" + bytes(12) + bytes([1, 2, 3, 0, 5])
    assert platform(data, 1) == {
        "rack_guid": "deadbeef",
        "slot": "1",
        "tray": "2",
        "host_index": "3",
        "peer_type": "direct",
        "module_id": "5",
    }


@given(st.binary(max_size=80), st.integers(0, 4))
def test_any_platform_bytes_are_text(data: bytes, version: int) -> None:
    """Firmware writes anything into sixteen bytes; an inventory is JSON."""
    attributes = platform(data, version)
    assert all(value and value.isprintable() and value.isascii() for value in attributes.values())
    assert (not attributes) == (len(data) < 41 or version not in (1, 2))


@given(st.binary(max_size=32))
def test_serials_are_told_apart(data: bytes) -> None:
    """Two racks with GUIDs that are not text must not become one rack of question marks."""
    attributes = text_or_hex(data)
    raw = data.rstrip(b"\0")
    assert attributes in (raw.hex(), raw.decode("ascii", errors="replace").strip())


@given(st.binary(max_size=20), st.integers(0, 2**32 - 1), st.integers(0, 255))
def test_a_fabric_is_told_when_it_is_one(cluster: bytes, clique: int, state: int) -> None:
    """Cluster and clique of an unfinished registration are meaningless."""
    attributes = fabric(cluster, clique, state)
    assert bool(attributes) == (state == 3 and len(cluster) == 16)
    assert ("fabric_cluster" in attributes) == (bool(attributes) and any(cluster))
