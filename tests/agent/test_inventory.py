"""The inventory: the child's findings, and a faulty child."""

from __future__ import annotations

import errno
import gc
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent import inventory
from gangline.agent.hardware.ethtool_netlink import EthtoolNetlink, SupportedMode, parse_mode
from gangline.agent.hardware.files import Roots
from gangline.agent.hardware.network import interfaces_with_device
from gangline.agent.inventory import __main__ as child
from gangline.agent.inventory import links
from gangline.agent.inventory.gpus import sysfs_address
from tests import hosts
from tests.fake_nvml.build import build
from tests.fake_nvml.scenario import Gpu, Scenario, gpus
from tests.processes import GUARD_SECONDS


class NvmlHost:
    """Folders of a host whose driver and kernel a test plays."""

    def __init__(self, library: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._monkeypatch = folder, monkeypatch
        self.roots = Roots(folder / "sys", folder / "proc", library)

    def play(self, devices: Sequence[Gpu] = (), *, host: str = "", is_listed: bool = True) -> None:
        self._monkeypatch.setenv("GANGLINE_FAKE_NVML", str(self.folder / "scenario"))
        Scenario(self.folder / "scenario", devices, host=host)
        for gpu in devices if is_listed else ():
            (self.roots.proc / "driver/nvidia/gpus" / gpu.address).mkdir(parents=True)


@pytest.fixture
def nvml_host(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvmlHost:
    return NvmlHost(library, tmp_path, monkeypatch)


def of_kind(found: inventory.Inventory, kind: str) -> dict[str, dict[str, str]]:
    return {d.key: dict(d.attributes) for d in found.devices if d.kind == kind}


@pytest.fixture(scope="module")
def h100(tmp_path_factory: pytest.TempPathFactory) -> inventory.Inventory:
    host = hosts.unpack("h100-ib", tmp_path_factory.mktemp("h100"))
    listing = inventory.read(host.roots)
    assert listing.reason == ""
    return listing


def test_gpus_know_how_near_each_nic_is(h100: inventory.Inventory) -> None:
    """A job paired each GPU with the NIC of the other socket, unnoticed."""
    gpu = of_kind(h100, "pcie")["0000:18:00.0"]
    assert gpu["parents"] == "0000:17:00.0 0000:16:00.0 0000:15:01.0"
    assert gpu["root"] == "pci0000:15"
    near = {key.removeprefix("near "): word for key, word in gpu.items() if key.startswith("near ")}
    assert near == {
        "0000:1a:00.0": "same switch",
        "0000:3c:00.0": "same socket",
        "0000:9c:00.0": "far",
        "0000:bc:00.0": "far",
        "0000:02:00.0": "same socket",
        "0000:00:1f.6": "unknown",
    }
    assert (gpu["nearest_nics"], gpu["nearest_nics_at"]) == ("0000:1a:00.0", "same switch")
    assert (gpu["nearest_rdma"], gpu["nearest_rdma_at"]) == ("mlx5_0", "same switch")
    assert (gpu["cpus"], gpu["iommu_group"]) == ("0-3,8-11", "41")


def test_memory_modules_bear_the_label_of_their_socket(h100: inventory.Inventory) -> None:
    """`mc0/dimm1 has errors`: it was unknown which of 32 sockets that is."""
    modules = of_kind(h100, "edac")
    assert modules["mc0"]["name"] == "Intel_Sapphire Rapids Server"
    assert modules["mc0/dimm0"] == {
        "label": "CPU_SrcID#0_MC#0_Chan#0_DIMM#0",
        "location": "channel 0 slot 0",
        "size_megabytes": "65536",
        "memory": "Registered-DDR5",
        "ecc": "S4ECD4ED",
    }
    assert modules["mc1/csrow0/ch0"] == {"label": "DIMM_A1"}


def test_the_kernels_command_line_shows_no_secret(h100: inventory.Inventory) -> None:
    """A key was on the command line, and every operator of the fleet could read it."""
    settings = of_kind(h100, "settings")["host"]
    assert settings["kernel_flags"] == "intel_iommu=on iommu=pt mitigations=off isolcpus=14-15"
    assert (settings["clocksource"], settings["cpu_governors"]) == ("tsc", "performance powersave")


def test_ports_links_nodes_and_disks(h100: inventory.Inventory) -> None:
    """An operator needs these to find the part physically."""
    port = of_kind(h100, "rdma")["mlx5_1/1"]
    assert port["pci_address"] == "0000:3c:00.0"
    assert (port["firmware"], port["interfaces"]) == ("28.39.1002", "ib1")
    links = of_kind(h100, "net")
    assert links["bond0"]["link"] == "bond" and links["bond0"]["below"] == "eno1"
    assert links["bond0.100"]["link"] == "vlan" and links["bond0.100"]["below"] == "bond0"
    assert links["eno1"]["pci_address"] == "0000:02:00.0"
    assert "lo" not in links
    assert of_kind(h100, "numa")["node1"] == {"cpus": "4-7,12-15", "distances": "21 10 28"}
    disk = of_kind(h100, "disk")["nvme0n1"]
    assert disk["size_bytes"] == str(7501476528 * 512)
    assert (disk["pci_address"], disk["firmware"]) == ("0000:1e:00.0", "GDC7")
    assert of_kind(h100, "rapl")["intel-rapl:0:0"] == {"label": "dram"}
    sensor = of_kind(h100, "hwmon")["coretemp@coretemp.0/temp1"]
    assert sensor == {"chip": "coretemp", "label": "Package id 0"}


def test_labels_are_of_the_host_that_was_read(h100: inventory.Inventory) -> None:
    """A folder's inventory must not have the kernel of this machine."""
    assert h100.labels == {
        "hostname": "gpu-001",
        "kernel": "5.15.0-1048-example",
        "cpu_model": "Example(R) CPU 8480",
        "cpu_cores": "16",
        "memory_bytes": str(2113746048 * 1024),
        "nvidia_driver_version": "535.161.08",
    }


def test_this_machine_has_an_inventory() -> None:
    """With psutil, pyroute2 and pynvml if they are installed; all keys occur once."""
    listing = inventory.read(Roots())
    assert listing.reason == ""
    assert {"hostname", "kernel", "cpu_cores"} <= set(listing.labels)
    keys = [(device.kind, device.key) for device in listing.devices]
    assert len(keys) == len(set(keys))
    assert all(isinstance(v, str) for device in listing.devices for v in device.attributes.values())


def test_the_daemons_side_is_light() -> None:
    """Importing the inventory once cost the daemon 31 MB: it loaded pyroute2."""
    program = (
        "import sys, gangline.agent.inventory\n"
        "print({'psutil', 'pyroute2', 'pynvml', 'argparse', 'asyncio', 'ctypes'} & set(sys.modules))"
    )
    arguments = [sys.executable, "-c", program]
    ended = subprocess.run(
        arguments, capture_output=True, text=True, check=True, timeout=GUARD_SECONDS
    )
    assert ended.stdout == "set()\n"


def run(program: str, seconds_max: float = 20.0) -> inventory.Inventory:
    return inventory.parse(*inventory.run_child([sys.executable, "-c", program], seconds_max))


def test_a_child_that_hangs_is_ended_in_time() -> None:
    """nvmlInit did not return for 45 s; the daemon's thread waits only for its limit."""
    gc.collect()  # an earlier test's child must not be taken for this one
    before = len(os.listdir("/proc/self/fd"))
    listing = run(
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()", 0.3
    )
    assert listing == inventory.Inventory(reason="the inventory took longer than 0.3 s")
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_child_ends_with_the_agent_however_that_ends(tmp_path: Path) -> None:
    """The agent was killed while a driver held its inventory: the child kept the GPU open."""
    fifo, library = tmp_path / "held", build(tmp_path)
    os.mkfifo(fifo)
    scenario = Scenario(tmp_path / "scenario", host=f"block nvmlInitWithFlags fifo {fifo}")
    program = (
        "from pathlib import Path\nfrom gangline.agent import inventory\n"
        "from gangline.agent.hardware.files import Roots\n"
        f"inventory.read(Roots(Path({str(tmp_path)!r}), Path({str(tmp_path)!r}), {str(library)!r}), 60)"
    )
    environment = {**os.environ, "GANGLINE_FAKE_NVML": str(scenario.path)}
    agent = subprocess.Popen([sys.executable, "-c", program], env=environment)
    held = os.open(fifo, os.O_WRONLY)  # returns once the child is in the driver
    agent.kill()
    agent.wait(GUARD_SECONDS)
    gone = select.poll()
    gone.register(held, 0)
    ((_, event),) = gone.poll(int(GUARD_SECONDS * 1000))
    assert event & select.POLLERR  # the fifo has no reader any more
    os.close(held)


def test_what_was_printed_before_the_hang_is_kept() -> None:
    """A thread in the driver keeps the process from ending; its answer is still complete."""
    line = json.dumps({"devices": [{"kind": "numa", "key": "node0"}], "labels": {}})
    listing = run(f"import signal; print('''{line}''', flush=True); signal.pause()")
    assert listing.devices == (inventory.HostDevice("numa", "node0"),)
    assert listing.reason == ""


def test_a_child_that_says_too_much_is_ended() -> None:
    """The parent sets the limits: a broken library must not fill the daemon's memory."""
    listing = run("import sys\nwhile True: sys.stdout.write('x' * 65536)")
    assert listing.reason == f"the inventory printed more than {inventory.OUTPUT_BYTES_MAX} bytes"


def test_a_child_that_dies_is_quoted() -> None:
    """The last line of its error; not a traceback in every log line."""
    listing = run("raise RuntimeError('driver/library version mismatch')")
    assert "driver/library version mismatch" in listing.reason
    assert "Traceback" not in listing.reason


def test_no_second_child_joins_one_that_would_not_die() -> None:
    """A child stuck in a driver was joined by another every ten minutes until memory ran out."""
    stuck = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    inventory._abandoned.append(stuck)
    assert str(stuck.pid) in inventory.read(Roots()).reason
    stuck.kill()
    stuck.wait(GUARD_SECONDS)
    assert inventory.read(Roots()).reason == ""
    assert inventory._abandoned == []


def test_a_python_that_is_gone_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment was upgraded under the running daemon."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "could not be started" in inventory.read(Roots()).reason


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["devices", "labels", "kind", "key", "attributes", "problems"]),
                inner,
            )
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_answer_is_an_inventory_or_words(output: bytes) -> None:
    """A child of another version: the daemon reads the known parts and never raises."""
    listing = inventory.parse(output)
    assert listing.reason or (listing.devices is not None and listing.labels is not None)


def test_a_section_that_fails_or_hangs_costs_only_itself() -> None:
    """NVML refused for its version; disks and ports were still listed."""
    release = threading.Event()

    def hang(roots: Roots) -> list[inventory.HostDevice]:
        release.wait(GUARD_SECONDS)
        return []

    def fail(roots: Roots) -> list[inventory.HostDevice]:
        raise OSError("no such library")

    node = inventory.HostDevice("numa", "node0")
    sections = {"GPUs": hang, "links": fail, "nodes": lambda roots: [node]}
    listing, problems = child.run_sections(sections, Roots(), 0.1)
    release.set()
    assert listing == [node]
    assert problems == ["GPUs: no answer within 0.1 s", "links: OSError: no such library"]


def test_two_sections_that_hang_cost_no_third() -> None:
    """Each had its ten seconds: the child was killed before it had printed anything."""
    free, third = threading.Event(), threading.Event()

    def hang(roots: Roots) -> list[inventory.HostDevice]:
        free.wait(GUARD_SECONDS)
        return []

    def wait_for_third(roots: Roots) -> list[inventory.HostDevice]:
        assert third.wait(GUARD_SECONDS)  # late if the sections wait for each other
        return [inventory.HostDevice("net", "eth0")]

    def answer(roots: Roots) -> list[inventory.HostDevice]:
        third.set()
        return [inventory.HostDevice("disk", "sda")]

    sections = {"a driver": hang, "another": hang, "links": wait_for_third, "disks": answer}
    listing, problems = child.run_sections(sections, Roots(), 0.5)
    free.set()
    assert [device.key for device in listing] == ["eth0", "sda"]
    assert [problem.partition(":")[0] for problem in problems] == ["a driver", "another"]


def test_interfaces_without_netlink_are_those_of_sysfs(monkeypatch: pytest.MonkeyPatch) -> None:
    """RestrictAddressFamilies without AF_NETLINK: no interface was listed."""

    def refuse(found: dict[str, dict[str, str]]) -> None:
        found["lo"] = {"link": "half"}
        raise PermissionError(97, "Address family not supported by protocol")

    monkeypatch.setattr(links, "_query_netlink", refuse)
    physical = interfaces_with_device(Path("/sys"))
    assert {d.key for d in links.interfaces(Roots())} >= set(physical)


def modes(*names: str) -> list[SupportedMode]:
    return [mode for name in names if (mode := parse_mode(name)) is not None]


def test_what_a_card_could_run_at_is_told() -> None:
    """Eight ports of 400G ran at 200G: without their maximum speed this looked normal."""
    reported = links.mode_attributes(
        modes("1000baseKX/Full", "400000baseCR4/Full", "200000baseCR4/Full")
    )
    assert reported == {
        "speed_max": "400000 Mb/s",
        "lanes_max": "4",
        "link_modes": "400000baseCR4/Full 200000baseCR4/Full 1000baseKX/Full",
    }
    assert links.mode_attributes([]) == {}


def test_the_text_of_many_modes_ends_at_a_name() -> None:
    """Half a name at the end of the text would be a nonexistent mode."""
    names = [f"{speed}baseSR4_X/Full" for speed in range(1000, 1200)]
    text = links.mode_attributes(modes(*names))["link_modes"]
    assert inventory.VALUE_CHARACTERS_MAX - 30 < len(text) <= inventory.VALUE_CHARACTERS_MAX
    assert text.split(" ") == names[::-1][: len(text.split(" "))]


def test_the_interfaces_of_this_machine_are_asked_for_their_modes() -> None:
    """With the real kernel and driver: modes are valid or missing."""
    for device in links.interfaces(Roots()):
        modes_known = {"speed_max", "lanes_max", "link_modes"} & device.attributes.keys()
        assert len(modes_known) in (0, 3)
        if modes_known:
            named = [parse_mode(name) for name in device.attributes["link_modes"].split()]
            speeds = [mode.speed_megabits for mode in named if mode is not None]
            assert len(speeds) == len(named)
            assert device.attributes["speed_max"] == f"{max(speeds)} Mb/s"


def test_without_ethtool_netlink_the_interfaces_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux 5.4 lacks it: only the speeds are missing."""

    def refuse() -> EthtoolNetlink:
        raise OSError(errno.ENOENT, "the kernel has no ethtool netlink")

    monkeypatch.setattr(links, "EthtoolNetlink", refuse)
    listing = {d.key: d.attributes for d in links.interfaces(Roots())}
    assert set(listing) >= set(interfaces_with_device(Path("/sys")))
    assert not any("link_modes" in attributes for attributes in listing.values())


def test_gpus_by_nvidias_own_binding(nvml_host: NvmlHost) -> None:
    """Eight GPUs, one of them lost: seven answer, the eighth is listed with the kernel's data."""
    devices = gpus(8)
    devices[2].lines.append("error nvmlDeviceGetHandleByPciBusId_v2 15")
    nvml_host.play(devices)
    listing = inventory.read(nvml_host.roots)
    assert listing.reason == ""
    modes_known = of_kind(listing, "gpu")
    assert len(modes_known) == 8
    first = modes_known[devices[0].uuid]
    assert first["name"] == "NVIDIA H100 80GB HBM3"
    assert first["pci_address"] == devices[0].address
    assert first["memory_bytes"] == "85520809984"
    assert modes_known[devices[2].address]["problem"] == "NVML does not respond for this GPU"


@pytest.mark.slow
def test_a_driver_that_hangs_costs_the_gpus_only(nvml_host: NvmlHost) -> None:
    """nvmlInit of a driver with a dead GSP never returned."""
    nvml_host.play(host=f"block nvmlInitWithFlags file {nvml_host.folder / 'never'}")
    host = hosts.unpack("plain-vm", nvml_host.folder)
    command = [sys.executable, "-m", "gangline.agent.inventory", "--seconds", "3"]
    command += [
        "--sys",
        str(host.roots.sys),
        "--proc",
        str(host.roots.proc),
        "--nvml",
        f"{nvml_host.roots.nvml_library}",
    ]
    listing = inventory.parse(*inventory.run_child(command, GUARD_SECONDS))
    assert listing.reason == "GPUs: no answer within 3 s"
    assert set(of_kind(listing, "disk")) == {"vda"}


@pytest.mark.parametrize("listed", [True, False])
def test_a_gpu_that_is_not_to_be_touched_is_not(nvml_host: NvmlHost, listed: bool) -> None:
    """The child opened a quarantined GPU every ten minutes, hung, and blocked its reset."""
    devices = gpus(3)
    for call in ("ByPciBusId_v2", "ByIndex_v2"):
        devices[1].lines.append(
            f"block nvmlDeviceGetHandle{call} file {nvml_host.folder / 'never'}"
        )
    nvml_host.play(devices, is_listed=listed)
    left_out = frozenset((devices[1].address,))
    listing = inventory.read(nvml_host.roots, 10, lambda: left_out)
    assert (listing.reason, listing.left_out) == ("", left_out)
    known = {devices[0].uuid, devices[2].uuid} if listed else set[str]()
    assert of_kind(listing, "gpu").keys() == known


def test_when_all_are_let_go_of_the_library_is_not_even_loaded(nvml_host: NvmlHost) -> None:
    """`nvmlInit` opens the driver's control node, which made an unload of the driver fail."""
    nvml_host.play(host=f"block nvmlInitWithFlags file {nvml_host.folder / 'never'}")
    listing = inventory.read(nvml_host.roots, 10, lambda: None)
    assert (listing.reason, listing.left_out, of_kind(listing, "gpu")) == ("", None, {})


@pytest.mark.parametrize("seen", ["at once", "while it runs"])
def test_a_child_that_has_a_gpu_is_ended_for_its_release(nvml_host: NvmlHost, seen: str) -> None:
    """`release` came while the child was using that GPU, which was released seconds later or never."""
    fifo, roots = nvml_host.folder / "held", nvml_host.roots
    os.mkfifo(fifo)
    nvml_host.play(host=f"block nvmlInitWithFlags fifo {fifo}")
    avoided: list[inventory.ExcludedGpus] = [frozenset()]
    if seen == "at once":  # between the start and its registration
        answers = iter([frozenset[str]()])
        listing = inventory.read(roots, 60, lambda: next(answers, None))
    else:
        done: list[inventory.Inventory] = []
        thread = threading.Thread(
            target=lambda: done.append(inventory.read(roots, 60, lambda: avoided[0]))
        )
        thread.start()
        held = os.open(fifo, os.O_WRONLY)  # returns once the child is in the driver
        inventory.interrupt(frozenset())
        assert thread.is_alive(), "it touches nothing that is let go of"
        avoided[0] = frozenset(("0000:1b:00.0",))
        inventory.interrupt(avoided[0])
        thread.join(GUARD_SECONDS)
        os.close(held)
        (listing,) = done
    assert listing.reason == "stopped, because GPUs are released or skipped"
    assert inventory._running is None


def test_nvml_addresses_are_written_as_sysfs_does() -> None:
    """NVML writes eight digits of domain, sysfs four: the GPU and its PCIe function never matched."""
    assert sysfs_address(b"00000000:18:00.0") == "0000:18:00.0"
    assert sysfs_address("00010000:B7:00.0") == "10000:b7:00.0"


def test_a_host_without_hardware_has_an_inventory_of_nothing() -> None:
    """No /sys, no /proc, no NVML: empty, and not an error."""
    nowhere = Path("/nowhere")
    listing = inventory.read(Roots(nowhere, nowhere, "/nowhere/libnvidia-ml.so.1"))
    assert (listing.devices, listing.labels, listing.reason) == ((), {}, "")
