"""Compiles the stand-in NVML against NVIDIA's published header."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
from collections.abc import Iterable
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nvml.c")
#: What drivers install it as, and what both bindings load.
SONAME = "libnvidia-ml.so.1"


def header_folder() -> Path:
    """Return the folder of nvml.h; it comes with the development package nvidia-nvml-dev-cu12."""
    spec = importlib.util.find_spec("nvidia.nvml_dev")
    for place in (spec.submodule_search_locations if spec else None) or ():
        folder = Path(place) / "include"
        if (folder / "nvml.h").exists():
            return folder
    raise FileNotFoundError("no nvml.h: install the development group, `pip install --group dev`")


def compiler() -> list[str]:
    """Return the C compiler's command: $CC, or cc."""
    return shlex.split(os.environ.get("CC", "cc"))


def build(folder: Path, *, missing: Iterable[str] = ()) -> Path:
    """Compile into *folder* (made if need be) and return the library's path.

    Functions in *missing* are not exported, as by a driver that does not have them yet, or any more;
    such a library stands in a subfolder of its own. Raises CalledProcessError.
    """
    hidden = sorted(missing)
    place = folder / "-".join(["without", *hidden]) if hidden else folder
    place.mkdir(parents=True, exist_ok=True)
    library, exports = place / SONAME, place / "exports.map"
    exports.write_text(
        f"{{ global: *; local: gangline_none; {''.join(h + '; ' for h in hidden)}}};\n"
    )
    link = f"-shared -pthread -Wl,-soname,{SONAME} -Wl,--version-script={exports}".split()
    subprocess.run([*compiler(), *link, str(_object(folder)), "-o", str(library)], check=True)
    return library


def _object(folder: Path) -> Path:
    made = folder / "fake_nvml.o"
    if not made.exists() or made.stat().st_mtime < SOURCE.stat().st_mtime:
        options = ["-std=gnu11", "-O2", "-Wall", "-Werror", "-fPIC", "-pthread", "-c"]
        include = f"-I{header_folder()}"
        subprocess.run([*compiler(), *options, include, str(SOURCE), "-o", str(made)], check=True)
    return made
