"""Compiles `ext/` on all cores; Cython's shared code (mostly memoryviews) is compiled once, not in each module."""

import os

from Cython.Build import cythonize
from setuptools import setup
from setuptools.command.build_ext import build_ext

SHARED = "gangline.ext.cython_shared"
#: Set to 1: nothing is compiled. The extra `executor` needs no extension.
WITHOUT = "GANGLINE_WITHOUT_EXTENSIONS"


class ByAllCores(build_ext):
    """Compiles what pyproject.toml names. Cython itself must not run in threads, what the C compiler does may."""

    def build_extensions(self) -> None:
        """All to C, one after the other; then all at once.

        Debug information takes a third of the time and most of the files. Who wants it names all flags: with `CFLAGS`
        set, setuptools leaves out Python's own.
        """
        if os.environ.get(WITHOUT):
            self.extensions = []
        translated = cythonize(
            self.extensions,
            build_dir=self.build_temp,
            include_path=["ext"],
            shared_utility_qualified_name=SHARED,
        )
        for extension, to_c in zip(self.extensions, translated, strict=True):
            extension.sources = to_c.sources
            extension.extra_compile_args += to_c.extra_compile_args
            if "CFLAGS" not in os.environ:
                extension.extra_compile_args.append("-g0")
        self.parallel = len(os.sched_getaffinity(0))
        super().build_extensions()


# By its name it is told from what is shipped: this folder is the package.
setup(script_name="setup.py", cmdclass={"build_ext": ByAllCores})
