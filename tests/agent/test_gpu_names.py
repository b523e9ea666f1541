"""GPUs by the names that people use, and the processes with open device nodes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.hardware.open_handles import (
    OpenHandle,
    agent_processes,
    blocking,
    every_process,
    node_of,
    nodes_of,
    open_handles,
    open_nodes,
    parse_gpu_minor,
)
from gangline.agent.local.agent_service import (
    NAMES_MAX,
    NotAGpu,
    addresses_of,
    canonical_name,
    known_gpus,
)

UUID = "GPU-8f6d2a1c-0b3e-4d5f-9a7b-1c2d3e4f5a6b"
KNOWN = {"0000:1b:00.0": UUID, "0000:9b:00.0": ""}


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("0000:9b:00.0", "0000:9b:00.0"),
        ("00000000:9B:00.0", "0000:9b:00.0"),  # nvidia-smi
        ("PCI:0000:9b:00", "0000:9b:00.0"),  # the driver's lines
        ("9b:00.0", "0000:9b:00.0"),  # lspci
        ("9B:00", "0000:9b:00.0"),
        (" 0009:01:00.0 ", "0009:01:00.0"),  # GH200 has domains
        ("00010001:01:00.0", "10001:01:00.0"),  # Hyper-V, and VMD, have long ones
        (UUID, UUID),
        (UUID.upper(), UUID),
    ],
)
def test_every_spelling_that_a_tool_shows_is_understood(typed: str, name: str) -> None:
    assert canonical_name(typed) == name


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("0", "'0' is an index, which may change when a GPU is lost"),
        ("17", "is an index"),
        ("MIG-8f6d2a1c-0b3e-4d5f-9a7b-1c2d3e4f5a6b", "is a MIG instance: name the GPU"),
        ("GPU-8f6d", "expected a UUID (GPU-...) or a PCI address (0000:9b:00.0)"),
        ("0000:9b:20.0", "expected a UUID"),
        ("", "expected a UUID"),
        ("x" * 5000, "expected a UUID"),
        ("٣", "is an index"),
    ],
)
def test_what_names_no_gpu_is_said_with_what_would(typed: str, message: str) -> None:
    """`release 0` on a host whose GPU 0 fell off the bus would take another job's GPU."""
    with pytest.raises(NotAGpu, match=re.escape(message)) as raised:
        canonical_name(typed)
    assert len(str(raised.value)) < 300


@given(st.text(max_size=80))
def test_whatever_is_typed_is_a_name_or_refused(typed: str) -> None:
    try:
        name = canonical_name(typed)
    except NotAGpu as error:
        assert str(error).isprintable()
    else:
        assert canonical_name(name) == name


def test_names_become_addresses_of_this_host() -> None:
    assert addresses_of([UUID, "9b:00", "0000:9B:00.0"], KNOWN) == KNOWN.keys()
    with pytest.raises(
        NotAGpu, match=r"0000:ff:00.0: this host has no such GPU; it has 0000:1b:00.0 GPU-8f"
    ):
        addresses_of(["ff:00.0"], KNOWN)  # fmt: skip
    with pytest.raises(NotAGpu, match="it has none"):
        addresses_of([UUID], {})
    assert addresses_of(["ff:00.0"], {}) == {"0000:ff:00.0"}, "no driver: nothing to check against"
    with pytest.raises(NotAGpu, match=f"{NAMES_MAX + 1} names, at most {NAMES_MAX}"):
        addresses_of(["9b:00"] * (NAMES_MAX + 1), KNOWN)


def test_the_drivers_own_list_gives_nodes_and_uuids(tmp_path: Path) -> None:
    for address, text in (
        ("0000:1b:00.0", f"GPU UUID: \t {UUID}\nDevice Minor: \t 3\n"),
        ("0000:9b:00.0", "GPU UUID: \t GPU-????????-????-????-????-????????????\n"),
    ):
        folder = tmp_path / "driver/nvidia/gpus" / address
        folder.mkdir(parents=True)
        (folder / "information").write_text(text)
    assert nodes_of(tmp_path) == {"nvidia3": "0000:1b:00.0"}
    assert known_gpus(tmp_path) == KNOWN
    assert parse_gpu_minor("Device Minor: \t 255\n") == 255
    assert parse_gpu_minor("Device Minor: \t ?\n") is None


@pytest.mark.parametrize(
    ("target", "node"),
    [
        ("/dev/nvidia0", "nvidia0"),
        ("/dev/nvidia12 (deleted)", "nvidia12"),
        ("/fake/dev/nvidiactl", "nvidiactl"),
        ("/dev/nvidia-uvm", "nvidia-uvm"),
        ("/dev/nvidia-caps/nvidia-cap21", "nvidia-caps/nvidia-cap21"),
        ("/dev/nvidia", ""),
        ("/dev/nvidia0.log", ""),
        ("/home/me/nvidia0", ""),
        ("nvidia0", ""),
        ("socket:[4711]", ""),
    ],
)
def test_a_descriptors_link_names_a_node_of_the_driver(target: str, node: str) -> None:
    assert node_of(target, Path("/fake/dev")) == node


def test_a_process_that_holds_a_node_is_found_and_named(tmp_path: Path) -> None:
    """A real process with a real descriptor, like `fuser` finds it."""
    dev = tmp_path / "dev"
    dev.mkdir()
    (dev / "nvidia5").touch()
    code = f"f = open({str(dev / 'nvidia5')!r}); print('open', flush=True); input(); f.close(); print('closed', flush=True); input()"
    proc = Path("/proc")
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin and child.stdout
        assert child.stdout.readline() == "open\n"
        assert open_nodes(proc, child.pid, dev) == {"nvidia5"}
        own = list(agent_processes(proc))
        assert own[0] == os.getpid() and child.pid in own
        assert child.pid in set(every_process(proc))
        handles = open_handles(proc, dev, iter(own)).found
        assert [(h.process_id, h.node) for h in handles] == [(child.pid, "nvidia5")]
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "closed\n"
        assert open_nodes(proc, child.pid, dev) == set()
        child.stdin.write("\n")
    assert open_nodes(proc, child.pid, dev) == set(), "gone"
    assert child.pid not in list(agent_processes(proc))


def test_hidden_processes_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "12/fd").mkdir(parents=True)

    def closed(path: object) -> list[str]:
        raise PermissionError(13, "not for you")

    monkeypatch.setattr(os, "listdir", closed)
    assert open_handles(tmp_path, tmp_path, iter([12])) == ((), 1)


def test_who_is_in_the_way_depends_on_what_is_to_be_done() -> None:
    """Resetting one GPU needs only that GPU; unloading the driver needs all, and the control node."""
    nodes = {"nvidia0": "0000:1b:00.0", "nvidia1": "0000:9b:00.0"}
    handles = tuple(
        OpenHandle(7, "python", node) for node in ("nvidia0", "nvidiactl", "nvidia-uvm")
    )
    assert blocking(handles, nodes, frozenset(("0000:1b:00.0",))) == [(handles[0], "0000:1b:00.0")]
    assert blocking(handles, nodes, frozenset(("0000:9b:00.0",))) == []
    assert [address for _, address in blocking(handles, nodes, None)] == ["0000:1b:00.0", "", ""]
