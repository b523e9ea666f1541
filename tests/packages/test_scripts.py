"""The maintainer scripts with commands that only note how they are called: on a host, in a chroot, in the build of an image."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = ROOT / "packaging" / "scripts"
NAMES = sorted(path.name for path in SCRIPTS.iterdir() if path.name != "functions.sh")
#: Commands that change a host; in the tests each notes its arguments and does nothing else.
STUBS = [
    "systemctl",
    "systemd-sysusers",
    "groupadd",
    "useradd",
    "userdel",
    "install",
    "getent",
    "rm",
    "rmdir",
    "stat",
]


def whole(name: str) -> str:
    """The script as `make packages` puts it together."""
    return f"set -e\n{(SCRIPTS / 'functions.sh').read_text()}\n{(SCRIPTS / name).read_text()}"


class Host:
    """A PATH of stubs; *running* says whether systemd does."""

    def __init__(self, folder: Path, *, running: bool, failing: tuple[str, ...] = ()) -> None:
        self.folder, self.running, self.calls = folder, running, folder / "calls"
        (folder / "bin").mkdir()
        for name in STUBS:
            code = int(name in failing or name == "getent")  # nobody is known yet
            stub = folder / "bin" / name
            stub.write_text(f'#!/bin/sh\necho {name} "$@" >> {self.calls}\nexit {code}\n')
            stub.chmod(0o755)

    def run(
        self, name: str, *arguments: str, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a script as dpkg or rpm would."""
        text = whole(name).replace("/run/systemd/system", str(self.folder / "systemd"))
        for path in ("/var/lib", "/var/backups", "/etc/gangline", "/etc/systemd"):
            text = text.replace(path, f"{self.folder}{path}")
        if self.running:
            (self.folder / "systemd").mkdir(exist_ok=True)
        return subprocess.run(
            ["/bin/sh", "-c", text, "script", *arguments],
            env={"PATH": f"{self.folder}/bin", **environment},
            check=False, capture_output=True, text=True,
        )  # fmt: skip

    def called(self, command: str) -> list[str]:
        """The arguments of each call of *command*."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line.partition(" ")[2] for line in lines if line.partition(" ")[0] == command]


@pytest.mark.parametrize("name", [*NAMES, "functions.sh"])
def test_no_script_hides_a_failure(name: str) -> None:
    """`systemd-sysusers || true` in an image: no user was made, and dpkg was content."""
    text = (SCRIPTS / name).read_text()
    assert not re.search(r"\|\|\s*(true|:)", text)
    checked = subprocess.run(
        ["/bin/sh", "-n"], input=text, check=False, capture_output=True, text=True
    )
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize("package", ["gangline-agent", "gangline-aggregator"])
def test_a_user_is_made_where_sysusers_makes_none(package: str, tmp_path: Path) -> None:
    """In the build of an image systemd-sysusers prints success and makes none."""
    host = Host(tmp_path, running=False)
    result = host.run(f"{package}.postinst", "configure", "")
    assert (result.returncode, result.stderr) == (0, "")
    (arguments,) = host.called("useradd")
    user = arguments.split()[-1]
    assert "--system" in arguments and arguments.startswith("--system --gid " + user)
    assert host.called("systemctl") == []


def test_a_user_that_cannot_be_made_fails_the_installation(tmp_path: Path) -> None:
    """Or the unit fails later with 217/USER, and nobody knows why."""
    host = Host(tmp_path, running=True, failing=("systemd-sysusers", "useradd"))
    assert host.run("gangline-agent.postinst", "configure", "").returncode == 1


@pytest.mark.parametrize("first", [("configure", ""), ("configure",), ("1",)])
def test_the_first_installation_starts_nothing(first: tuple[str, ...], tmp_path: Path) -> None:
    """The operator sets the aggregator's address first, then enables it."""
    host = Host(tmp_path, running=True)
    assert host.run("gangline-agent.postinst", *first).returncode == 0
    assert host.called("systemctl") == ["daemon-reload"]


@pytest.mark.parametrize("again", [("configure", "0.1.0-1"), ("2",)])
def test_an_upgrade_restarts_what_runs(again: tuple[str, ...], tmp_path: Path) -> None:
    """dpkg names the old version, rpm counts."""
    host = Host(tmp_path, running=True)
    assert host.run("gangline-agent.postinst", *again).returncode == 0
    assert host.called("systemctl") == ["daemon-reload", "try-restart gangline-agent.service"]


def test_an_upgrade_without_a_restart_says_how_to_restart(tmp_path: Path) -> None:
    """A fleet is restarted when its operator says so."""
    host = Host(tmp_path, running=True)
    result = host.run(
        "gangline-aggregator.postinst", "configure", "0.1.0-1", GANGLINE_NO_RESTART="1"
    )
    assert host.called("systemctl") == ["daemon-reload"]
    assert "systemctl restart gangline-aggregator.service gangline-backup.timer" in result.stdout


@pytest.mark.parametrize("words", [("upgrade", "0.2.0-1"), ("1",)])
def test_an_upgrade_stops_nothing(words: tuple[str, ...], tmp_path: Path) -> None:
    """The agent samples until the new one starts."""
    host = Host(tmp_path, running=True)
    assert host.run("gangline-agent.prerm", *words).returncode == 0
    assert host.run("gangline-agent.postrm", *words).returncode == 0
    assert host.called("systemctl") == []


@pytest.mark.parametrize("words", [("remove",), ("0",)])
def test_removal_stops_it_and_keeps_the_state(words: tuple[str, ...], tmp_path: Path) -> None:
    """A spool that waits for an aggregator outlives a package that is taken off and put back."""
    host = Host(tmp_path, running=True)
    assert host.run("gangline-agent.prerm", *words).returncode == 0
    assert host.run("gangline-agent.postrm", *words).returncode == 0
    assert host.called("systemctl") == ["disable --now gangline-agent.service", "daemon-reload"]
    assert host.called("rm") == host.called("userdel") == []


def test_in_a_chroot_nothing_is_stopped(tmp_path: Path) -> None:
    """Of the host around it, that is."""
    host = Host(tmp_path, running=False)
    assert host.run("gangline-agent.prerm", "remove").returncode == 0
    assert host.called("systemctl") == ["disable gangline-agent.service"]


def test_purge_takes_the_state_away(tmp_path: Path) -> None:
    """Backups stay: they are not the package's."""
    for package, state in (
        ("gangline-agent", "/var/lib/gangline"),
        ("gangline-aggregator", "/var/lib/gangline-aggregator"),
    ):
        folder = tmp_path / package
        folder.mkdir()
        host = Host(folder, running=True)
        assert host.run(f"{package}.postrm", "purge").returncode == 0
        removed = " ".join(host.called("rm")).split()
        assert f"{folder}{state}" in removed
        assert not any("backups" in path for path in removed)


def test_the_scripts_are_of_packages_that_exist() -> None:
    """A script with a mistyped name is never put into a package."""
    kinds = ("postinst", "prerm", "postrm")
    made = {
        f"{name}.{kind}" for name in ("gangline-agent", "gangline-aggregator") for kind in kinds
    }
    assert set(NAMES) == made
