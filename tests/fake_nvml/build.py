"""Compiles the stand-in NVML against NVIDIA's published header."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

#: Every .c file of this folder is a part of the one library.
FOLDER = Path(__file__).parent
#: The name under which drivers install it and both bindings load it.
SONAME = "libnvidia-ml.so.1"


def header_folder() -> Path:
    """Return the folder of the newest nvml.h, of the package nvidia-nvml-dev."""
    return _header_folder("nvidia.cu13")


def older_header_folder() -> Path:
    """Return the folder of the nvml.h of 12.9 (nvidia-nvml-dev-cu12): some ids differ."""
    return _header_folder("nvidia.nvml_dev")


def _header_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    for place in (spec.submodule_search_locations if spec else None) or ():
        folder = Path(place) / "include"
        if (folder / "nvml.h").exists():
            return folder
    raise FileNotFoundError("no nvml.h: install the development group, `pip install --group dev`")


def compiler() -> list[str]:
    """Return the C compiler's command: $CC, or cc."""
    return shlex.split(os.environ.get("CC", "cc"))


def build(folder: Path, *, missing: Iterable[str] = (), version: str = "") -> Path:
    """Compile into *folder* (created if missing) and return the library's path.

    Functions in *missing* are not exported, like in an older or newer driver; such a library has a
    subfolder of its own. A library of a *version* requires a driver of the same version (use a
    separate folder). Raises CalledProcessError.
    """
    hidden = sorted(missing)
    place = folder / "-".join(["without", *hidden]) if hidden else folder
    place.mkdir(parents=True, exist_ok=True)
    library, exports = place / SONAME, place / "exports.map"
    exports.write_text(
        f"{{ global: *; local: gangline_none; {''.join(h + '; ' for h in hidden)}}};\n"
    )
    link = f"-shared -pthread -Wl,-soname,{SONAME} -Wl,--version-script={exports}".split()
    subprocess.run([*compiler(), *link, *_objects(version), "-o", str(library)], check=True)
    return library


@functools.cache
def _objects_folder() -> Path:
    """Return the folder of this process' compiled objects, removed at exit."""
    folder = tempfile.TemporaryDirectory(prefix="fake_nvml")
    atexit.register(folder.cleanup)
    return Path(folder.name)


@functools.cache
def _objects(version: str) -> list[str]:
    """Compile every source, once a process; for another version only the file concerned."""
    result, running = [], []
    for source in sorted(FOLDER.glob("*.c")):
        own = version if source.stem == "fake_nvml" else ""
        result.append(_objects_folder() / f"{source.stem}-{own}.o")
        if not result[-1].exists():
            running.append(_compiling(source, result[-1], own))
    for compiling in running:
        if compiling.wait():
            raise subprocess.CalledProcessError(compiling.returncode, compiling.args)
    return [str(path) for path in result]


def _compiling(source: Path, made: Path, version: str) -> subprocess.Popen[bytes]:
    # Hidden: symbols shared by the parts are not exported to the process.
    options = ["-std=gnu11", "-O2", "-Wall", "-Werror", "-fPIC", "-fvisibility=hidden", "-pthread"]
    if version:
        options.append(f'-DLIBRARY_VERSION="{version}"')
    command = [*compiler(), *options, f"-I{header_folder()}", "-c", str(source), "-o", str(made)]
    return subprocess.Popen(command)
