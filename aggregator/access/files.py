"""Files of access: written whole, for their owner alone, whoever runs the command."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ..store.folder import sync_folder


def put(path: Path, data: bytes, mode: int) -> None:
    """Write a file of *mode* whole, durably, in place of one that may be there: a token that was revoked must not
    come back with a power cut. Raises OSError."""
    new = path.with_name(path.name + ".new")
    with suppress(FileNotFoundError):
        new.unlink()
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        give_to_owner(file.fileno(), path.parent)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_folder(path.parent)


def private_folder(folder: Path) -> None:
    """Make a folder that is its owner's only, if it is not there: that of the folder it stands in. Raises OSError."""
    if not folder.exists():
        # Its parent is a data folder that no aggregator has made yet, as `store/storefile.py` makes it.
        folder.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
        made = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            give_to_owner(made, folder.parent)
        finally:
            os.close(made)


def give_to_owner(descriptor: int, folder: Path) -> None:
    """Made by root for a service that is not: let what is open belong to the owner of *folder*. Raises OSError.

    By descriptor: by its name the owner of the folder could have root give away a file of another's.
    """
    if os.geteuid() == 0:
        owner = folder.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
