# pyright: reportMissingImports=false
"""An rpm whose content is packed again: rpm verifies it, and it is the same bytes each time."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "packaging" / "build"))
import rpm as rpm_module
from sources import BuildError

SPEC = """
Name: x
Version: 1
Release: 1
Summary: x
License: MIT
BuildArch: noarch
%define _build_id_links none
%define __os_install_post %{{nil}}
%define _source_payload w1.{compression}
%define _binary_payload w1.{compression}
%description
x
%install
mkdir -p %{{buildroot}}/opt
for each in $(seq 1000); do echo "content $each"; done > %{{buildroot}}/opt/file
%files
/opt/file
"""


def built(folder: Path, compression: str = "xzdio") -> Path:
    if shutil.which("rpmbuild") is None:
        pytest.skip("needs: apt-get install rpm")
    folder.mkdir()
    (folder / "x.spec").write_text(SPEC.format(compression=compression))
    command = ["rpmbuild", "--quiet", "-bb", "--define", f"_topdir {folder}", str(folder / "x.spec")]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return folder / "RPMS" / "noarch" / "x-1-1.noarch.rpm"


def test_rpm_reads_what_is_packed(tmp_path: Path) -> None:
    """Sizes and digests of both headers as rpm wants them; packed twice it is the same, and smaller."""
    rpm = built(tmp_path / "top")
    again, before = Path(shutil.copy(rpm, tmp_path / "again.rpm")), rpm.stat().st_size
    for package_file in (rpm, again):
        rpm_module.pack(package_file)
    assert rpm.read_bytes() == again.read_bytes()
    assert rpm.stat().st_size < before
    verified = subprocess.run(
        ["rpmkeys", "--checksig", "--verbose", str(rpm)], check=True, capture_output=True, text=True
    )
    assert "Payload SHA256 digest: OK" in verified.stdout and "BAD" not in verified.stdout
    payload = subprocess.run(["rpm2cpio", str(rpm)], check=True, capture_output=True).stdout
    assert b"content 1000\n" in payload


def test_what_is_no_rpm_is_rejected(tmp_path: Path) -> None:
    """A disk that filled up leaves half a file."""
    file = tmp_path / "x.rpm"
    lead = b"\xed\xab\xee\xdb" + bytes(92)
    header = b"\x8e\xad\xe8\x01" + bytes(12)
    for content, message in (
        (b"", "not an rpm: its first bytes are b''"),
        (lead, "it ends at byte 96, inside a header"),
        (lead + b"x" * 16, "no header of an rpm at byte 96"),
        (lead + header[:8] + b"\xff" * 8, "no header of an rpm at byte 96"),
        (lead + header + header, "tag 1125 is not in its header"),
    ):
        file.write_bytes(content)
        with pytest.raises(BuildError, match=message):
            rpm_module.pack(file)


def test_another_compression_and_a_damaged_payload_are_rejected(tmp_path: Path) -> None:
    """The build rejects a payload that rpm would refuse on ten thousand hosts."""
    with pytest.raises(BuildError, match="expected a payload of xz with a SHA-256, found b'gzi'"):
        rpm_module.pack(built(tmp_path / "gzip", "gzdio"))
    rpm = built(tmp_path / "xz")
    content = bytearray(rpm.read_bytes())
    content[-40] ^= 0xFF
    rpm.write_bytes(content)
    with pytest.raises(BuildError, match="damaged payload"):
        rpm_module.pack(rpm)
