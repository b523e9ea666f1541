# pyright: reportMissingImports=false
"""A deb whose content is packed again: dpkg reads it, and it is the same bytes each time."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "packaging" / "build"))
import deb as deb_module
from sources import BuildError

EPOCH = 1_790_000_000


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs: apt-get install dpkg")
def test_dpkg_reads_what_is_packed(tmp_path: Path) -> None:
    """Member names, sizes and padding as dpkg wants them; packed twice it is the same."""
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    control = (
        "Package: x\nVersion: 1\nArchitecture: all\nMaintainer: X <x@localhost>\nDescription: x\n"
    )
    (tree / "DEBIAN" / "control").write_text(control)
    (tree / "file").write_text("content\n" * 1000)
    plain = tmp_path / "x.deb"
    subprocess.run(["dpkg-deb", "-Znone", "-b", str(tree), str(plain)], check=True, capture_output=True)  # fmt: skip
    again = Path(shutil.copy(plain, tmp_path / "again.deb"))
    for package_file in (plain, again):
        deb_module.pack(package_file, EPOCH)
    assert plain.read_bytes() == again.read_bytes()
    assert "data.tar.xz" in dict(deb_module.members(plain))
    subprocess.run(["dpkg-deb", "--extract", str(plain), str(tmp_path / "to")], check=True)
    assert (tmp_path / "to" / "file").read_text() == (tree / "file").read_text()


def test_what_is_no_deb_is_said(tmp_path: Path) -> None:
    """A disk that filled up leaves half a file."""
    file = tmp_path / "x.deb"
    for content, message in (
        (b"", "not an ar archive"),
        (b"!<arch>\n" + b"x" * 20, "damaged at byte 8"),
        (b"!<arch>\n", "expected data.tar in it"),
    ):
        file.write_bytes(content)
        with pytest.raises(BuildError, match=message):
            deb_module.pack(file, EPOCH)
