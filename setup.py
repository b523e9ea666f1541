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
    """Write the lists of NVML's calls, readings and layouts that must agree, from one table each."""
    symbols = {}
    for name, struct in (("nvml", "Calls"), ("nvml_parts", "PartsCalls")):
        structs, declared = (
            Path("ext", f"{name}_abi.pxd").read_text().split(f"cdef struct {struct}:")
        )
        symbols[name] = tuple(re.findall(r"^    .+?\(\*(\w+)\)\(", declared, re.MULTILINE))
        _write(folder / f"{name}_symbols.pxi", f"SYMBOLS = {symbols[name]!r}\n")
        _write(folder / f"{name}_layout.pxi", f"LAYOUT = {{\n{_layout(structs)}}}\n")
    named = runpy.run_path("ext/nvml_readings.py")["NAMED"]
    open_slot = symbols["nvml"].index("nvmlDeviceGetHandleByPciBusId_v2")
    members = [*named.values(), "NAMED_COUNT", f"OPEN_SLOT = {open_slot}"]
    _write(folder / "nvml_named.pxi", "cdef enum:\n    " + "\n    ".join(members) + "\n")


def _layout(declarations: str) -> str:
    """Return the items of a dict: C's sizeof and offsetof of each struct -> Cython's value."""
    items = []
    for kind, members in re.findall(
        r"^cdef (?:struct|union) (\w+):\n((?:    .+\n)+)", declarations, re.MULTILINE
    ):
        items.append(f'"sizeof({kind})": sizeof({kind}),\n')
        for member in re.findall(r"(\w+)(?:\[\w+\])?\n", members):
            offset = f"<size_t>&(<{kind} *>NULL).{member}"
            items.append(f'"offsetof({kind}, {member})": {offset},\n')
    return "".join(items)


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
