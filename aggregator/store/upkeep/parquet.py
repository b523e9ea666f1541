"""The Parquet files of a store: which there are, and a hold on them while they are copied."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..storefile import HOLDS

#: Folders of a store whose files are written under another name, renamed into place, and never changed.
FOLDERS = ("segments", "rollups")


def files(folder: Path) -> list[str]:
    """Return the names of all Parquet files of the store (or backup) in *folder*, relative to it, sorted."""
    found: list[str] = []
    for top in FOLDERS:
        for path, folders, names in os.walk(folder / top):
            folders[:] = [each for each in folders if not each.startswith(".")]
            inside = Path(path).relative_to(folder)
            found += [str(inside / name) for name in names if name.endswith(".parquet")]
    return sorted(found)


@contextmanager
def held(data: Path, names: list[str]) -> Iterator[Path]:
    """Yield a folder that has *names* of the store in *data*, also when they are removed there meanwhile.

    By hard links within *data*; where that cannot be written to it is *data* itself. A name that is gone
    already is not there.
    """
    stage = data / HOLDS / str(os.getpid())
    try:
        stage.mkdir(parents=True)
    except OSError:
        yield data
        return
    try:
        for name in names:
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                os.link(data / name, stage / name)
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        with suppress(OSError):  # another's are in it
            stage.parent.rmdir()
