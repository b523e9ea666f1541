# pyright: reportPossiblyUnboundVariable=false
"""AMD GPUs in the tables of NVIDIA GPUs: hosts that are folders, changed and broken."""

from __future__ import annotations

import gc
import os
import shutil
import struct
import weakref
from pathlib import Path

import pytest

from gangline.agent.collector import CollectOutcome, run_collector
from gangline.agent.collectors import COLLECTORS
from gangline.agent.collectors.amdgpu_metrics import POWER_BRAKE, POWER_CAP, SOFTWARE_THERMAL
from gangline.agent.hardware.amdgpu import (
    BAD_PAGES_BYTES_MAX,
    BadPages,
    amd_gpus,
    parse_bad_pages,
    parse_levels_max,
)
from gangline.agent.hardware.kfd import parse_properties, pci_address
from tests.agent.amd_host import NAMES, SECOND_NS, AmdHost
from tests.amd_metrics import pack
from tests.hosts.reading import rows_of

CYCLES, STAMP = 5_000_000, 86_400_000_000


def held(
    host: AmdHost, second: float, gpu: int = 0, revision: str = "1.8", **residencies: int
) -> None:
    """Set a GPU's firmware counters to *second* seconds: a cycle is a millisecond, a stamp 10 ns."""
    host.set(
        gpu, revision, accumulation_counter=CYCLES + round(1000 * second),
        firmware_timestamp=STAMP + round(1e8 * second), **residencies,
    )  # fmt: skip


def gpu_second(host: AmdHost, gpu: int = 0) -> dict[str, float | int | None]:
    return host.rows("amdgpu_1s", "gpu_1s")[host.key(gpu)]


@pytest.fixture
def host(tmp_path: Path) -> AmdHost:
    return AmdHost(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_a_host_without_amd_gpus_is_no_data(name: str, tmp_path: Path) -> None:
    """Every NVIDIA host also runs these collectors, and must not be reported as broken."""
    turn = AmdHost(tmp_path, "plain-vm").turn(name)
    assert turn.outcome is CollectOutcome.NO_DATA and "no AMD GPU" in turn.message


def test_collectors_that_are_dropped_take_their_gpus_with_them(tmp_path: Path) -> None:
    """A reference cycle kept a dropped collector: its outdated list of GPUs was used again."""
    host = AmdHost(tmp_path, "mi300x-cpx")
    for name in NAMES:
        assert host.turn(name).outcome is CollectOutcome.OK
    session = weakref.ref(host.session)
    gc.disable()
    try:
        host.collectors.clear()
        del host.session
        assert session() is None
    finally:
        gc.enable()


def test_what_holds_a_gpu_down_is_time(host: AmdHost) -> None:
    """Residencies count firmware cycles: as nanoseconds they were a thousand times off."""
    host.turn("amdgpu_1s")
    held(host, 0, ppt_residency_acc=0, prochot_residency_acc=7, socket_thm_residency_acc=0,
         hbm_thm_residency_acc=0, vr_thm_residency_acc=0)  # fmt: skip
    host.turn("amdgpu_1s")
    held(host, 2, ppt_residency_acc=500, prochot_residency_acc=7 + 1000, socket_thm_residency_acc=200,
         hbm_thm_residency_acc=300, vr_thm_residency_acc=1)  # fmt: skip
    row = gpu_second(host)
    assert row["violation_power_nanoseconds"] == 500_000_000
    assert row["violation_thermal_nanoseconds"] == 300_000_000  # the longest: they may overlap
    assert row["clock_event_reasons_flags"] == POWER_CAP | POWER_BRAKE | SOFTWARE_THERMAL
    changes = host.rows("amdgpu_1s", "gpu_1s_changes")[host.key(0)]
    assert changes["violation_hw_power_brake_nanoseconds"] == 1_000_000_000
    assert changes["violation_socket_thermal_nanoseconds"] == 200_000_000
    assert changes["violation_memory_thermal_nanoseconds"] == 300_000_000
    assert changes["violation_regulator_thermal_nanoseconds"] == 1_000_000


def test_a_reason_that_held_for_a_moment_is_none(host: AmdHost) -> None:
    """A power cap for 1 ms of each second is full load."""
    host.turn("amdgpu_1s")
    for second in range(3):
        held(host, second, ppt_residency_acc=second)
        row = gpu_second(host)
    assert row["clock_event_reasons_flags"] == 0 and row["violation_power_nanoseconds"] == 2_000_000


@pytest.mark.parametrize("revision", ["1.6", "1.7", "1.8"])
def test_counters_of_32_bits_begin_again(host: AmdHost, revision: str) -> None:
    """After 49 days of cycles a counter begins at 0: that is one second, not minus 49 days."""
    host.turn("amdgpu_1s")
    near = 2**32 - 500
    host.set(
        0, revision, accumulation_counter=near, firmware_timestamp=10**9, ppt_residency_acc=near
    )
    host.turn("amdgpu_1s")
    host.set(
        0, revision, accumulation_counter=500, firmware_timestamp=10**9 + 10**8, ppt_residency_acc=0
    )
    row = gpu_second(host)
    assert row["violation_power_nanoseconds"] == 500_000_000


def test_a_step_back_counts_nothing(host: AmdHost) -> None:
    """After a reset the GPU's counters began at 0; the earlier counts remain."""
    host.turn("amdgpu_1s")
    for second, cycles, ppt in ((0, 10**6, 0), (1, 10**6 + 1000, 900), (2, 50, 10), (3, 1050, 510)):
        host.set(
            0,
            accumulation_counter=cycles,
            firmware_timestamp=STAMP + second * 10**8,
            ppt_residency_acc=ppt,
        )
        row = gpu_second(host)
    assert row["violation_power_nanoseconds"] == 900_000_000 + 500_000_000


def test_the_same_table_twice_is_one(host: AmdHost) -> None:
    """The driver keeps a table for a while: read twice, the reason went off and on each second."""
    host.turn("amdgpu_1s")
    held(host, 0, ppt_residency_acc=0)
    host.turn("amdgpu_1s")
    held(host, 1, ppt_residency_acc=900)
    for _ in range(3):
        row = gpu_second(host)
        assert row["clock_event_reasons_flags"] == POWER_CAP
        assert row["violation_power_nanoseconds"] == 900_000_000


def test_the_status_word_of_an_mi250x(tmp_path: Path) -> None:
    """It has no residencies: the current reasons are bits with the same meaning on every part."""
    rows = AmdHost(tmp_path, "mi250x").rows("amdgpu_1s", "gpu_1s")
    flags = [row["clock_event_reasons_flags"] for row in rows.values()]
    assert flags == [0, 0, 0, SOFTWARE_THERMAL, 0, 0, POWER_CAP, 0]
    assert all("violation_power_nanoseconds" not in known(row) for row in rows.values())


def known(row: dict[str, float | int | None]) -> dict[str, float | int]:
    return {name: value for name, value in row.items() if value is not None}


def test_the_second_die_of_a_package_has_no_power_of_its_own(tmp_path: Path) -> None:
    """The firmware reports 0 W for it: half of the fleet drew nothing at full load."""
    host = AmdHost(tmp_path, "mi250x")
    rows = list(host.rows("amdgpu_1s", "gpu_1s").values())
    assert [row["power_watts"] for row in rows[:4]] == [470.0, None, 472.0, None]
    assert [row["energy_joules"] is None for row in rows[:4]] == [False, True, False, True]
    limits = [row["power_limit_watts"] for row in host.rows("amdgpu_10s", "gpu_10s").values()]
    assert limits[:2] == [560.0, None]


def test_all_ones_and_absurd_numbers_are_missing(host: AmdHost) -> None:
    """A sensor that the part lacks reads as all ones: 65,535 W went into a job's energy."""
    host.turn("amdgpu_1s")
    host.set(0)
    row = known(gpu_second(host))
    assert (
        not {"power_watts", "sm_clock_hertz", "temperature_celsius", "energy_joules"} & row.keys()
    )
    host.set(0, curr_socket_power=60_000, average_gfx_activity=101, temperature_hotspot=0,
             current_gfxclk=[0, 65535, 2000, 1000])  # fmt: skip
    row = known(gpu_second(host))
    assert not {"power_watts", "utilization_ratio", "temperature_celsius"} & row.keys()
    assert row["sm_clock_hertz"] == 1.5e9  # of the dies with a clock


def test_a_revision_of_tomorrow_is_blind_and_costs_no_neighbour(host: AmdHost) -> None:
    """One GPU of a newer board: the others' readings continue, and a message names the remedy."""
    host.turn("amdgpu_1s")
    data = bytearray(pack("1.8", {"curr_socket_power": 500}))
    data[3] = 42
    host.write(3, "gpu_metrics", bytes(data))
    turn = host.turn("amdgpu_1s")
    assert turn.outcome is CollectOutcome.BLIND
    assert (
        "0000:65:00.0" in turn.message
        and "revision 1.42" in turn.message
        and "upgrade" in turn.message
    )
    rows = dict(rows_of(turn.blocks[0]))
    assert known(rows[host.key(3)] or {}).keys().isdisjoint({"power_watts", "sm_clock_hertz"})
    assert (rows[host.key(2)] or {})["power_watts"]
    host.set(3, curr_socket_power=500)
    assert host.turn("amdgpu_1s").outcome is CollectOutcome.OK


@pytest.mark.parametrize(
    "data", [b"", b"\x01", pack("1.8", {})[:100], os.urandom(4096), b"\xff" * 9000]
)
def test_a_broken_table_never_raises(host: AmdHost, data: bytes) -> None:
    """A short read during a GPU reset, and garbage: blind, with a message."""
    for name in ("amdgpu_1s", "amdgpu_10s", "xgmi_10s"):
        host.turn(name)
        host.write(0, "gpu_metrics", data)
        turn = host.turn(name)
        assert turn.outcome is CollectOutcome.BLIND and turn.message.startswith(
            "GPU 0000:05:00.0: "
        ), turn
        host.set(0)
        assert host.turn(name).outcome is CollectOutcome.OK


def test_a_table_that_changes_its_layout_is_planned_again(host: AmdHost) -> None:
    """The driver was upgraded under the agent: read by the old plan, a temperature was a power."""
    for revision, name in (
        ("1.8", "curr_socket_power"),
        ("1.9", "curr_socket_power"),
        ("1.3", "average_socket_power"),
    ):
        host.set(0, revision, **{name: 321, "temperature_hotspot": 44})
        row = gpu_second(host)
        assert (row["power_watts"], row["temperature_celsius"]) == (321.0, 44.0), revision


def test_a_file_that_may_not_be_read_says_so(host: AmdHost) -> None:
    """EACCES of one file is blind, not an error; a folder in its place is not retried endlessly."""
    host.turn("amdgpu_1s")
    path = host.folder(0) / "gpu_metrics"
    path.unlink()
    path.mkdir()
    turn = host.turn("amdgpu_1s")
    assert turn.outcome is CollectOutcome.OK or "Is a directory" in turn.message
    host.collector("amdgpu_1s").close()
    turn = host.turn("amdgpu_1s")
    assert turn.outcome is CollectOutcome.BLIND and "Is a directory" in turn.message


def test_a_gpu_off_the_bus_is_lost_once_and_back_once(host: AmdHost) -> None:
    """Its configuration space reads as all ones; a driver that is only busy is different."""
    host.turn("amdgpu_1s")
    path = host.folder(1) / "gpu_metrics"
    path.unlink()
    host.collector("amdgpu_1s").close()
    host.write(1, "config", b"\x02\x10\xa1\x74")
    row = gpu_second(host, 1)
    assert row["lost_state"] == 0 and not host.published.events
    host.write(1, "config", b"\xff" * 64)
    for _ in range(3):
        row = gpu_second(host, 1)
    assert row["lost_state"] == 1 and row["calls_failed_errors"] == 4
    (event,) = host.published.events
    assert (event.name, event.device, event.attributes["state"]) == (
        "gpu.lost",
        "0000:26:00.0",
        "lost",
    )
    host.set(1, curr_socket_power=600)
    row = gpu_second(host, 1)
    assert row["lost_state"] == 0 and row["counter_epoch_count"] == 1
    assert [e.attributes["state"] for e in host.published.events] == ["lost", "back"]


def test_a_reset_is_another_epoch(host: AmdHost) -> None:
    """Its energy began at 0: counts before and after are not subtracted."""
    for energy in (2**30, 2**31, 2**16):
        host.set(0, energy_accumulator=energy)
        row = gpu_second(host)
    assert row["counter_epoch_count"] == 1 and row["energy_joules"] == 1.0
    assert any("was reset" in reason for reason in host.published.reasons)


def test_a_gpu_that_goes_and_one_that_comes(host: AmdHost) -> None:
    """Its row disappears at the next listing, and an inventory is requested."""
    assert len(host.rows("amdgpu_1s", "gpu_1s")) == 8
    card = host.host.roots.sys / "class/drm/card8/device"
    target = os.readlink(card)
    shutil.rmtree(card.parent)
    assert len(host.rows("amdgpu_1s", "gpu_1s", 11)) == 7
    card.parent.mkdir()
    card.symlink_to(target)
    assert len(host.rows("amdgpu_1s", "gpu_1s", 11)) == 8
    assert [r.split()[2:4] for r in host.published.reasons] == [["is", "gone"], ["appeared", "at"]]


def test_a_host_without_gpus_is_checked_each_ten_seconds(host: AmdHost, tmp_path: Path) -> None:
    """A driver that is loaded late is seen within ten seconds, by all lanes of a second."""
    drm, away = host.host.roots.sys / "class/drm", tmp_path / "away"
    drm.rename(away)
    turns: dict[str, list[int]] = {"amdgpu_1s": [], "kfd_process_1s": []}
    for second in range(25):
        if second == 12:
            away.rename(drm)
        host.clock.now_ns += SECOND_NS
        for name, seconds in turns.items():
            if not host.collector(name).skip():
                host.turn(name, 0.0)
                seconds.append(second)
    assert [*turns.values()] == [[0, 10, 20, 21, 22, 23, 24]] * 2
    assert host.rows("amdgpu_1s", "gpu_1s")


def test_a_gpu_that_is_excluded_is_not_touched(host: AmdHost) -> None:
    """A GPU hangs in a reset, and hangs each reader: its row remains, without values."""
    for name in ("amdgpu_1s", "amdgpu_10s", "amdgpu_60s", "xgmi_10s", "ras_10s"):
        host.turn(name)
        host.collector(name).exclude(frozenset({"0000:05:00.0"}))
    (host.folder(0) / "gpu_metrics").unlink()
    os.mkfifo(host.folder(0) / "gpu_metrics")
    row = known(gpu_second(host))
    assert "power_watts" not in row and "memory_used_bytes" not in row
    assert gpu_second(host, 1)["power_watts"]
    assert "power_limit_watts" not in known(host.rows("amdgpu_10s", "gpu_10s")[host.key(0)])
    host.collector("amdgpu_1s").exclude(frozenset())
    (host.folder(0) / "gpu_metrics").unlink()
    host.set(0, curr_socket_power=600)
    assert gpu_second(host)["power_watts"] == 600.0


def test_ras_counts_are_asked_every_ten_seconds_and_one_gpu_a_turn(host: AmdHost) -> None:
    """Each reading takes firmware time of the GPU: eight GPUs at once blocked the lane for the sum."""
    host.turn("amdgpu_1s")
    assert sum(host.session.ras.reads) == 1
    for _ in range(7):
        host.turn("amdgpu_1s")
    assert host.session.ras.reads == [1] * 8
    host.write(0, "ras/umc_err_count", "ue: 2\nce: 40\nde: 1\n")
    for _ in range(4):
        rows = host.rows("amdgpu_1s", "gpu_1s_changes")
    assert rows[host.key(0)]["ecc_uncorrected_volatile_errors"] == 2
    assert rows[host.key(0)]["ecc_corrected_volatile_errors"] == 40
    ras = host.rows("ras_10s")[f"{host.key(0)}/umc"]
    assert ras == {"corrected_errors": 40, "uncorrected_errors": 2, "deferred_errors": 1}
    device = host.rows("amdgpu_10s", "gpu_10s_changes")[host.key(0)]
    assert device["ecc_uncorrected_volatile_device_errors"] == 2


def test_errors_of_links_are_not_lost_data(host: AmdHost) -> None:
    """A noisy XGMI link was reported as memory that lost data."""
    host.turn("ras_10s")
    rows = host.rows("amdgpu_1s", "gpu_1s_changes")
    assert rows[host.key(5)]["ecc_corrected_volatile_errors"] == 0  # despite 3 on its links
    assert host.rows("xgmi_10s", "nvlink_10s_changes")[f"{host.key(5)}/xgmi"]["crc_errors"] == 3


def test_a_sleeping_gpu_is_not_woken_for_its_errors(tmp_path: Path) -> None:
    """On boards that may sleep each look at umc_err_count added 1,048,560 errors that never were."""
    host = AmdHost(tmp_path, "mi250x")
    for gpu in amd_gpus(host.host.roots.sys):
        (Path(gpu.folder) / "power/runtime_status").write_text("suspended\n")
    host.turn("ras_10s")
    assert host.session.ras.reads == [0] * 8
    assert not any(known(row) for row in host.rows("ras_10s").values())


def test_bad_pages_are_retired_pages(host: AmdHost) -> None:
    """Two are out, and one waits for the driver to load again."""
    rows = host.rows("amdgpu_10s", "gpu_10s_changes")
    assert (
        rows[host.key(6)]["retired_uncorrected_pages"],
        rows[host.key(6)]["retirement_pending_state"],
    ) == (2, 1)
    assert (
        rows[host.key(0)]["retired_uncorrected_pages"],
        rows[host.key(0)]["retirement_pending_state"],
    ) == (0, 0)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"", BadPages(0, 0)),
        (b"0x1 : 0x1000 : R\n0x2 : 0x1000 : F\n", BadPages(1, 1)),
        (b"\0\0\0", BadPages(0, 0)),
        (b"0x1 : 0x1000 : X\nhello : R\n0x", BadPages(0, 0)),
        (b"0x00000001 : 0x00001000 : R\n" * 20_000, BadPages(20_000, 0, more=True)),
    ],
)
def test_lists_of_bad_pages(text: bytes, found: BadPages) -> None:
    assert parse_bad_pages(text[: BAD_PAGES_BYTES_MAX * 4]) == found


def test_the_link_to_the_host(host: AmdHost) -> None:
    """The GPU's own link ends in a switch on its package: the table has the outer link."""
    row = host.rows("amdgpu_10s", "gpu_10s")[host.key(4)]
    assert (row["pcie_width_lanes"], row["pcie_width_max_lanes"]) == (8.0, 16.0)
    assert (row["pcie_generation_number"], row["pcie_generation_max_number"]) == (5.0, 5.0)
    changes = host.rows("amdgpu_10s", "gpu_10s_changes")[host.key(4)]
    assert (changes["pcie_replays_count"], changes["pcie_naks_received_count"]) == (4, 1)


def test_replays_of_an_old_table_come_from_their_own_file(tmp_path: Path) -> None:
    """gpu_metrics 1.3 has no replays; the driver has them in a file of its own."""
    host = AmdHost(tmp_path, "mi250x")
    host.turn("amdgpu_10s")
    rows = host.rows("amdgpu_10s", "gpu_10s_changes")
    assert [row["pcie_replays_count"] for row in rows.values()][:3] == [0, 0, 40]


def test_partitions_are_told_as_instances(tmp_path: Path) -> None:
    """In CPX each of eight GPUs is eight: their memory, their compute units, what runs on each."""
    host = AmdHost(tmp_path, "mi300x-cpx")
    rows = host.rows("amdgpu_partition_10s", "mig_10s")
    assert len(rows) == 64
    assert rows[f"{host.key(0)}/xcp3"] == {
        **dict.fromkeys(rows[f"{host.key(0)}/xcp3"]), "memory_used_bytes": 18000007101.0, "sm_active_ratio": 0.5,
    }  # fmt: skip
    changes = host.rows("amdgpu_partition_10s", "mig_10s_changes")[f"{host.key(7)}/xcp7"]
    assert (changes["gpu_instance_number"], changes["multiprocessors_count"]) == (7, 38)
    assert host.rows("amdgpu_10s", "gpu_10s_changes")[host.key(0)]["mig_mode_state"] == 1
    assert "SPX" in AmdHost(tmp_path / "other").turn("amdgpu_partition_10s").message


def test_who_holds_a_partition(tmp_path: Path) -> None:
    """KFD lists every GPU for each process: one without memory and queue does not use the GPU."""
    host = AmdHost(tmp_path, "mi300x-cpx")
    assert set(host.rows("kfd_process_1s")) == {
        f"{host.key(0)}/gi0/7100",
        f"{host.key(0)}/gi3/7101",
    }
    shutil.rmtree(host.host.roots.sys / "class/kfd/kfd/proc/7100")
    assert set(host.rows("kfd_process_1s")) == {f"{host.key(0)}/gi3/7101"}
    folder = host.host.roots.sys / "class/kfd/kfd/proc/7102"
    folder.mkdir()
    (folder / "vram_1200").write_text("0\n")
    assert len(host.rows("kfd_process_1s")) == 1
    (folder / "queues/0").mkdir(parents=True)
    (folder / "queues/0/gpuid").write_text("1200\n")
    assert f"{host.key(2)}/gi0/7102" in host.rows("kfd_process_1s", seconds=11)
    shutil.rmtree(host.host.roots.sys / "class/kfd/kfd/proc")
    assert host.turn("kfd_process_1s").outcome is CollectOutcome.NO_DATA


def test_processes_are_counted_and_have_their_jobs(host: AmdHost) -> None:
    """The list goes to the collector that finds their jobs, like NVML's."""
    host.turn("kfd_process_1s")
    assert gpu_second(host)["processes_count"] == 1.0
    jobs = COLLECTORS["gpu_job_1s"](host.host.roots)
    for _ in range(2):
        host.turn("kfd_process_1s")
        turn = run_collector(jobs, host.clock)
    assert dict(rows_of(turn.blocks[0]))[host.key(0)] == {
        "processes_count": 1.0, "jobs_count": 1.0, "in_jobs_count": 1.0, "others_count": 0.0,
        "unknown_count": 0.0, "dead_count": 0.0, "dead_memory_bytes": 0.0,
    }  # fmt: skip


def test_xgmi_links(host: AmdHost) -> None:
    """An MI300X uses seven of eight links; the eighth reads as all ones and is not shown."""
    host.turn("xgmi_10s")
    host.host.pass_a_second()
    changes = host.rows("xgmi_10s", "nvlink_10s_changes")
    assert not known(changes[f"{host.key(5)}/link0"])
    assert changes[f"{host.key(5)}/link7"]["link_state"] == 0
    assert changes[f"{host.key(5)}/link1"]["speed_bytes_per_second"] == 64e9
    moved = host.rows("xgmi_10s", "nvlink_10s")[f"{host.key(5)}/link1"]
    assert moved["transmitted_data_bytes"] == (10**9 + 5 * 10**6) * 1024


@pytest.mark.parametrize(
    ("text", "hertz"),
    [
        ("S: 132Mhz *\n0: 500Mhz\n1: 2100Mhz", 2.1e9), ("0: 300Mhz", 3e8), ("", None), (None, None),
        ("0: 0Mhz", None), ("nonsense", None), ("0: 99999999Mhz", None),
    ],
)  # fmt: skip
def test_the_highest_level(text: str | None, hertz: float | None) -> None:
    """pp_dpm_sclk lists the levels, and marks the current level."""
    assert parse_levels_max(text) == hertz


def test_properties_and_addresses_of_nodes() -> None:
    """The partition is in the function's bits; newer drivers use the bits above."""
    assert parse_properties("simd_count 1216\nname gfx942\nx -1\n") == {"simd_count": 1216}
    assert (
        pci_address(0, 0xC300)
        == pci_address(0, 0xC303)
        == pci_address(0, 0xC300 | 5 << 28)
        == "0000:c3:00.0"
    )
    assert pci_address(2, 0x0508) == "0002:05:01.0"


def test_ids_that_are_none(host: AmdHost) -> None:
    """A GPU whose driver has no unique id is identified by its address."""
    for number, text in enumerate(("", "0000000000000000", "8f3c", "zz3c9c1d2e4a5b60")):
        (Path(amd_gpus(host.host.roots.sys)[number].folder) / "unique_id").write_text(text)
    keys = [gpu.key for gpu in amd_gpus(host.host.roots.sys)]
    assert keys[:4] == ["0000:05:00.0", "0000:26:00.0", "0000:46:00.0", "0000:65:00.0"]
    assert keys[4] == "GPU-8f3c9c1d2e4a9fa4"


def test_struct_is_little_endian() -> None:
    """The tables are the firmware's: x86-64 and arm64 hosts, both little-endian."""
    assert struct.pack("=H", 1) == b"\x01\0"
