"""A Debian that boots: a root file system made by mmdebstrap, run by systemd-nspawn, without a network."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import GUARD_SECONDS, until

PROGRAMS = ("mmdebstrap", "systemd-nspawn", "nsenter")
MISSING = "needs root and: apt-get install mmdebstrap systemd-container util-linux"
#: The limit for installing and booting while other tests run.
COMMAND_SECONDS = 10 * GUARD_SECONDS


def root_archive(suite: str, folder: Path) -> Path:
    """The root file system of *suite*, made once: a base system with systemd, without compiler and Python."""
    if os.geteuid() or any(shutil.which(name) is None for name in PROGRAMS):
        pytest.skip(MISSING)
    archive = folder / f"{suite}.tar"
    if not archive.exists():
        folder.mkdir(parents=True, exist_ok=True)
        new_archive = folder / f"{suite}.new.tar"
        command = [
            "mmdebstrap",
            "--quiet",
            "--variant=minbase",
            "--include=systemd,systemd-sysv,dbus",
            suite,
            str(new_archive),
        ]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        if ended.returncode:
            pytest.skip(f"no {suite} can be made here: {ended.stderr[-300:]}")
        new_archive.rename(archive)
    return archive


class Booted:
    """A running container; *process* is systemd-nspawn."""

    def __init__(self, root: Path, process: subprocess.Popen[bytes]) -> None:
        self.root, self.process = root, process

    def init(self) -> int:
        """The process id, here, of its first process; 0 before it starts."""
        task = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        children = task.read_text().split()
        return int(children[0]) if children else 0

    def run(
        self, *command: str, check: bool = True, environment: Mapping[str, str] | None = None
    ) -> str:
        ended = subprocess.run(
            self.command(*command, environment=environment),
            check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=COMMAND_SECONDS,
        )  # fmt: skip
        assert not check or ended.returncode == 0, f"{command}: {ended.stdout}"
        return ended.stdout

    def command(self, *command: str, environment: Mapping[str, str] | None = None) -> list[str]:
        inside = [
            "nsenter",
            "--target",
            str(self.init()),
            *["--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd"],
        ]
        arguments = [
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL=C",
            "HOME=/root",
            "DEBIAN_FRONTEND=noninteractive",
        ]
        arguments += [f"{name}={value}" for name, value in (environment or {}).items()]
        return [*inside, "env", "-i", *arguments, *command]


@contextmanager
def _alone() -> Iterator[None]:
    """Wait until no other test of this machine has a booted container.

    All containers are in the control group of their callers, where a unit of one container has the
    processes of both: stopping its agent would end the other's.
    """
    folder = os.open("/run", os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


@contextmanager
def booted(archive: Path, folder: Path, *, shares_network: bool = False) -> Iterator[Booted]:
    """Unpack, boot, and end it. *shares_network*: loopback is this machine's, so that an aggregator here can be reached."""
    with _alone():
        yield from _booted(archive, folder, shares_network)


def _booted(archive: Path, folder: Path, shares_network: bool) -> Iterator[Booted]:
    root = folder / "root"
    root.mkdir()
    with tarfile.open(archive) as tar:
        tar.extractall(root, filter="fully_trusted")
    log = (folder / "console.log").open("wb")
    command = [
        "systemd-nspawn",
        "--quiet",
        "--register=no",
        "--keep-unit",
        *([] if shares_network else ["--private-network"]),
        "--boot",
    ]
    process = subprocess.Popen(
        [*command, f"--directory={root}", "--machine=gangline-test", "--console=pipe"],
        stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
    )  # fmt: skip
    host = Booted(root, process)
    try:
        until(
            lambda: (
                process.poll() is not None
                or (
                    host.init()
                    and "running" in host.run("systemctl", "is-system-running", check=False)
                )
            ),
            "the container boots",
        )
        if process.poll() is not None:
            pytest.skip(
                f"systemd-nspawn does not boot here: {(folder / 'console.log').read_text()[-300:]}"
            )
        yield host
    finally:
        process.terminate()
        process.wait(GUARD_SECONDS)
        log.close()
        shutil.rmtree(root, ignore_errors=True)
