"""`python -m tests.contract.signals_page`: prints the catalogue of signals as the page
docs/signals.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from gangline.contract.signals import SIGNAL_GROUPS, SIGNALS, TABLES, Kind, Signal, SignalGroup

_HEAD = """# Signals

`make docs` writes this page from `contract/signals`. A signal belongs to the table of its device kind and pace, and is
a column of the DuckDB view `readings.TABLE`. Tables that end in `_changes` have a device's row when one of its counters
changes. The whole table is sent every 60 s and after each connection. `sticks` means that the hardware counter stays at
the ceiling of its width instead of wrapping.

A value that cannot be read is missing: neither zero nor healthy. A collector is `no-data` if this host does not have
its devices. It is `blind`, completely or in part, if it may not read them. `gangline explain HOST` shows the reason,
and this table shows the remedy:

| blind to | remedy |
|---|---|
| the kernel log, where `kernel.dmesg_restrict` is 1 | `CAP_SYSLOG` |
| processes of others that hold a GPU and are stuck | `CAP_SYS_PTRACE`; `/proc` mounted without `hidepid` |
| NVMe wear and media errors (SMART log page 02h) | `CAP_SYS_ADMIN`, `CAP_DAC_READ_SEARCH` and the devices `/dev/nvme*` |
| MaxReadReq, MaxPayload and ACS of PCIe functions | `CAP_SYS_ADMIN` |
| RAPL energy since Linux 5.10, Lustre's statistics in debugfs | `CAP_DAC_READ_SEARCH` |
| driver statistics of some NICs | `CAP_NET_ADMIN` |
| the clock, under `ProtectClock=yes` of systemd | `ProtectClock=no` |
| MIG instances of others, and whole-GPU counters under MIG | the device of `/proc/driver/nvidia/capabilities/mig/monitor` |
| GPUs | read and write on `/dev/nvidiactl` and `/dev/nvidia[0-9]*` |

A host does not show these, so they have no signal: FEC and bit errors of InfiniBand links, and the kind of HBM of a
GPU. Errors of the NVLink switches of an NVL72 rack are only in the logs of their trays.
"""


def _row(signal: Signal) -> str:
    width = f"{signal.width_bits} bits{', sticks' if signal.sticks else ''}"
    kind = signal.kind + (f", {width}" if signal.kind is Kind.COUNTER else "")
    description = signal.description.replace("|", "\\|")
    return f"| {signal.signal_id} | `{signal.column}` | {kind} | {signal.source} | {description} |"


def page() -> str:
    events = [signal for signal in SIGNALS if signal.kind is Kind.EVENT]
    parts = [_HEAD, *map(_group, SIGNAL_GROUPS)]
    parts.append(
        "## Events (fast lane)\n\nThe agent sends each event immediately. The aggregator acknowledges it once it is on disk.\n"
    )
    parts.append(_table("events", events))
    return "\n".join(parts)


def _group(group: SignalGroup) -> str:
    """Return the section of one kind of device: the text of its file, and its tables."""
    text = group.text.strip()
    kinds = {signal.device_kind for signal in group.signals if signal.kind is not Kind.EVENT}
    tables = [name for name, signals in TABLES.items() if signals[0].device_kind in kinds]
    return "\n".join([f"## {group.name}\n\n{text}\n", *(_table(t, TABLES[t]) for t in tables)])


def _table(name: str, signals: Sequence[Signal]) -> str:
    rows = "\n".join(map(_row, signals))
    return f"### {name}\n\n| id | signal | kind | source | tells |\n|---|---|---|---|---|\n{rows}\n"


if __name__ == "__main__":
    print(page(), end="")
