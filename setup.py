"""Compiles `ext/` on all cores; Cython's shared code, mostly memoryviews, is compiled only once."""

import os
import re
import runpy
from pathlib import Path

from Cython.Build import cythonize
from setuptools import setup
from setuptools.command.build_ext import build_ext

SHARED = "gangline.ext.cython_shared"
#: Set to 1 to compile nothing: the extra `executor` needs no extension.
WITHOUT = "GANGLINE_WITHOUT_EXTENSIONS"


def write_nvml_lists(folder: Path) -> None:
    """Write the lists of NVML's calls and readings that must agree by position, from one table each."""
    symbols = {}
    for name, struct in (("nvml", "Calls"), ("nvml_parts", "PartsCalls")):
        declared = Path("ext", f"{name}_abi.pxd").read_text().split(f"cdef struct {struct}:")[1]
        symbols[name] = tuple(re.findall(r"^    .+?\(\*(\w+)\)\(", declared, re.MULTILINE))
        _write(folder / f"{name}_symbols.pxi", f"SYMBOLS = {symbols[name]!r}\n")
    named = runpy.run_path("ext/nvml_readings.py")["NAMED"]
    open_slot = symbols["nvml"].index("nvmlDeviceGetHandleByPciBusId_v2")
    members = [*named.values(), "NAMED_COUNT", f"OPEN_SLOT = {open_slot}"]
    _write(folder / "nvml_named.pxi", "cdef enum:\n    " + "\n    ".join(members) + "\n")


def _write(path: Path, text: str) -> None:
    """Write *text* unless the file has it: a newer file would be compiled again."""
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class ByAllCores(build_ext):
    """Compiles the extensions: Cython, which is not thread-safe, in sequence, C in parallel."""

    def build_extensions(self) -> None:
        """Translate all to C in sequence, then compile in parallel.

        Debug information takes a third of the time and most of the files. To include it, set all
        flags in `CFLAGS`: setuptools then omits Python's own.
        """
        if os.environ.get(WITHOUT):
            self.extensions = []
        write_nvml_lists(Path(self.build_temp))
        translated = cythonize(
            self.extensions,
            build_dir=self.build_temp,
            include_path=["ext", self.build_temp],
            shared_utility_qualified_name=SHARED,
        )
        for extension, to_c in zip(self.extensions, translated, strict=True):
            extension.sources = to_c.sources
            extension.extra_compile_args += to_c.extra_compile_args
            if "CFLAGS" not in os.environ:
                extension.extra_compile_args.append("-g0")
        self.parallel = len(os.sched_getaffinity(0))
        super().build_extensions()


# The script name distinguishes this file from the shipped ones: this folder is the package.
setup(script_name="setup.py", cmdclass={"build_ext": ByAllCores})
