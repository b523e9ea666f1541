"""The sources of `make packages`: pinned, verified before use, and refused with an error on a mismatch."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent.parent
BUILD = ROOT / "packaging" / "build"


@pytest.fixture(scope="module")
def build() -> Iterator[dict[str, ModuleType]]:
    """The modules of the build, which are scripts beside each other and no package."""
    sys.path.insert(0, str(BUILD))
    names = ("sources", "runtime", "wheels", "trees", "sbom", "packages")
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(BUILD))
        for name in names:
            sys.modules.pop(name, None)


def test_every_archive_has_a_hash(build: dict[str, ModuleType]) -> None:
    """The compiler runs a mirror's files: they are verified first."""
    pins = build["sources"].read_pins()
    assert set(pins.sources) == {"zlib", "libffi", "sqlite3", "openssl", "python3.13"}
    for source in pins.sources.values():
        assert source.upstream.startswith(source.name)
        assert not source.patches or any(".debian.tar." in name for name in source.archives)
    assert all("==" in tool for tool in pins.tools)


def test_a_pin_that_is_no_hash_is_named(build: dict[str, ModuleType], tmp_path: Path) -> None:
    """Cut off by a careless edit."""
    wrong = tmp_path / "pins.toml"
    text = (BUILD / "pins.toml").read_text()
    archives = build["sources"].read_pins().sources["zlib"].archives
    wrong.write_text(text.replace(next(iter(archives.values())), "60dd"))
    with pytest.raises(build["sources"].BuildError, match=r"zlib.*'60dd' is no SHA-256"):
        build["sources"].read_pins(wrong)


def test_another_archive_is_refused(build: dict[str, ModuleType], tmp_path: Path) -> None:
    """An archive of the same name from a compromised mirror is refused."""
    archive = tmp_path / "zlib.tar.gz"
    archive.write_bytes(b"something else")
    with pytest.raises(build["sources"].BuildError, match=r"its SHA-256 is .* not 0000"):
        build["sources"].checked(archive, "0" * 64)


def test_a_file_that_is_too_large_is_not_read(
    build: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RUNTIME=/dev/sda, for example."""
    archive = tmp_path / "runtime.tar.xz"
    archive.write_bytes(b"12345")
    monkeypatch.setattr(build["sources"], "ARCHIVE_BYTES_MAX", 4)
    with pytest.raises(build["sources"].BuildError, match="5 bytes; at most 4 are read"):
        build["sources"].checked(archive, "0" * 64)


def test_a_wheel_stays_in_its_folder(build: dict[str, ModuleType], tmp_path: Path) -> None:
    """`../../bin/sh` in a wheel."""
    wheel = tmp_path / "evil-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("../evil.py", "")
    with pytest.raises(build["sources"].BuildError, match=r"'\.\./evil\.py' leaves its folder"):
        build["trees"].unpack_wheel(wheel, tmp_path / "site")


def test_a_runtime_needs_its_hash(
    build: dict[str, ModuleType],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A runtime from elsewhere is the interpreter of a daemon with capabilities."""
    monkeypatch.setattr(sys, "argv", ["packages.py", "--runtime", str(ROOT / "LICENSE")])
    assert build["packages"].main() == 1
    assert "needs RUNTIME_SHA256" in capsys.readouterr().err


def test_every_part_of_gangline_is_in_one_package(build: dict[str, ModuleType]) -> None:
    """A new folder goes into the runtime, which both have, unless it is named."""
    named = [folder for folders in build["trees"].FOLDERS.values() for folder in folders]
    assert len(named) == len(set(named))
    assert all((ROOT / folder / "__init__.py").exists() for folder in named)
    for files in build["trees"].FILES.values():
        assert all((ROOT / source).exists() for source in files)


def test_every_wheel_has_a_hash(build: dict[str, ModuleType], tmp_path: Path) -> None:
    """An index's wheels run with the daemon's capabilities: they are verified first."""
    hashes = build["wheels"].read_hashes()
    names = {name.partition("-")[0].lower() for name in hashes}
    for wanted in build["wheels"].extras().values():
        for requirement in wanted:
            assert re.split(r"[^A-Za-z0-9_-]", requirement)[0].replace("-", "_").lower() in names
    wheel = tmp_path / "h2-0-py3-none-any.whl"
    wheel.write_bytes(b"something else")
    with pytest.raises(build["sources"].BuildError, match=r"wheels\.py --update"):
        build["wheels"].check_wheel(wheel, hashes)
    with pytest.raises(build["sources"].BuildError, match="its SHA-256 is"):
        build["wheels"].check_wheel(wheel, {wheel.name: "0" * 64})
    (tmp_path / "wheels.txt").write_text("60dd  h2.whl\n")
    with pytest.raises(build["sources"].BuildError, match="expected a SHA-256"):
        build["wheels"].read_hashes(tmp_path / "wheels.txt")


def test_every_tool_has_a_hash(build: dict[str, ModuleType]) -> None:
    """The compiler writes what the daemon runs: a version alone is what an index says it is."""
    pinned: dict[str, str] = {}
    for name in ("tools.txt", "compile.txt"):
        lines = [row for row in (BUILD / name).read_text().splitlines() if not row.startswith("#")]
        for line in lines:
            match = re.fullmatch(
                r"([A-Za-z0-9_.-]+)==(\S+)((?: --hash=sha256:[0-9a-f]{64})+)", line
            )
            assert match is not None, line
            pinned[match[1].lower()] = match[2]
    for tool in build["sources"].read_pins().tools:
        name, _, version = tool.partition("==")
        assert pinned[name] == version
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for requirement in project["build-system"]["requires"]:
        assert re.split(r"[^A-Za-z0-9_-]", requirement)[0].lower() in pinned
    assert "--require-hashes" in build["runtime"].WITH_HASHES


def test_the_command_starts_whatever_the_locale(build: dict[str, ModuleType]) -> None:
    """The runtime has no codec for zh_CN.GB18030, and an interpreter that lacks the codec of its locale ends at once."""
    launcher = build["trees"].LAUNCHER
    flags = launcher.partition("\n")[0].rpartition(" ")[2]
    code = "import sys; print(sys.flags.utf8_mode, sys.flags.ignore_environment, sys.flags.no_user_site, sys.flags.safe_path)"
    shown = subprocess.run([sys.executable, flags, "-c", code], check=True, capture_output=True, text=True)  # fmt: skip
    assert shown.stdout.split() == ["1", "1", "1", "True"]
    assert 'os.environ["PYTHONUTF8"] = "1"' in launcher  # of the child processes
