"""A Debian 13 in a folder, for parts that Debian 12 does not have: commands there are run by root, in a mount namespace of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO

MISSING = (
    "Debian 13 with {part} is not here, or this is not root: "
    "tests/rigs/debian13.sh FOLDER {part} makes it; then export GANGLINE_DEBIAN13=FOLDER"
)
MOUNTED = 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"'


def debian13() -> Path:
    return Path(os.environ.get("GANGLINE_DEBIAN13") or "/nowhere")


def has_debian13(program: str) -> bool:
    """Say whether *program*, a path there, can be run."""
    return (
        os.geteuid() == 0
        and shutil.which("unshare") is not None
        and (debian13() / program).exists()
    )


def start_inside(
    *command: str, environment: Mapping[str, str], output: IO[bytes]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", MOUNTED, str(debian13()), *command], stdin=subprocess.DEVNULL,
        stdout=output, stderr=output, start_new_session=True,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", **environment},
    )  # fmt: skip
