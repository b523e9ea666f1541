"""A slice of the injected table (`bench/quality/injected*.py`): one fault, one look-alike, real processes."""

from __future__ import annotations

import select
import socket
from pathlib import Path

from bench.quality.injected import Round, page
from bench.quality.injected_cable import Cable
from bench.quality.injected_faults import KINDS, Kind
from bench.quality.injected_hosts import MEMORY, folder
from bench.quality.injected_stage import Stage
from gangline.aggregator.verdicts import Reason, State
from tests.hosts import NO_NVML
from tests.processes import GUARD_SECONDS

#: What the kernel's log says needs neither the inventory nor NVML, and a stand-in is long in the making.
FAST = {"collectors_off": '["inventory"]', "nvml_library": NO_NVML}


def kind_of(words: str) -> Kind:
    (found,) = (kind for kind in KINDS if words in kind.name)
    return found


def test_a_gpu_off_the_bus_is_named_on_its_host_and_a_programs_fault_on_none(
    tmp_path: Path,
) -> None:
    """The table says how often, and how fast; this, that it is made by what it says it is."""
    kinds = kind_of("XID 79, off"), kind_of("XID 43")
    with folder(MEMORY) as hosts, Stage(tmp_path, hosts, kinds, 1, judge_seconds=0.2) as stage:
        fault, control = stage.subjects

        def told() -> bool:
            heard = {host.node for host in stage.listing() for it in host.contributions if it.signal == "gpu.xid"}  # fmt: skip
            return fault.named_seconds is not None and f"nodes/{control.host.name}" in heard

        stage.open(**FAST)
        stage.until_answered()
        stage.play(GUARD_SECONDS, told, apart_seconds=0.0)
        stage.look()
        assert told()
        stage.aggregator.kill()
        stage.look()
        assert stage.unanswered == 1 and fault.state is State.UNHEALTHY
        said = page([Round(stage.subjects, stage.asked, stage.unanswered)], 1)
    assert (fault.named, fault.named_for) == (State.UNHEALTHY, Reason.XID_FATAL)
    assert "XID 79: GPU has fallen off the bus" in fault.words
    assert not fault.others and not control.others
    assert "times; 1 times it did not answer" in said
    rows = {line.split("|")[1].strip(): line for line in said.splitlines() if line[:1] == "|"}
    assert "1 of 1" in rows[fault.kind.name] and "UNHEALTHY, XID_FATAL" in rows[fault.kind.name]
    assert "0 of 1" in rows[control.kind.name] and "nothing" in rows[control.kind.name]


def test_a_cut_wire_loses_nothing() -> None:
    """A relay that drops what it held back would test the agent's spool with a fault that no network has."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        cable = Cable(server.getsockname()[1])
        with socket.create_connection(("127.0.0.1", cable.port)) as here:
            there, _ = server.accept()
            with there:
                there.settimeout(GUARD_SECONDS)
                here.sendall(b"one ")
                assert there.recv(100) == b"one "
                cable.cut()
                here.sendall(b"two ")
                assert not select.select([there], [], [], 0.1)[0]
                cable.mend()
                assert there.recv(100) == b"two "
        cable.close()
