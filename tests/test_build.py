"""`python -m build`: the sdist and the wheel work in a clean environment, not only the checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import free_port

ROOT = Path(__file__).parent.parent
CONSTRAINTS = ROOT / "packaging" / "constraints.txt"


def run(*arguments: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(a) for a in arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """Return (sdist, wheel), the wheel made from the sdist, from a copy of the files that git tracks."""
    place = tmp_path_factory.mktemp("build")
    tree = place / "tree"
    names = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in names.splitlines():
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    # The test checks the wheel's contents, not its speed: the compiler takes a third of the time.
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", place / "dist")
    run("env", "CFLAGS=-O0 -g0", *build, cwd=tree)
    (sdist,) = (place / "dist").glob("*.tar.gz")
    (wheel,) = (place / "dist").glob("*.whl")
    yield sdist, wheel
    shutil.rmtree(place)


@pytest.mark.slow
def test_what_is_in_them(built: tuple[Path, Path]) -> None:
    """A wheel without its SQL, or with the tests in it, works here and fails elsewhere."""
    with tarfile.open(built[0]) as sdist, zipfile.ZipFile(built[1]) as wheel:
        source = {name.partition("/")[2] for name in sdist.getnames()}
        binary = set(wheel.namelist())
    assert {"LICENSE", "README.md", "ext/nvml.pyx", "aggregator/sql/ops_20_hosts.sql"} <= source
    for needed in (
        "__main__.py",
        "cli.py",
        "py.typed",
        "aggregator/sql/0001_store.sql",
        "contract/xid/xid.toml",
    ):
        assert f"gangline/{needed}" in binary
    assert any(n.startswith("gangline/ext/columns.") and n.endswith(".so") for n in binary)
    others = ("gangline/tests", "gangline/bench", "gangline/setup", "tests")
    assert not {name for name in binary if name.startswith(others)}


def environment(place: Path) -> Path:
    """A Python that never saw the checkout; returns its folder of programs."""
    venv.create(place)
    return place / "bin"


def install(binaries: Path, *what: str | Path) -> None:
    """`pip install` there, with this Python's pip; without bytecode, which would take most of the time."""
    pip = (sys.executable, "-m", "pip", "--python", binaries / "python", "install", "-q")
    run(*pip, "--no-compile", *what, cwd=binaries)


@pytest.mark.slow
def test_the_wheel_works_in_a_clean_environment(built: tuple[Path, Path], tmp_path: Path) -> None:
    """`pip install gangline[...]` on a machine that never saw the checkout, run from another folder."""
    binaries = environment(tmp_path / "env")
    install(binaries, "-c", CONSTRAINTS, f"gangline[agent,aggregator] @ {built[1].as_uri()}")
    assert run(binaries / "gangline", "--version", cwd=tmp_path).startswith("gangline ")
    listen = f"127.0.0.1:{free_port()}"
    table = run(
        *(binaries / "gangline", "run", "--once", "--simulated", "0", "--listen", listen),
        *("--data", tmp_path / "var"),
        cwd=tmp_path,
    )
    assert "HEALTHY" in table or "WATCH" in table


@pytest.mark.slow
def test_a_missing_extra_is_named(built: tuple[Path, Path], tmp_path: Path) -> None:
    """Only the agent's extra is installed, and a user calls `gangline hosts`."""
    binaries = environment(tmp_path / "env")
    install(binaries, "--no-deps", built[1])
    done = subprocess.run(
        [binaries / "gangline", "hosts"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 1
    assert 'install it with: pip install "SOURCE[aggregator]"' in done.stderr
