"""The client of schedulers: a wheel without extensions, and the .proto files with a tested line for protoc."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "packaging" / "build" / "client.py"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("client")
    subprocess.run([sys.executable, "-B", str(BUILD), str(folder)], check=True, capture_output=True)
    return folder


def test_the_wheel_has_every_message_and_stub_and_nothing_to_compile(built: Path) -> None:
    """A scheduler engineer needed a C compiler, Cython and three minutes for nine messages."""
    (wheel,) = built.glob("gangline_client-*-py3-none-any.whl")
    folder = built / "installed"
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith((".so", ".pyx", ".c"))]
        archive.extractall(folder)
        modules = [
            name[: -len(".py")].replace("/", ".")
            for name in archive.namelist()
            if name.endswith(("_pb2.py", "_pb2_grpc.py"))
        ]
    assert "gangline.contract.wire.job_pb2_grpc" in modules and len(modules) > 20
    code = (
        f"import sys; sys.path.insert(0, {str(folder)!r}); import importlib\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "import gangline; print(gangline.__file__)\n"
        "from gangline.contract.wire import score_pb2; print(score_pb2.NodeScore(node='nodes/a').node)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd="/", check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(folder / "gangline" / "__init__.py"), "nodes/a"]


def test_the_line_for_protoc_on_the_page_works(built: Path) -> None:
    """`protoc -I contract/wire score.proto` failed, and no page had a line that works."""
    (archive,) = built.glob("gangline-protos-*.tar.gz")
    folder = built / "protos"
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    page = (ROOT / "docs" / "placement.md").read_text()
    line = re.search(
        r"^    protoc (-I \. --python_out=\.) (gangline/contract/wire/)\*\.proto$",
        page,
        re.MULTILINE,
    )
    assert line is not None
    protos = sorted(str(path.relative_to(folder)) for path in folder.glob(f"{line[2]}*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", *line[1].split(), *protos]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list(folder.glob(f"{line[2]}*_pb2.py"))) == len(protos) > 10


def test_both_files_have_the_same_bytes_each_time(built: Path, tmp_path: Path) -> None:
    """A reproducible build can be verified by anyone."""
    subprocess.run(
        [sys.executable, "-B", str(BUILD), str(tmp_path)], check=True, capture_output=True
    )
    again = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert again == {name: (built / name).read_bytes() for name in again} and len(again) == 2
