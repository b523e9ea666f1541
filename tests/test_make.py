"""The two commands on a machine that lacks something: named, with the line that installs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def make(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run `make system` alone, which looks and installs nothing."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    if path is not None:
        environment["PATH"] = path
    return subprocess.run(
        ["/usr/bin/make", "-s", "system", *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def stub(folder: Path, name: str, script: str) -> Path:
    """An executable that stands for a program of another machine."""
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


def test_this_machine_has_everything() -> None:
    """Or these tests would not run; the check must not cry wolf."""
    assert make(f"PYTHON={sys.executable}").returncode == 0


def test_no_python() -> None:
    done = make("PYTHON=no-such-python")
    assert done.returncode != 0
    assert "sudo apt-get install python3 python3-venv python3-dev" in done.stderr


def test_a_python_that_does_not_run(tmp_path: Path) -> None:
    """A version manager's shim for a version that is not chosen."""
    done = make(f"PYTHON={stub(tmp_path, 'python3', 'echo no such version >&2; exit 127')}")
    assert done.returncode != 0
    assert "does not run" in done.stderr
    assert "older" not in done.stderr


def test_an_old_python(tmp_path: Path) -> None:
    """Debian 11 has Python 3.9: the message comes before pip's long errors."""
    old = stub(tmp_path, "python3", 'test -z "$2"')
    done = make(f"PYTHON={old}")
    assert done.returncode != 0
    assert "older than 3.11" in done.stderr


@pytest.mark.parametrize(
    ("lacks", "package"),
    [("ensurepip", "python3-venv"), ("Python.h", "python3-dev")],
)
def test_a_part_of_python_is_not_installed(tmp_path: Path, lacks: str, package: str) -> None:
    """Debian splits Python into packages; pip's own message names none of them."""
    python = stub(
        tmp_path, "python3", f'case "$2" in *{lacks}*) exit 1;; esac; exec {sys.executable} "$@"'
    )
    done = make(f"PYTHON={python}")
    assert done.returncode != 0
    assert f"sudo apt-get install {package}" in done.stderr


def test_no_compiler() -> None:
    """The Cython parts are compiled on the machine."""
    done = make(f"PYTHON={sys.executable}", "CC=no-such-compiler")
    assert done.returncode != 0
    assert "sudo apt-get install gcc libc6-dev" in done.stderr


@pytest.mark.parametrize(
    ("once", "command"),
    [("1", "--once"), ("yes", "--once"), ("true", "--once"), ("0", ""), ("no", ""), ("", "")],
)
def test_once_is_understood(once: str, command: str) -> None:
    """`make run ONCE=yes` ran forever: only 1 counted, without a message."""
    line = dry_run(f"ONCE={once}").stdout.strip().splitlines()[-1]
    assert "gangline run" in line
    assert line.endswith(command) and ("--once" in line) is bool(command)


def test_once_that_is_not_understood() -> None:
    """A typo in CI is an error, not a run without end."""
    done = dry_run("ONCE=maybe")
    assert done.returncode != 0
    assert "ONCE=maybe: expected one of 1 yes true on or 0 no false off" in done.stderr


def dry_run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    return subprocess.run(
        ["/usr/bin/make", "-n", "run", *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("folder", "message"),
    [([], "usage: make rigs FOLDER=/somewhere"), (["FOLDER=./rigs"], "name one outside")],
)
def test_rigs_are_made_outside_the_checkout(folder: list[str], message: str) -> None:
    """Three gigabytes of another project's source in the checkout would be linted, packed and committed."""
    done = subprocess.run(
        ["/usr/bin/make", "-s", "rigs", *folder], cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0 and message in done.stderr
