"""`gangline xid` as used at 3 a.m.: over ssh, in a narrow terminal, with a line pasted from dmesg."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from typing import Any

import pytest

from gangline import cli
from gangline.agent.commands.xid import WIDTH_MAX, WIDTH_MIN
from gangline.contract.xid.policy import policy, sxid_policy
from tests.processes import GUARD_SECONDS

GSP = (
    "[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, "
    "Timeout after 6s of waiting for RPC response from GPU4 GSP! Expected function 103 "
    "(GSP_RM_ALLOC) (0x2081 0x4)."
)
NETIR = "NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_DOWN Fatal XC0 i0 Link 01 (0x02100011 0x0)"
SWITCH = "nvidia-nvswitch0: SXid (PCI:0000:8b:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = cli.main(["xid", *arguments])
    return code, capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the command, which must fail with wrong usage; return its message."""
    with pytest.raises(SystemExit) as stop:
        cli.main(["xid", *arguments])
    assert stop.value.code == cli.USAGE
    return capsys.readouterr().err


def test_every_code_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    """57 codes had no reason; NVIDIA's own recommendation is also a reason."""
    for table in (policy(), sxid_policy()):
        for code, row in table.items():
            name = f"{'xid' if table is policy() else 'sxid'}:{code}"
            _, out = said(capsys, name)
            assert "  Why  " in out and "  Do  " in out, name
            assert row.why[:20] in out or f"as NVIDIA has it: {row.catalogue}" in out


def test_a_code_whose_line_decides_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """XID 154 read `ignored: means nothing by itself`, while its line asked for a reboot."""
    lines = {
        "74": "NVRM: Xid (PCI:0000:9b:00): 74, NVLink: fatal error detected on link 3(0x0, 0x0)",
        "144": "NVRM: Xid (PCI:0000:9b:00): 144, SAW_MVB Nonfatal XC0 i0 Link 0 (0x1 0x8 0x0)",
        "154": "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 "
        "(Node Reboot Required)",
        "sxid:20034": SWITCH,
    }
    for code, line in lines.items():
        _, out = said(capsys, code)
        assert "ass the whole line" in " ".join(out.split())
        _, out = said(capsys, line)
        assert "ass the whole line" not in " ".join(out.split())
    _, out = said(capsys, "154")
    assert "means nothing" not in out and "reboot: fatal" in " ".join(out.split())
    _, out = said(capsys, "94")
    assert "ass the whole line" not in " ".join(out.split())


def test_a_code_says_what_to_do_first(capsys: pytest.CaptureFixture[str]) -> None:
    """An operator at night reads the first lines; the sources are for the next day."""
    code, out = said(capsys, "94")
    assert code == cli.OK
    wanted = [
        "XID 94: contained memory error (ROBUST_CHANNEL_CONTAINED_ERROR)",
        "Do            restart the application; reset the GPU at the end of the job",
        "hazard: jobs may run, a fault is 10 times as likely",
        "Why  ",
        "Touches       gpu",
        "Cleared when  the GPU is reset, or the host boots",
        "Catalogue     restart application",
        "GPUd: critical, reboots the host",
        "XID 48 waits 5 s for it",
        "docs.nvidia.com/deploy/xid-errors",
    ]
    places = [out.index(message) for message in wanted]
    assert places == sorted(places)


def test_several(capsys: pytest.CaptureFixture[str]) -> None:
    """Codes occur together; options may be between them."""
    code, out = said(
        capsys, "48", "--driver", "575.57.08", "sxid:20034", "--sxid", "10005", "XID:162"
    )
    assert code == cli.OK
    assert [line for line in out.splitlines() if line.startswith(("XID", "SXID"))] == [
        "XID 48: uncorrectable memory error (ROBUST_CHANNEL_GPU_ECC_DBE)",
        "SXID 20034: NVLink: an active link went down (LTSSM fault up)",
        "XID 162: power smoothing works again (PSHC_REENGAGED)",
        "SXID 10005: host: cool again",
    ]
    assert "XID 95 within 5 s" in out and "Takes back    XID 163" in out
    assert "Fabric Manager User Guide" in out


def test_a_pasted_line_is_decoded(capsys: pytest.CaptureFixture[str]) -> None:
    """The process that met the hang is named, but not blamed."""
    code, out = said(capsys, GSP)
    assert code == cli.OK and out.startswith("XID 119: GSP did not answer")
    card = " ".join(out.split())
    assert "Device 0000:9b:00.0" in card
    assert "nvidia-smi pid 2024380; it ran into the fault, and may not be its cause" in card
    assert "the driver waited 6 s for GSP_RM_ALLOC" in card


def test_the_line_decides(capsys: pytest.CaptureFixture[str]) -> None:
    """An NVLink 5 code is a hazard undecoded; its line can make it fatal, if the driver is known."""
    assert "hazard: jobs may run" in said(capsys, "149")[1]
    code, out = said(capsys, NETIR, "--driver", "580.65.06")
    assert code == cli.OK and "fatal: no job may start" in out and "Unverified" not in out
    assert "name the driver that wrote it" in said(capsys, NETIR)[1]
    assert "driver 570.86 should write" in said(capsys, NETIR, "--driver", "570.86")[1]
    assert "the line says Fatal, link 30" in said(capsys, SWITCH)[1]


def test_an_unknown_code_is_said_to_be_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    """A script must detect it; a person wants to know the consequence."""
    code, out = said(capsys, "99999")
    assert code == cli.NOT_FOUND
    assert (
        "Gangline's table has no such code; it is shown and counted, and never causes a drain"
        in " ".join(out.split())
    )
    assert said(capsys, "94", "99999")[0] == cli.NOT_FOUND


@pytest.mark.parametrize(
    "text",
    ["banana", "", "-", "9" * 10, "94.0", "٤٢", "sxid:", "gpu:94", "mlx5_core", "\x1b]0;"],
)
def test_what_is_no_code_is_refused(capsys: pytest.CaptureFixture[str], text: str) -> None:
    """The refusal shows the correct form, and repeats no control characters."""
    message = refused(capsys, text)
    assert "expected an XID (94), an SXID (sxid:20034) or a line of the kernel log" in message
    assert "\x1b" not in message


@pytest.mark.parametrize("text", ["xid 79", "XID 79", "Xid: 79", "XID#79", "xid79", " 79 "])
def test_a_code_in_any_spelling(capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert said(capsys, text)[1].startswith("XID 79: GPU has fallen off the bus")


def test_a_code_in_two_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "XID", "79", "sxid", "20034")[1]
    assert [line for line in out.splitlines() if line.startswith(("XID", "SXID"))] == [
        "XID 79: GPU has fallen off the bus (ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS)",
        "SXID 20034: NVLink: an active link went down (LTSSM fault up)",
    ]


@pytest.mark.parametrize("prefix", [
    "", "[   12.345678] ", "[Mon Oct 16 09:50:06 2017] ", "<4>[   12.345678] ", "3,4711,90211344,-;",
    "Mar  3 10:00:01 node7 kernel: ", "2025-03-03T10:00:01+00:00 node7 kernel: [   12.345678] ",
    "2025-03-03T10:00:01,123456+00:00 ", "kern  :err   : [   12.345678] ",
])  # fmt: skip
@pytest.mark.parametrize(("line", "wanted"), [
    ("mlx5_core 0000:65:00.0 eth0: TX timeout detected",
     ("rdma.driver_error (code 0): its RDMA driver reports an error", "Device 0000:65:00.0",
      "Do look at cable, power and firmware", "We call it hazard")),
    ("NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover.",
     ("gpu.needs_reboot (code 0)", "Do drain and reboot the host", "We call it fatal")),
    ("amdgpu 0000:c5:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=2, emitted seq=4",
     ("gpu.hang (code 0)", "Do nothing on the host", "ring gfx_0.0.0")),
    ("mce: [Hardware Error]: Machine check events logged", ("host.machine_check (code 0)",)),
])  # fmt: skip
def test_any_line_of_the_kernel_log(
    capsys: pytest.CaptureFixture[str], prefix: str, line: str, wanted: tuple[str, ...]
) -> None:
    """Only lines with an XID were explained; all others were "wrong usage"."""
    code, out = said(capsys, prefix + line)
    assert code == cli.OK
    card = " ".join(out.split())
    assert [one for one in wanted if one not in card] == []


@pytest.mark.parametrize(("line", "why"), [
    ("usb 1-1: new high-speed USB device number 2", "no rule is about such lines"),
    ("mlx5_core 0000:98:00.0: mlx5_cmd_out_err:838:(pid 12): ACCESS_REG(0x805) failed, err(-22)",
     "rules exist for lines with 'mlx5_core', and none for these words"),
    ("python[4711]: segfault at 8 NVRM: fallen off the bus", "begins with the name of a process"),
])  # fmt: skip
def test_lines_the_agent_ignores(capsys: pytest.CaptureFixture[str], line: str, why: str) -> None:
    """The text names the reason; scripts see the exit code."""
    code, out = said(capsys, line)
    assert code == cli.NOT_FOUND and out.startswith("The agent ignores this line")
    assert why in " ".join(out.split())
    [answer] = json.loads(said(capsys, "--json", line)[1])["lines"]
    assert answer["known"] is False and why in answer["why"]


def test_a_line_with_a_condition_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """The driver prints these at every boot of a healthy host."""
    lines = {
        "mlx5_core 0000:98:00.0: firmware version: 28.39.1002": "it ends the event of an adapter that failed before",
        "mlx5_core 0000:98:00.0: Port module event: module 0, Cable unplugged": "had a link since the host booted",
        "nvidia 0000:81:00.0:    [ 0] RxErr                  (First)": "alone it is none",
    }
    for line, note in lines.items():
        code, out = said(capsys, line)
        assert code == cli.OK and note in " ".join(out.split())
    [answer] = json.loads(said(capsys, "--json", "ata1.00: failed command: READ")[1])["lines"]
    assert (answer["event"], answer["device"], answer["row"]["name"]) == (
        "disk.error",
        "ata1.00",
        "disk_error",
    )


def test_other_refusals(capsys: pytest.CaptureFixture[str]) -> None:
    assert "expected an SXID, as 20034" in refused(capsys, "--sxid", "x")
    assert "expected a version of NVIDIA's driver, as 575.57.08" in refused(
        capsys, "--driver", "new"
    )


def test_all_codes_one_line_each(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """`gangline xid | grep fatal`."""
    monkeypatch.setenv("COLUMNS", "80")
    code, out = said(capsys)
    lines = out.splitlines()
    assert code == cli.OK and len(lines) == len(policy()) + len(sxid_policy())
    assert all(len(line) <= 80 for line in lines)
    assert lines[93].startswith("XID     94  hazard       contained memory error -> restart")


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """For scripts: the row, other sources, and the line's effect on the row."""
    answer = json.loads(said(capsys, "--json", "48", NETIR, "--driver", "580.65.06")[1])["codes"]
    assert answer[0]["row"]["companions"][0]["code"] == 94 and answer[0]["known"]
    assert answer[1]["row"]["severity"] == "hazard" and answer[1]["now"]["severity"] == "fatal"
    assert answer[1]["line"]["attributes"]["link"] == "1" and answer[1]["line"]["verified"]
    every = json.loads(said(capsys, "--json")[1])["codes"]
    assert len(every) == len(policy()) + len(sxid_policy())
    code, out = said(capsys, "--json", "99999")
    assert code == cli.NOT_FOUND and json.loads(out)["codes"][0]["known"] is False


@pytest.mark.parametrize("columns", [1, 40, 80, 120, 1000])
def test_every_card_fits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """Each code of the table, at each width: no longer line, and no empty one."""
    monkeypatch.setenv("COLUMNS", str(columns))
    codes = [str(code) for code in policy()] + [f"sxid:{code}" for code in sxid_policy()]
    code, out = said(capsys, *codes, GSP, "NVRM: Xid (PCI:0000:9b:00): 43")
    assert code == cli.OK
    width = min(max(columns, WIDTH_MIN), WIDTH_MAX)
    assert [line for line in out.splitlines() if len(line) > width and " " in line.strip()] == []
    labels = [
        line.strip() for line in out.splitlines() if line.startswith("  ") and len(line) <= 16
    ]
    assert [label for label in labels if label in ("Do", "Why", "Catalogue", "Others")] == []


@pytest.mark.parametrize("columns", [80, 120])
def test_in_a_real_terminal(columns: int) -> None:
    """A pty of that width, as over ssh: wrapped to it, without escape codes."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    with subprocess.Popen(
        [sys.executable, "-m", "gangline.cli", "xid", "48"], stdout=child, env=environment
    ) as process:
        os.close(child)
        out = b""
        while chunk := _read(parent):
            out += chunk
        assert process.wait(GUARD_SECONDS) == cli.OK
    os.close(parent)
    lines = out.decode().splitlines()
    longest = max(map(len, lines))
    assert longest <= columns and longest > min(columns, WIDTH_MAX) - 12
    assert b"\x1b" not in out


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux ends a pty this way
        return b""


def test_it_answers_on_a_host_with_nothing_installed() -> None:
    """On a disconnected host, from the package alone: without libraries and aggregator."""
    code = (
        "import sys; from gangline import cli; cli.main(['xid', '94']); "
        "print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = set(out.stdout.splitlines()[-1].split())
    assert not loaded & {"google", "h2", "grpc", "duckdb", "numpy", "psutil", "pynvml", "asyncio"}
