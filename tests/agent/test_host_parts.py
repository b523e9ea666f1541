"""Cores, nodes, sensors, memory errors, clock and settings of a host."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as settings_of_test
from hypothesis import strategies as st

from gangline.agent.collector import Collector, CollectOutcome, run_collector
from gangline.agent.collectors import power
from gangline.agent.collectors.clock import ClockTenSeconds
from gangline.agent.collectors.cpu import CpuMinute
from gangline.agent.collectors.edac import edac_10s
from gangline.agent.collectors.host import HostTenSeconds
from gangline.agent.collectors.numa import NumaTenSeconds
from gangline.agent.collectors.resctrl import l3_1s
from gangline.agent.collectors.settings import SettingsMinute
from gangline.agent.hardware import edac, kernel_clock, settings
from gangline.agent.hardware.files import Roots
from gangline.agent.hardware.numa_nodes import hugepage_pools
from gangline.agent.hardware.power_sensors import chips, sensors
from gangline.contract.signals import TABLES
from gangline.ext import adjtimex
from gangline.ext.hostfiles import CoreTimes
from tests import hosts
from tests.hosts.reading import StoppedClock, rows_of

Row = dict[str, float | int | None]

#: Possible content in place of the kernel's keywords and numbers.
HOSTILE = st.one_of(
    st.none(),
    st.text(max_size=60),
    st.sampled_from(
        ["", "N/A", "-1", "[", "]", "[]", "[a] [b]", "always [madvise] never", "[\N{ARABIC-INDIC DIGIT TWO}]",
         "1 2", "1 0 9223372036854775807", "99999999999999999999 0 1", "1\t0\t-1", "0x10 0 5", "1 kB",
         "\N{REPLACEMENT CHARACTER}", "on\n", "iommu=pt " * 200]
    ),
)  # fmt: skip
STATS = st.lists(
    st.sampled_from([b"cpu", b"cpu0", b"cpu1", b"cpu99999999999999999999", b"cpu-1", b"cpux", b"intr", b"softirq"])
    | st.integers(-5, 1 << 65).map(lambda n: str(n).encode())
    | st.sampled_from([b" ", b"\n", b" 0 0 0 0 0 0 0 0\n", b"N/A", b"\xff", b"1_0"]),
    max_size=60,
).map(b" ".join)  # fmt: skip
NAMES = st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=12)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def read(collector: Collector, table: int = 0) -> dict[str, Row | None]:
    return dict(rows_of(collector.collect()[table]))


def row(collector: Collector, device: str = "host", table: int = 0) -> Row:
    result = read(collector, table)[device]
    assert result is not None
    return result


@pytest.fixture(scope="module")
def h100(tmp_path_factory: pytest.TempPathFactory) -> hosts.HostFolder:
    return hosts.unpack("h100-ib", tmp_path_factory.mktemp("h100"))


def stat(*cores: tuple[int, ...]) -> str:
    """Return /proc/stat of cores with (user, system, idle, softirq) ticks."""
    lines = [
        f"cpu{i} {u} 0 {s} {idle} 0 0 {soft} 0 0 0" for i, (u, s, idle, soft) in enumerate(cores)
    ]
    total = [sum(column) for column in zip(*cores, strict=True)]
    head = f"cpu  {total[0]} 0 {total[1]} {total[2]} 0 0 {total[3]} 0 0 0"
    return "\n".join([head, *lines, "intr 1234 5 6", "softirq 99 1", ""])


def test_a_core_that_only_serves_interrupts(tmp_path: Path) -> None:
    """All queues of a NIC ended on core 1: the host was 25 % busy and the network slow."""
    write(tmp_path, {"stat": stat((0, 0, 0, 0), (0, 0, 0, 0))})
    collector = CpuMinute(Roots(tmp_path, tmp_path))
    assert read(collector) == {"cpu0": None, "cpu1": None}
    write(tmp_path, {"stat": stat((25, 0, 75, 0), (0, 10, 0, 90))})
    result = read(collector)
    assert result["cpu0"] is not None and result["cpu1"] is not None
    assert (result["cpu0"]["busy_ratio"], result["cpu0"]["interrupt_ratio"]) == (0.25, 0.0)
    assert (result["cpu1"]["busy_ratio"], result["cpu1"]["interrupt_ratio"]) == (1.0, 0.9)
    assert result["cpu1"]["frequency_hertz"] is None


def test_a_core_taken_offline_costs_its_row_only(tmp_path: Path) -> None:
    """When it is back its first share is missing, not an average since boot."""
    both, one = ((0, 0, 100, 0), (0, 0, 100, 0)), ((50, 0, 150, 0),)
    collector = CpuMinute(Roots(tmp_path, tmp_path))
    write(tmp_path, {"stat": stat(*both)})
    read(collector)
    write(tmp_path, {"stat": stat(*one)})
    assert list(read(collector)) == ["cpu0"]
    write(tmp_path, {"stat": stat((60, 0, 160, 0), (5, 0, 300, 0))})
    result = read(collector)
    assert result["cpu1"] is None
    assert result["cpu0"] is not None and result["cpu0"]["busy_ratio"] == 0.5


def test_a_node_whose_one_core_is_full(tmp_path: Path) -> None:
    """The loader was pinned to one core: the host's mean hid the node, the node's mean the core."""
    write(
        tmp_path,
        {
            "stat": stat(*[(0, 0, 0, 0)] * 4),
            "devices/system/node/node0/cpulist": "0-1\n",
            "devices/system/node/node1/cpulist": "2-3,9\n",
        },
    )
    collector = NumaTenSeconds(Roots(tmp_path, tmp_path))
    assert read(collector) == {"node0": None, "node1": None}
    write(tmp_path, {"stat": stat((0, 0, 50, 0), (0, 0, 50, 0), (50, 0, 0, 0), (0, 0, 50, 0))})
    result = read(collector)
    busy = [(r["cpu_busy_ratio"], r["cpu_busiest_core_ratio"]) for r in result.values() if r]
    assert busy == [(0.0, 0.0), (0.5, 1.0)]


def test_the_busiest_core_is_named() -> None:
    """`Some core is full`: its number shows whether it is the loader's or the NIC's."""
    times = CoreTimes(0.05)
    times.take(stat(*[(0, 0, 0, 0)] * 4).encode())
    now = stat((0, 0, 100, 0), (3, 0, 97, 0), (98, 0, 2, 0), (96, 0, 4, 0))
    shares = times.take(now.encode())
    assert (shares.busiest_core, shares.busiest_core_number) == (0.98, 2)
    assert shares.saturated_cores == 2


def test_a_step_back_of_the_kernels_times_is_no_share() -> None:
    """iowait and idle may fall slightly (proc(5)); user time that falls is another boot's."""
    times = CoreTimes()
    times.take(b"cpu 50 0 10 100 20 0 0 0 0 0\n")
    assert times.take(b"cpu 60 0 20 100 19 0 0 0 0 0\n").user == 0.5
    assert times.take(b"cpu 1 0 1 200 30 0 0 0 0 0\n").user is None


def test_frequencies_whose_driver_is_loaded_late(tmp_path: Path) -> None:
    """The agent started before acpi-cpufreq, and the host had no frequency for its first hour."""
    write(tmp_path, {"meminfo": "MemTotal: 8 kB\n", "devices/system/cpu/online": "0-1\n"})
    collector = HostTenSeconds(Roots(tmp_path, tmp_path))
    assert row(collector)["cpu_frequency_hertz"] is None
    write(tmp_path, {"devices/system/cpu/cpufreq/policy0/scaling_cur_freq": "2000000\n"})
    assert row(collector)["cpu_frequency_hertz"] == 2e9


def test_throttle_counts_of_threads_are_not_added_up(tmp_path: Path) -> None:
    """Both threads show their core's count. An unreadable file makes the sum unknown."""
    files = {"meminfo": "MemTotal: 1 kB\n"}
    for thread in range(4):
        folder = f"devices/system/cpu/cpu{thread}"
        files |= {
            f"{folder}/topology/physical_package_id": "0\n",
            f"{folder}/topology/core_id": f"{thread % 2}\n",
            f"{folder}/thermal_throttle/core_throttle_count": f"{5 + thread % 2}\n",
            f"{folder}/thermal_throttle/package_throttle_count": "7\n",
            f"{folder}/thermal_throttle/package_throttle_total_time_ms": "90\n",
        }
    write(tmp_path, files)
    result = row(HostTenSeconds(Roots(tmp_path, tmp_path)), table=1)
    assert result["cpu_core_throttles_count"] == 11
    assert (result["cpu_throttles_count"], result["cpu_throttled_milliseconds"]) == (7, 90)
    write(tmp_path, {"devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": "N/A\n"})
    assert (
        row(HostTenSeconds(Roots(tmp_path, tmp_path)), table=1)["cpu_core_throttles_count"] is None
    )


def test_a_sensor_keeps_its_name_when_the_numbers_change(host: hosts.HostFolder) -> None:
    """After a reboot hwmon3 was another chip: a fan was compared with a processor's heat."""
    before = {name: s.reading for name, s in sensors(host.roots.sys).items()}
    folder = host.roots.sys / "class/hwmon"
    (folder / "hwmon0").rename(folder / "hwmon77")
    (folder / "hwmon3").rename(folder / "hwmon0")
    assert {name: s.reading for name, s in sensors(host.roots.sys).items()} == before
    assert "nvme@0000:1e:00.0/temp1" in before  # nvme0 is also a number that may change
    assert before["ina@7-0040/power1"] == "_input"


def test_two_chips_of_one_name_stay_apart(tmp_path: Path) -> None:
    """Two chips without a device: both are reported, in numeric order, 10 after 2."""
    write(tmp_path, {f"class/hwmon/hwmon{n}/name": "acpi\n" for n in (10, 2)})
    result = {name: folder.name for name, folder in chips(tmp_path).items()}
    assert result == {"acpi": "hwmon2", "acpi#2": "hwmon10"}


def test_power_is_read_each_second_and_heat_each_ten(h100: hosts.HostFolder) -> None:
    """Watts, hertz, volts and degrees, each from its own files; a stopped fan is 0, not missing."""
    watts = read(power.hwmon_1s(h100.roots))
    assert watts["power_meter@ACPI000D:00/power1"] == {"power_watts": 4213.0}
    assert set(watts) == {"power_meter@ACPI000D:00/power1", "ina@7-0040/power1"}
    rest = power.hwmon_10s(h100.roots)
    assert row(rest, "ina@7-0040/fan1")["fan_speed_hertz"] == 120.0
    assert row(rest, "ina@7-0040/fan2")["fan_speed_hertz"] == 0.0
    assert row(rest, "ina@7-0040/in0")["voltage_volts"] == 12.0
    assert row(rest, "power_meter@ACPI000D:00/power1")["power_cap_watts"] == 10200.0
    assert "ina@7-0040/power1" not in read(rest)  # without a cap


def test_errors_by_dimm_and_what_no_dimm_is_to_blame_for(h100: hosts.HostFolder) -> None:
    """17 errors of a controller: 16 of a DIMM, 1 of none, and none counted twice."""
    collector = edac_10s(h100.roots)
    assert row(collector, "mc0/dimm1")["corrected_errors"] == 16
    assert row(collector, "mc0")["corrected_unlocated_errors"] == 1
    assert row(collector, "mc1/csrow0")["uncorrected_errors"] == 1
    result = read(collector)
    assert "mc0/csrow0" not in result
    assert result["mc1/csrow0/ch1"] is None  # `N/A`
    lost = result["mc1/csrow0/ch0"]
    assert lost is not None and lost["uncorrected_errors"] == 1, "the channel names the DIMM"


def test_memory_traffic_of_each_cache_and_control_group(tmp_path: Path) -> None:
    """Each control group is a device; words in place of a number are missing readings, and monitoring groups are part of their control group."""
    root = "fs/resctrl"
    counts = {
        "": ("100", "60"),
        "job7/": ("7", "Unavailable\n"),
        "job8/": ("Unassigned\n", "Error\n"),
    }
    files = {
        f"{root}/info/L3_MON/num_rmids": "224\n",
        f"{root}/mon_groups/pod/mon_data/mon_L3_00/mbm_total_bytes": "5",
    }
    for group, (total, local) in counts.items():
        folder = f"{root}/{group}mon_data/mon_L3_00"
        files |= {f"{folder}/mbm_total_bytes": total, f"{folder}/mbm_local_bytes": local}
    # A sub-NUMA cluster is part of its cache; a cache without MBM counts only its occupancy.
    files[f"{root}/mon_data/mon_L3_00/mon_sub_L3_00/mbm_total_bytes"] = "50"
    files[f"{root}/mon_data/mon_L3_01/llc_occupancy"] = "4096"
    write(tmp_path, files)
    rows = read(l3_1s(Roots(tmp_path, tmp_path)))
    assert rows == {
        "0": {"memory_bytes": 100, "local_memory_bytes": 60},
        "job7/0": {"memory_bytes": 7, "local_memory_bytes": None},
        "job8/0": None,
    }


def test_a_host_without_resctrl_has_no_data_and_the_remedy(tmp_path: Path) -> None:
    """It is not mounted by default."""
    turn = run_collector(l3_1s(Roots(tmp_path, tmp_path)), StoppedClock())
    assert turn.outcome is CollectOutcome.NO_DATA and "mount -t resctrl" in turn.message


def test_ranks_are_places_too(tmp_path: Path) -> None:
    """AMD's driver calls them ranks: a host of 24 had no memory errors at all."""
    write(tmp_path, {"devices/system/edac/mc/mc0/rank4/dimm_ce_count": "3\n"})
    assert list(edac.edac_locations(tmp_path)) == ["mc0", "mc0/rank4"]
    assert row(edac_10s(Roots(tmp_path, tmp_path)), "mc0/rank4")["corrected_errors"] == 3


def test_a_driver_without_a_controller_has_no_data(tmp_path: Path) -> None:
    """The module is loaded, the machine has no ECC: no data, with a message."""
    (tmp_path / "devices/system/edac/mc/power").mkdir(parents=True)
    turn = run_collector(edac_10s(Roots(tmp_path, tmp_path)), StoppedClock())
    assert turn.outcome is CollectOutcome.NO_DATA and "ECC" in turn.message


def timex(
    state: int = 0,
    status: int = 1,
    offset: int = 0,
    frequency: int = 0,
    error: int = 5,
    tai: int = 0,
) -> kernel_clock.Timex:
    return (state, status, offset, frequency, 10 * error, error, tai)


def test_the_clock_in_nanoseconds_and_in_microseconds() -> None:
    """An offset of 250 us was reported as a quarter of a second: STA_NANO has the unit."""
    assert kernel_clock.parse_timex(timex(offset=-250)).offset_seconds == -250e-6
    nano = kernel_clock.parse_timex(timex(status=0x2001, offset=-250_000, frequency=-65536 * 25))
    assert nano.offset_seconds == pytest.approx(-250e-6)
    assert nano.frequency_offset_ratio == -25e-6
    assert (nano.error_estimated_seconds, nano.error_max_seconds) == (5e-6, 50e-6)
    assert nano.synchronised


def test_a_clock_that_nobody_keeps() -> None:
    """The time daemon died: the state shows it at once, while the offset keeps its last value."""
    result = kernel_clock.parse_timex(timex(state=5, status=0x40, error=1_600_000))
    assert (result.synchronised, result.leap_state, result.error_max_seconds) == (False, 5, 16.0)


@given(st.tuples(*[st.integers(-(1 << 63), (1 << 63) - 1)] * 7))
def test_any_answer_of_the_kernel_is_a_clock_or_missing(answer: kernel_clock.Timex) -> None:
    """Garbage in a struct of another layout: plausible values, or missing."""
    result = kernel_clock.parse_timex(answer)
    assert result.offset_seconds is None or abs(result.offset_seconds) <= 1
    for error in (result.error_estimated_seconds, result.error_max_seconds):
        assert error is None or 0 <= error <= 16
    assert result.leap_state is None or 0 <= result.leap_state <= 5
    assert result.status_flags is None or result.status_flags >= 0


def test_this_machines_clock_is_really_asked() -> None:
    """The call itself, on this kernel: seven numbers in their ranges."""
    state, status, _, _, error_max, error_estimated, tai = adjtimex.read()
    assert 0 <= state <= 5 and 0 <= status < 1 << 16
    assert error_max >= 0 and error_estimated >= 0 and abs(tai) < 1000
    turn = run_collector(ClockTenSeconds(Roots()), StoppedClock())
    assert turn.outcome is CollectOutcome.OK, turn.message
    result = dict(rows_of(turn.blocks[0]))["host"]
    assert result is not None
    assert result["synchronised_state"] == int(not status & kernel_clock.STA_UNSYNC)
    assert result["error_max_seconds"] is not None


def test_a_clock_behind_a_filter_is_blind_and_one_of_a_folder_no_data() -> None:
    """ProtectClock=yes in a unit refuses the call, even for reading: the message names the remedy."""

    def refuse() -> kernel_clock.Timex:
        raise PermissionError(1, "Operation not permitted")

    turn = run_collector(ClockTenSeconds(Roots(), refuse), StoppedClock())
    assert turn.outcome is CollectOutcome.BLIND and "ProtectClock=no" in turn.message
    nowhere = Path("/nowhere")
    turn = run_collector(ClockTenSeconds(Roots(nowhere, nowhere)), StoppedClock())
    assert turn.outcome is CollectOutcome.NO_DATA


def test_a_folders_clock_is_handed_in() -> None:
    """All values of a reading arrive, each in its column."""
    result = row(ClockTenSeconds(Roots(), lambda: (1, 0x2011, 500, 65536, 1500, 25, 37)))
    assert result == {
        "offset_seconds": pytest.approx(5e-7),
        "error_estimated_seconds": 25e-6,
        "error_max_seconds": 1500e-6,
        "frequency_offset_ratio": 1e-6,
        "synchronised_state": 1,
        "leap_state": 1,
        "status_flags": 0x2011,
        "tai_offset_seconds": 37.0,
    }


def test_settings_that_somebody_changed(host: hosts.HostFolder) -> None:
    """A governor had changed back to powersave on a quarter of the cores."""
    collector = SettingsMinute(host.roots)
    assert row(collector)["cpu_governor_other_ratio"] == 0.25
    # The deep state is disabled on core 0; core 4 is the first of the other package, not core 12.
    assert row(collector)["idle_latency_max_microseconds"] == 170.0
    write(host.roots.sys, {"devices/system/cpu/cpu4/cpuidle/state2/disable": "1\n"})
    assert row(collector)["idle_latency_max_microseconds"] == 2.0
    write(
        host.roots.sys,
        {
            "devices/system/cpu/cpu0/cpuidle/state2/disable": "0\n",
            "kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n",
            "devices/system/clocksource/clocksource0/current_clocksource": "hpet\n",
            "devices/system/cpu/intel_pstate/no_turbo": "1\n",
        },
    )
    result = row(collector)
    assert result["idle_latency_max_microseconds"] == 170.0
    assert result["transparent_hugepages_state"] == 2
    assert (result["clocksource_state"], result["turbo_state"]) == (10, 0)


def test_the_ways_to_gpu_memory(host: hosts.HostFolder) -> None:
    """RDMA went through the host's memory: no module, and the closed driver without DMA-BUF."""
    collector = SettingsMinute(host.roots)
    assert row(collector)["gpu_peer_memory_state"] == 1
    (host.roots.sys / "module/nvidia_peermem").rename(host.roots.sys / "module/nv_peer_mem")
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"
    (host.roots.proc / "driver/nvidia/version").write_text(text)
    assert row(collector)["gpu_peer_memory_state"] == 2
    assert row(collector)["gpu_open_module_state"] == 1


def test_settings_of_this_machine_are_true() -> None:
    result = row(SettingsMinute(Roots()))
    tainted = int(Path("/proc/sys/kernel/tainted").read_text())
    assert result["kernel_taint_flags"] == tainted
    assert result["process_ids_max_count"] == int(Path("/proc/sys/kernel/pid_max").read_text())
    handles = result["open_files_count"]
    assert handles is not None and handles > 0


def test_every_setting_of_the_catalogue_has_a_reader(h100: hosts.HostFolder) -> None:
    """A row without a reader is a permanently empty column."""
    result = row(SettingsMinute(h100.roots))
    assert set(result) == {s.column for s in TABLES["settings_60s"]}
    assert [name for name, value in result.items() if value is None] == []


@given(HOSTILE)
def test_words_of_settings(text: str | None) -> None:
    """Another kernel's keywords: a documented code, or missing."""
    word = settings.parse_selected(text)
    assert word is None or (text is not None and f"[{word}]" in text)
    for words in (settings.SMT, settings.HUGEPAGES, settings.HUGEPAGES_DEFRAG, settings.ASPM):
        assert settings.code(words, text) in {None, *words.values()}
    source = settings.clocksource_code(text)
    assert source in {None, settings.CLOCKSOURCE_OTHER, *settings.CLOCKSOURCES.values()}
    for number in settings.parse_file_handles(text):
        assert number is None or 0 <= number < 1 << 64
    flags = settings.kernel_flags(text)
    assert len(flags) <= 512 and set(flags.split()) <= {*(text or "").split(), flags.split(" ")[-1]}


@given(st.lists(st.none() | st.sampled_from(["performance", "powersave", ""]), max_size=9))
def test_the_share_of_other_governors(words: list[str | None]) -> None:
    """The share counts only readable governors; without any it is missing, not zero."""
    share = settings.share_of_others(words, "performance")
    known = [word for word in words if word]
    assert (share is None) == (not known)
    assert share is None or share == known.count("powersave") / len(known)


@given(STATS, STATS)
def test_any_two_texts_give_shares_or_nothing(before: bytes, now: bytes) -> None:
    """Lines of a hostile /proc/stat: shares between 0 and 1, or missing; never an exception."""
    times = CoreTimes(0.05)
    times.take(before)
    shares = times.take(now)
    for core in times.shares().values():
        assert all(share is None or 0 <= share <= 1 for share in core)
    values = [
        shares.user,
        shares.system,
        shares.interrupt,
        shares.idle,
        shares.iowait,
        shares.steal,
    ]
    for share in (*values, shares.busiest_core):
        assert share is None or 0 <= share <= 1


@settings_of_test(deadline=None, max_examples=30)  # creates real folders
@given(
    st.lists(
        NAMES
        | st.sampled_from(["mc0", "dimm1", "hwmon0", "temp1_input", "power1_cap", "hugepages-2kB"])
    )
)
def test_folders_of_odd_names_are_listed_without_error(names: list[str]) -> None:
    """A name in another script, a file where a folder should be."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for below in (
            "class/hwmon",
            "devices/system/edac/mc",
            "devices/system/node/node0/hugepages",
        ):
            for name in names:
                (root / below / name / "temp1_input").mkdir(parents=True, exist_ok=True)
                (root / below / "mc0" / name).mkdir(parents=True, exist_ok=True)
        for found in (chips(root), sensors(root), edac.edac_locations(root), hugepage_pools(root)):
            assert all(len(os.fsencode(key)) < 4096 for key in found)
