"""Builds the files for a scheduler's client: the wheel `gangline-client` and an archive of the .proto files.

python3 packaging/build/client.py [FOLDER]     # into dist/ unless a folder is named

The wheel has the messages and stubs of `gangline.contract.wire`, and no compiled module. It has the same import path as
Gangline itself, so install either the wheel or Gangline in an environment.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
WIRE = ROOT / "contract" / "wire"
#: Date of all files, fixed so that each build has the same bytes.
TIME = (2026, 1, 1, 0, 0, 0)
UNIX_TIME = 1_767_225_600


def project() -> tuple[str, list[str], str]:
    """Return (version, requirements, supported Python versions) of the client, from pyproject.toml."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = ("grpcio>", "protobuf>")
    requirements = [
        one for one in table["optional-dependencies"]["executor"] if one.startswith(needed)
    ]
    return table["version"], requirements, table["requires-python"]


def wheel_files() -> dict[str, bytes]:
    """Return path in the wheel -> contents, without the metadata."""
    files = {
        "gangline/__init__.py": b'"""Client of Gangline: the messages and stubs of gangline.v1."""\n',
        "gangline/py.typed": b"",
        "gangline/contract/__init__.py": (ROOT / "contract" / "__init__.py").read_bytes(),
    }
    for path in sorted(WIRE.iterdir()):
        if path.suffix in (".py", ".pyi"):
            files[f"gangline/contract/wire/{path.name}"] = path.read_bytes()
    return files


def write_wheel(folder: Path) -> Path:
    version, requirements, python = project()
    info = f"gangline_client-{version}.dist-info"
    metadata = "".join(
        f"{line}\n"
        for line in (
            "Metadata-Version: 2.4",
            "Name: gangline-client",
            f"Version: {version}",
            "Summary: Messages and stubs of Gangline's gRPC API, without extensions.",
            "License-Expression: Apache-2.0",
            "License-File: LICENSE",
            f"Requires-Python: {python}",
            *(f"Requires-Dist: {one}" for one in requirements),
        )
    )
    wheel = "Wheel-Version: 1.0\nGenerator: gangline\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = wheel_files() | {
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": wheel.encode(),
        f"{info}/licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
    }
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD")
    path = folder / f"gangline_client-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, TIME)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, data)
    return path


def _record(files: Mapping[str, bytes], own: str) -> bytes:
    lines = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}")
    return "".join(f"{line}\n" for line in (*lines, f"{own},,")).encode()


def write_protos(folder: Path) -> Path:
    """Write an archive of the .proto files, at their import paths, into *folder*; return its path."""
    path = folder / f"gangline-protos-{project()[0]}.tar.gz"
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for proto in sorted(WIRE.glob("*.proto")):
            content = proto.read_bytes()
            entry = tarfile.TarInfo(f"gangline/contract/wire/{proto.name}")
            entry.size, entry.mtime, entry.mode = len(content), UNIX_TIME, 0o644
            archive.addfile(entry, io.BytesIO(content))
    path.write_bytes(gzip.compress(data.getvalue(), mtime=0))
    return path


def main(arguments: list[str]) -> int:
    """Write the wheel and the archive, and print their paths."""
    folder = Path(arguments[0]) if arguments else ROOT / "dist"
    folder.mkdir(parents=True, exist_ok=True)
    for path in (write_wheel(folder), write_protos(folder)):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
