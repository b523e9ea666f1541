"""Compiles `ext/` on all cores; Cython's shared code, mostly memoryviews, is compiled only once."""

import os

from Cython.Build import cythonize
from setuptools import setup
from setuptools.command.build_ext import build_ext

SHARED = "gangline.ext.cython_shared"
#: Set to 1 to compile nothing: the extra `executor` needs no extension.
WITHOUT = "GANGLINE_WITHOUT_EXTENSIONS"


class ByAllCores(build_ext):
    """Compiles the extensions: Cython, which is not thread-safe, in sequence, C in parallel."""

    def build_extensions(self) -> None:
        """Translate all to C in sequence, then compile in parallel.

        Debug information takes a third of the time and most of the files. To include it, set all
        flags in `CFLAGS`: setuptools then omits Python's own.
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


# The script name distinguishes this file from the shipped ones: this folder is the package.
setup(script_name="setup.py", cmdclass={"build_ext": ByAllCores})
