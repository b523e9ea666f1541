"""Services: unit files, cgroups and processes of host folders."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.collector import CollectOutcome, NoData, run_collector
from gangline.agent.collectors.settings import Services
from gangline.agent.hardware import services
from gangline.agent.hardware.files import Roots
from gangline.agent.hardware.services import SERVICES, Service
from tests import hosts
from tests.hosts.reading import StoppedClock, rows_of


def stat(number: int, name: str, start: int) -> str:
    fields = [1, number, number, 0, -1, 0, *[0] * 12, start, *[0] * 5]
    return f"{number} ({name}) S {' '.join(map(str, fields))}\n"


def states(collector: Services) -> dict[str, tuple[float | int | None, float | int | None]]:
    result = dict(rows_of(collector.collect()[0]))
    return {n: (v["running_state"], v["enabled_state"]) for n, v in result.items() if v}


def test_services_of_a_host(host: hosts.HostFolder) -> None:
    """Fabric Manager runs; IMEX is enabled and does not; chronyd is masked: no row."""
    assert states(Services(host.roots)) == {
        "nvidia-fabricmanager": (1, 1),
        "nvidia-persistenced": (1, 0),
        "nvidia-imex": (2, 1),
        "openibd": (1, 0),
        "slurmd": (1, 0),
    }


def test_a_service_that_ends_and_one_that_is_started_again(host: hosts.HostFolder) -> None:
    """Fabric Manager crashed at night. After a restart its time starts at 0."""
    collector = Services(host.roots)
    before = dict(rows_of(collector.collect()[0]))["nvidia-fabricmanager"]
    group = host.roots.sys / "fs/cgroup/system.slice/nvidia-fabricmanager.service"
    shutil.rmtree(host.roots.proc / "900")
    (group / "cgroup.procs").write_text("")
    (group / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    assert states(collector)["nvidia-fabricmanager"] == (2, 1)
    (host.roots.proc / "950").mkdir()
    (host.roots.proc / "950/stat").write_text(stat(950, "nv-fabricmanage", start=86_400_000))
    (group / "cgroup.procs").write_text("950\n")
    after = dict(rows_of(collector.collect()[0]))["nvidia-fabricmanager"]
    assert before and after and after["running_state"] == 1
    assert before["running_seconds"] == 863979.25 and after["running_seconds"] == 0.25


def test_a_host_that_systemd_does_not_run(host: hosts.HostFolder) -> None:
    """In a container unit files exist but are never started: only running services count."""
    shutil.rmtree(host.roots.run / "systemd/system")
    assert "nvidia-imex" not in states(Services(host.roots))
    assert states(Services(host.roots))["slurmd"][0] == 1


def test_a_host_without_these_services_has_no_data(tmp_path: Path) -> None:
    """Also without /proc: the units of this machine do not count."""
    with pytest.raises(NoData, match="nvidia-fabricmanager"):
        Services(hosts.unpack("h100-ib", tmp_path).roots)  # the folder is created, then emptied
        for name in ("900", "901", "902"):
            shutil.rmtree(tmp_path / "proc" / name)
        shutil.rmtree(tmp_path / "run")
        shutil.rmtree(tmp_path / "sys/fs")
        Services(Roots(tmp_path / "sys", tmp_path / "proc", run=tmp_path / "run")).collect()
    with pytest.raises(NoData, match="no process"):
        Services(Roots(Path("/nowhere"), Path("/nowhere"))).collect()


@given(
    st.binary(max_size=60)
    | st.sampled_from([b"populated 1\n", b"populated 0\nfrozen 0", b"populated 7"])
)
def test_any_text_of_a_cgroup(data: bytes) -> None:
    """`max`, a process of another namespace (0), a file cut off: no process is invented."""
    parsed = services.parse_populated(data)
    assert parsed is None or (b"populated %d" % parsed) in data
    assert all(0 < n < 1 << 64 for n in services.parse_processes(data))
    assert services.parse_populated(None) is None and services.parse_processes(None) == []


def test_names_of_services_are_found_in_proc() -> None:
    """The kernel keeps 15 bytes of a name: `nvidia-persistenced` in full was never found."""
    assert all(len(service.process) <= 15 for service in SERVICES)
    assert len({service.name for service in SERVICES}) == len(SERVICES)
    assert all(unit.endswith(".service") for service in SERVICES for unit in service.units)


def test_cgroups_of_v1_hybrid_and_v2(tmp_path: Path) -> None:
    """One unit by each of the three trees; processes in cgroups below it also count."""
    service = Service("slurmd", ("slurmd.service",), "slurmd")

    def processes() -> list[int] | None:
        return services.processes_of_unit(services.groups_of_units(tmp_path), service)

    assert processes() is None
    for tree in ("systemd", "unified", "."):
        folder = tmp_path / "fs/cgroup" / tree / "system.slice/slurmd.service"
        folder.mkdir(parents=True)
        (folder / "cgroup.procs").write_text("12\n13\n")
        assert processes() == [12, 13]
        shutil.rmtree(folder)
    folder.mkdir()
    (folder / "cgroup.procs").write_text("")
    (folder / "cgroup.events").write_text("populated 1\n")
    assert processes() == []


def test_services_of_a_proc_that_hides_processes(host: hosts.HostFolder) -> None:
    """hidepid=invisible: IMEX ran in a container, and was reported as failed."""
    shutil.rmtree(host.roots.proc / "1")
    turn = run_collector(Services(host.roots), StoppedClock())
    assert turn.outcome is CollectOutcome.BLIND and "hidepid" in turn.message
    result = dict(rows_of(turn.blocks[0]))
    fabric, imex = result["nvidia-fabricmanager"], result["nvidia-imex"]
    assert fabric and fabric["running_state"] == 1  # its cgroup shows it
    assert imex and imex["running_state"] is None and imex["enabled_state"] == 1


def test_hidden_processes_are_not_the_absence_of_services(tmp_path: Path) -> None:
    """Nothing installed on the host, all in containers, all hidden: `no-data` would look healthy."""
    (tmp_path / "proc/4711").mkdir(parents=True)
    (tmp_path / "proc/4711/stat").write_text(stat(4711, "agent", 5))
    roots = Roots(tmp_path / "sys", tmp_path / "proc", run=tmp_path / "run")
    turn = run_collector(Services(roots), StoppedClock())
    assert turn.outcome is CollectOutcome.BLIND and "hidepid" in turn.message


def test_a_daemon_that_took_its_name_after_the_first_look(host: hosts.HostFolder) -> None:
    """systemd forks, then executes: the process was seen as `(kubelet)` before it was kubelet."""
    process = host.roots.proc / "960/stat"
    process.parent.mkdir()
    process.write_text(stat(960, "(kubelet)", 9000))
    collector = Services(host.roots)
    assert "kubelet" not in states(collector)
    process.write_text(stat(960, "kubelet", 9000))
    assert states(collector)["kubelet"] == (1, 0)
