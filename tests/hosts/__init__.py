"""Hosts that are folders: /sys and /proc of a kind of host, each in one text file beside this one.

The lines of such a file:

    /sys/class/net/eth0/mtu = 1500              a file of one line; `\\n` in it begins another
    /sys/class/net/eth0/device -> ../../../x    a symbolic link
    /sys/class/net/eth0/queues/                 an empty folder
    gpu_metrics ~ 1.8 curr_socket_power=640 ... a table of the amdgpu driver (`tests/amd_metrics.py`): its revision,
                                                and fields; `2094*8` and `1,0,1` are arrays, the rest is all ones
    [/sys/class/net/eth0]                       the folder of the names that follow:
      mtu = 1500
    # ...                                       a remark
    @later                                      what follows is the same host one second later

A file's content ends in a line feed, unless there is nothing after its `=`: then it is empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gangline.agent.hardware.files import Roots
from tests.amd_metrics import Value, pack, pack_described

HERE = Path(__file__).parent
NAMES = (
    "gb200-nvl72", "h100-ib", "h200-roce", "mi250x", "mi300x-cpx", "mi300x-spx", "mixed-vendors", "plain-vm",
)  # fmt: skip
LATER = "@later"
#: A name that no loader finds, so that the NVML of the machine which runs the tests is not asked.
NO_NVML = "no-nvml-here.so"


@dataclass(frozen=True)
class HostFolder:
    """A host that was unpacked."""

    root: Path
    name: str = ""
    later_lines: tuple[str, ...] = ()

    @property
    def roots(self) -> Roots:
        """Its /sys, /proc, /dev and /run, and no NVML."""
        root = self.root
        return Roots(root / "sys", root / "proc", NO_NVML, dev=root / "dev", run=root / "run")

    def pass_a_second(self) -> None:
        """Write the files of a second later."""
        _write(self.later_lines, self.root)


def unpack(name: str, root: Path) -> HostFolder:
    """Make the folder of host *name* below *root*."""
    lines = (HERE / f"{name}.txt").read_text().splitlines()
    split = lines.index(LATER) if LATER in lines else len(lines)
    _write(tuple(lines[:split]), root)
    return HostFolder(root, name, tuple(lines[split + 1 :]))


def _write(lines: tuple[str, ...], root: Path) -> None:
    folder = root
    for line in lines:
        if line.startswith("["):
            folder = root / line[2:-1]
        elif line and not line.startswith("#"):
            _make(root if line.startswith("/") else folder, *line.strip().partition(" ")[::2])


def _make(folder: Path, name: str, rest: str) -> None:
    place = folder / name.lstrip("/")
    (place if name.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
    sign, _, text = rest.partition(" ")
    if sign == "->":
        place.symlink_to(text)
    elif sign == "~":
        place.write_bytes(metrics_table(text))
    elif sign == "=":
        content = text.replace("\\n", "\n").replace("\\t", "\t")
        place.write_text(content + "\n" if content else "")


def metrics_table(text: str) -> bytes:
    """Return the table of a line `1.8 curr_socket_power=640 current_gfxclk=2094*8`."""
    revision, *pairs = text.split()
    values = {name: _numbers(number) for name, _, number in (pair.partition("=") for pair in pairs)}
    return pack_described(values, counters="Q") if revision == "1.9" else pack(revision, values)


def _numbers(text: str) -> Value:
    number, _, times = text.partition("*")
    if times:
        return [int(number)] * int(times)
    return [int(number) for number in text.split(",")] if "," in text else int(text)
