"""Reads a recorded host twice: by the collectors, and by a few independent lines of Python."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gangline.agent.collector import run_collector
from gangline.agent.hardware.files import Roots
from tests.fuzzing.hosts import Reading, look_around, reading_of
from tests.hosts import NO_NVML
from tests.hosts.reading import StoppedClock, collectors_of

#: Not part of the project: tests that need it are skipped if it is missing.
DATA = Path(__file__).parents[2] / "../shared/data"
Row = dict[str, float | int | None]

#: Column -> file below a port, and the factor of its number.
PORT = {
    "received_bytes": ("counters/port_rcv_data", 4),
    "transmitted_bytes": ("counters/port_xmit_data", 4),
    "received_packets": ("counters/port_rcv_packets", 1),
    "transmitted_packets": ("counters/port_xmit_packets", 1),
    "transmit_wait_count": ("counters/port_xmit_wait", 1),
    "symbol_errors": ("counters/symbol_error", 1),
    "link_downed_events": ("counters/link_downed", 1),
    "link_recovery_events": ("counters/link_error_recovery", 1),
    "receive_errors": ("counters/port_rcv_errors", 1),
    "transmit_discards_packets": ("counters/port_xmit_discards", 1),
    "local_link_integrity_errors": ("counters/local_link_integrity_errors", 1),
    "buffer_overrun_errors": ("counters/excessive_buffer_overrun_errors", 1),
    "vl15_dropped_packets": ("counters/VL15_dropped", 1),
    "unicast_received_packets": ("counters/unicast_rcv_packets", 1),
    "ack_timeout_errors": ("hw_counters/local_ack_timeout_err", 1),
    "packet_sequence_errors": ("hw_counters/packet_seq_err", 1),
    "out_of_sequence_packets": ("hw_counters/out_of_sequence", 1),
    "duplicate_requests_packets": ("hw_counters/duplicate_request", 1),
    "receiver_not_ready_errors": ("hw_counters/rnr_nak_retry_err", 1),
    "request_completion_errors": ("hw_counters/req_cqe_error", 1),
}
RDMA_TABLES = ("rdma_1s", "rdma_1s_changes", "rdma_10s", "rdma_10s_changes")
AER = {
    "aer_dev_correctable": {
        "RxErr": "aer_receiver_errors", "BadTLP": "aer_bad_tlp_errors", "BadDLLP": "aer_bad_dllp_errors",
        "Rollover": "aer_replay_rollover_errors", "Timeout": "aer_replay_timer_errors",
        "TOTAL_ERR_COR": "aer_correctable_errors",
    },
    "aer_dev_nonfatal": {
        "CmpltTO": "aer_nonfatal_completion_timeout_errors", "TLP": "aer_nonfatal_poisoned_tlp_errors",
        "TOTAL_ERR_NONFATAL": "aer_nonfatal_errors",
    },
    "aer_dev_fatal": {"SDES": "aer_fatal_surprise_down_errors", "TOTAL_ERR_FATAL": "aer_fatal_errors"},
}  # fmt: skip


def roots_at(root: Path) -> Roots:
    return Roots(root / "sys", root / "proc", NO_NVML, dev=root / "dev", run=root / "run")


def read_tree(roots: Roots) -> Reading:
    """Take two turns of every collector, and the inventory."""
    collectors = collectors_of(roots)
    first = [run_collector(collector, StoppedClock()) for collector in collectors]
    second = [run_collector(collector, StoppedClock()) for collector in collectors]
    reading = reading_of(first, second)
    look_around(roots, reading)
    for collector in collectors:
        getattr(collector, "close", lambda: None)()
    return reading


def rows(reading: Reading, *tables: str) -> dict[str, Row]:
    result: dict[str, Row] = {}
    for (table, device, column), value in reading.cells.items():
        if table in tables:
            result.setdefault(device, {})[column] = value
    return result


def word(path: Path) -> str:
    return (
        (path.read_text(errors="replace").split() or [""])[0].rstrip(":") if path.is_file() else ""
    )


def lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()


def number(path: Path, factor: float = 1) -> float | None:
    """Return the number in a file, times *factor*; None for any other text."""
    text = path.read_text(errors="replace").strip() if path.is_file() else ""
    return float(text) * factor if re.fullmatch(r"-?\d+", text) else None


def close_to(value: float | None) -> object:
    return None if value is None else pytest.approx(value, rel=1e-12)


def unpack_ttar(archive: Path, folder: Path) -> None:
    """Unpack folders, files and links of a `ttar` archive.

    `EOF` ends a file without a final line feed.
    """
    text_lines = iter(archive.read_text(errors="surrogateescape").split("\n"))
    path = folder
    for line in text_lines:
        key, _, value = line.partition(": ")
        if key in ("Directory", "Path"):
            path = folder / value
            (path if key == "Directory" else path.parent).mkdir(parents=True, exist_ok=True)
        elif key == "SymlinkTo":
            path.symlink_to(value)
        elif key == "Lines":
            text = "".join(f"{next(text_lines)}\n" for _ in range(int(value)))
            text = text.removesuffix("EOF\n").replace("NULLBYTE", "\0")
            path.write_text(text, errors="surrogateescape")


def assert_ports(folder: Path, found: dict[str, Row]) -> None:
    """Compare every port below *folder* with the rows."""
    ports = {f"{port.parts[-3]}/{port.name}": port for port in folder.glob("*/ports/*")}
    assert set(found) == set(ports)
    for device, port in ports.items():
        row = found[device]
        for column, (file, factor) in PORT.items():
            assert row[column] == number(port / file, factor), (device, column)
        assert row["port_state"] == int(word(port / "state"))
        assert row["physical_state"] == int(word(port / "phys_state"))
        rate = re.match(r"([\d.]+) Gb/sec", (port / "rate").read_text())
        assert rate and row["rate_bytes_per_second"] == close_to(float(rate[1]) * 1e9 / 8)


def assert_functions(sys: Path, found: dict[str, Row]) -> None:
    """Compare each PCIe function with its files."""
    for address, row in found.items():
        folder = sys / "bus/pci/devices" / address
        speed = (
            re.match(r"([\d.]+) GT/s", (folder / "current_link_speed").read_text())
            if (folder / "current_link_speed").exists()
            else None
        )
        assert row["class_code"] == int(word(folder / "class"), 16)
        if row["link_width_max_lanes"] is not None:
            assert row["link_speed_transfers_per_second"] == (
                close_to(float(speed[1]) * 1e9) if speed else None
            )
            assert row["link_width_lanes"] == number(folder / "current_link_width")
        node = number(folder / "numa_node")
        assert row["numa_node_number"] == (node if node is not None and node >= 0 else None)
        for file, columns in AER.items():
            fields = dict(map(str.split, lines(folder / file))) if (folder / file).is_file() else {}
            for name, column in columns.items():
                assert row[column] == (int(fields[name]) if name in fields else None), (
                    address,
                    name,
                )


def cores_of(text: str) -> set[int]:
    """Return the cores of `0-3,8`."""
    cores: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    return cores


def cores_of_mask(text: str) -> set[int]:
    """Return the cores of `00000000,0000000f`."""
    mask = int(text.strip().replace(",", ""), 16)
    return {bit for bit in range(mask.bit_length()) if mask >> bit & 1}
