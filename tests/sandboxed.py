"""Runs a command under what a systemd unit allows, as far as a process can take it upon itself.

    setpriv ... python -m tests.sandboxed UNIT COMMAND...

The unit's filter of system calls, its address families and MemoryDenyWriteExecute are set here; user, capabilities
and NoNewPrivileges are for `setpriv` (`as_unit`). Not played: device access (a cgroup), views of the file system.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import struct
import subprocess
import sys
from pathlib import Path

HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
#: An unused number: the tests need no real user.
USER = 64_017
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1
AUDIT_ARCH_X86_64 = 0xC000003E
ALLOW, EPERM = 0x7FFF0000, 0x00050001
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
#: Offsets in struct seccomp_data.
NUMBER, ARCH, FIRST_ARGUMENT = 0, 4, 16


def settings(unit: Path) -> list[tuple[str, str]]:
    """Return the unit's settings, in order, without sections."""
    lines = (line.partition("=") for line in unit.read_text().splitlines() if line[:1].isalpha())
    return [(name, value) for name, _, value in lines]


def words_of(unit: Path, name: str) -> list[str]:
    """Return all values of a setting, over all of its lines."""
    return [word for key, value in settings(unit) if key == name for word in value.split()]


def as_unit(unit: Path, command: list[str]) -> list[str]:
    """Return the command line that runs *command* as the unit would. For root."""
    capabilities = [
        name.removeprefix("CAP_").lower() for name in words_of(unit, "AmbientCapabilities")
    ]
    given = ",".join(f"+{name}" for name in capabilities)
    return [
        "setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups",
        f"--inh-caps=-all,{given}", f"--ambient-caps=-all,{given}", f"--bounding-set=-all,{given}",
        "--no-new-privs", sys.executable, "-m", "tests.sandboxed", str(unit), *command,
    ]  # fmt: skip


def allowed_calls(unit: Path) -> set[str]:
    """Return the system calls that the unit allows. Raises OSError without systemd-analyze."""
    allowed: set[str] = set()
    for key, value in settings(unit):
        if key == "SystemCallFilter":
            names = {call for word in value.removeprefix("~").split() for call in _calls(word)}
            allowed = allowed - names if value.startswith("~") else allowed | names
    return allowed | _calls("@default")


def _calls(word: str) -> set[str]:
    if not word.startswith("@"):
        return {word}
    command = ["systemd-analyze", "--no-pager", "syscall-filter", word]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    members = [line.split()[0] for line in output.splitlines() if line.startswith(" ")]
    return {call for member in members if member != "#" for call in _calls(member)}


def program(unit: Path) -> bytes:
    """Return the filter as classic BPF."""
    numbers = dict(re.findall(r"#define __NR_(\w+) (\d+)", HEADER.read_text()))
    calls = allowed_calls(unit)
    families = [int(getattr(socket, name)) for name in words_of(unit, "RestrictAddressFamilies")]
    steps = [(LOAD, 0, 0, ARCH), (EQUAL, 1, 0, AUDIT_ARCH_X86_64), (RETURN, 0, 0, EPERM)]
    steps += [(LOAD, 0, 0, NUMBER)]
    for name in sorted(calls & numbers.keys() - {"socket"}):
        steps += [(EQUAL, 0, 1, int(numbers[name])), (RETURN, 0, 0, ALLOW)]
    steps += [(EQUAL, 1, 0, int(numbers["socket"])), (RETURN, 0, 0, EPERM)]
    steps += [(LOAD, 0, 0, FIRST_ARGUMENT)]
    for family in families:
        steps += [(EQUAL, 0, 1, family), (RETURN, 0, 0, ALLOW)]
    steps += [(RETURN, 0, 0, EPERM)]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def confine(unit: Path) -> None:
    """Set both for this process. Raises OSError if the kernel lacks them."""
    library = ctypes.CDLL(None, use_errno=True)
    code = program(unit)
    buffer = ctypes.create_string_buffer(code, len(code))
    filters = _Program(len(code) // 8, ctypes.addressof(buffer))
    if library.prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_MDWE")
    if library.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filters), 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_SECCOMP")


if __name__ == "__main__":
    confine(Path(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
