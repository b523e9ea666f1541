"""The kernel's refusal by device rules: a cgroup with a deny-all BPF program, as by systemd."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gangline.agent.hardware.nvidia import device_rules_deny
from tests.processes import GUARD_SECONDS

#: bpf(2) on x86_64 and its commands; linux/bpf.h.
SYS_BPF, PROG_LOAD, PROG_ATTACH = 321, 5, 8
CGROUP_DEVICE_PROGRAM, CGROUP_DEVICE = 15, 6
#: r0 = 0; exit
DENY_ALL = struct.pack("<BBhi", 0xB7, 0, 0, 0) + struct.pack("<BBhi", 0x95, 0, 0, 0)
#: Moves itself into a cgroup, and tests the device.
INSIDE = """
import os, sys
from pathlib import Path
from gangline.agent.hardware.nvidia import device_rules_deny
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
print(device_rules_deny(Path(sys.argv[2])))
"""


def bpf(command: int, attributes: bytes) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(attributes, 128)
    result = libc.syscall(SYS_BPF, command, buffer, len(buffer))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


@pytest.fixture
def closed_cgroup(tmp_path: Path) -> Iterator[Path]:
    """Yield a cgroup that may open no device."""
    with ExitStack() as stack:
        try:
            top = tmp_path / "cgroup2"
            top.mkdir()
            subprocess.run(["mount", "-t", "cgroup2", "none", str(top)], check=True, capture_output=True)  # fmt: skip
            stack.callback(subprocess.run, ["umount", str(top)], check=True)
            group = top / f"gangline-test-{os.getpid()}"
            group.mkdir()
            stack.callback(group.rmdir)
            code, licence = ctypes.create_string_buffer(DENY_ALL), ctypes.create_string_buffer(b"GPL")  # fmt: skip
            load = struct.pack("<IIQQ", CGROUP_DEVICE_PROGRAM, 2, ctypes.addressof(code), ctypes.addressof(licence))  # fmt: skip
            program = bpf(PROG_LOAD, load)
            stack.callback(os.close, program)
            folder = os.open(group, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, folder)
            bpf(PROG_ATTACH, struct.pack("<IIII", folder, program, CGROUP_DEVICE, 0))
            os.mknod(tmp_path / "nvidiactl", 0o020666, os.makedev(1, 3))  # /dev/null's number
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"needs root, cgroup v2 and bpf(2), x86_64: {error}")
        yield group


def test_the_kernel_says_eperm(tmp_path: Path, closed_cgroup: Path) -> None:
    """NVML reports this as `Unknown Error` (nvidia-docker #1671)."""
    assert not device_rules_deny(tmp_path)
    ended = subprocess.run(
        [sys.executable, "-c", INSIDE, str(closed_cgroup), str(tmp_path)],
        check=False, capture_output=True, text=True, timeout=GUARD_SECONDS,
    )  # fmt: skip
    assert ended.stdout == "True\n", ended.stderr
