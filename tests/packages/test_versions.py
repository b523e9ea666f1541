"""Upgrade, downgrade, a kill in the middle and removal by the real dpkg and the real rpm, with the real scripts and small packages."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages.stubs import OverlaidRoot, overlaid_root, write_debs, write_rpms

OLD, NEW = "0.1.0-1", "0.2.0-1"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[OverlaidRoot]:
    with overlaid_root(tmp_path) as overlay:
        yield overlay


def put(root: OverlaidRoot, files: list[Path]) -> str:
    """Copy packages into the root; return their paths there."""
    (root.root / "stubs").mkdir(exist_ok=True)
    return " ".join(f"/stubs/{Path(shutil.copy(file, root.root / 'stubs')).name}" for file in files)


def versions(root: OverlaidRoot) -> list[str]:
    return sorted(path.name for path in (root.root / "opt/gangline/versions").iterdir())


def runs(root: OverlaidRoot) -> str:
    return root.run("/opt/gangline/bin/gangline").stdout.strip()


def whole(root: OverlaidRoot, version: str) -> bool:
    folder = root.root / "opt/gangline/current/lib"
    return {path.read_text() for path in folder.iterdir()} == {version}


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg (a Debian)")
def test_dpkg(root: OverlaidRoot, tmp_path: Path) -> None:
    """Install, upgrade beside a process that hangs, go back, remove."""
    old, new = (put(root, write_debs(version, tmp_path / version)) for version in (OLD, NEW))
    root.run(f"dpkg --install {old}")
    assert (runs(root), versions(root)) == (OLD, [OLD]) and whole(root, OLD)

    hanging = subprocess.Popen(
        ["chroot", str(root.root), f"/opt/gangline/versions/{OLD}/bin/sleep", "600"]
    )
    try:
        shown = root.run(f"dpkg --install {new}").stdout
        assert (runs(root), versions(root)) == (NEW, [OLD, NEW]) and whole(root, NEW)
        assert f"{OLD} stays until its last process ends: {hanging.pid}" in shown
        assert (
            root.root / f"opt/gangline/versions/{OLD}/lib/gangline-agent.txt"
        ).read_text() == OLD
    finally:
        hanging.kill()
        hanging.wait()
    root.run(f"dpkg --install {old}")
    assert (runs(root), versions(root)) == (OLD, [OLD]) and whole(root, OLD)

    root.run("dpkg --remove gangline-agent")
    assert not (root.root / "opt/gangline/current/lib/gangline-agent.txt").exists()
    assert runs(root) == OLD
    root.run("dpkg --purge gangline-aggregator gangline-agent gangline-runtime")
    assert not (root.root / "opt/gangline").exists()


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg (a Debian)")
def test_dpkg_that_is_killed_leaves_a_version_that_is_whole(
    root: OverlaidRoot, tmp_path: Path
) -> None:
    """Unpacked and not configured: the old version runs, whatever restarts it; the next run of dpkg goes on."""
    old, new = (put(root, write_debs(version, tmp_path / version)) for version in (OLD, NEW))
    root.run(f"dpkg --install {old}")
    root.run(f"dpkg --unpack {new.split()[0]}")
    assert runs(root) == OLD and whole(root, OLD)
    root.run(f"dpkg --unpack {new}")
    assert runs(root) == OLD and whole(root, OLD)
    root.run("dpkg --configure gangline-runtime")
    assert runs(root) == OLD and whole(root, OLD)
    root.run("dpkg --configure --pending")
    assert runs(root) == NEW and whole(root, NEW)
    assert versions(root) == [NEW]


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg (a Debian)")
@pytest.mark.slow
def test_dpkg_refuses_to_go_back_past_a_migration(root: OverlaidRoot, tmp_path: Path) -> None:
    """Before anything is unpacked, with the backup's name."""
    old = put(root, write_debs(OLD, tmp_path / OLD, 19))
    new = put(root, write_debs(NEW, tmp_path / NEW, 20))
    root.run(f"dpkg --install {new}")
    data = root.root / "var/lib/gangline-aggregator"
    (data / "store_version").write_text("20\n")
    (data / "gangline.duckdb").touch()
    (data / "backup_before_20").write_text("/var/backups/gangline/2026-11-28T0230\n")
    refused = root.run(f"dpkg --install {old}", check=False)
    assert refused.returncode and runs(root) == NEW and whole(root, NEW)
    assert "gangline admin restore --from /var/backups/gangline/2026-11-28T0230" in refused.stdout
    packages = root.root / "opt/gangline/packages"
    assert {path.read_text() for path in packages.glob("*/lib/*.txt")} == {NEW}


@pytest.mark.skipif(shutil.which("rpmbuild") is None, reason="needs rpmbuild: apt-get install rpm")
@pytest.mark.slow
def test_rpm(root: OverlaidRoot, tmp_path: Path) -> None:
    """The same scripts in rpm's order: new ones first, old ones last."""
    old, new = (put(root, write_rpms(version, tmp_path / version)) for version in (OLD, NEW))
    rpm = "rpm --dbpath /stubs/rpmdb --nodeps"
    root.run(f"{rpm} --install {old}")
    assert (runs(root), versions(root)) == (OLD, [OLD]) and whole(root, OLD)
    root.run(f"{rpm} --upgrade {new}")
    assert (runs(root), versions(root)) == (NEW, [NEW]) and whole(root, NEW)
    root.run(f"{rpm} --upgrade --oldpackage {old}")
    assert (runs(root), versions(root)) == (OLD, [OLD]) and whole(root, OLD)
    root.run(f"{rpm} --erase gangline-aggregator gangline-agent gangline-runtime")
    assert not (root.root / "opt/gangline").exists()
