"""The maintainer scripts with commands that only note how they are called: on a host, in a chroot, in the build of an image."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = ROOT / "packaging" / "scripts"
SHARED = ("functions.sh", "remove_old_versions.sh")
NAMES = sorted(path.name for path in SCRIPTS.iterdir() if path.name not in SHARED)
#: The first lines that `make packages` writes into each script.
VERSION, STORE_VERSION = "0.2.0-1", 19
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
    "runuser",
]

UNITS = ["gangline-agent.service", "gangline-aggregator.service", "gangline-backup.timer"]


def whole(name: str) -> str:
    """Return the script as `make packages` assembles it."""
    head = f"set -e\nversion={VERSION}\nstore_version={STORE_VERSION}\n"
    return f"{head}{(SCRIPTS / 'functions.sh').read_text()}\n{(SCRIPTS / name).read_text()}"


class Host:
    """A PATH of stubs; *running* says whether systemd does."""

    def __init__(self, folder: Path, *, running: bool, failing: tuple[str, ...] = ()) -> None:
        self.folder, self.running, self.calls = folder, running, folder / "calls"
        (folder / "bin").mkdir()
        self.tree = folder / "opt/gangline"
        (self.tree / "bin").mkdir(parents=True)
        (self.tree / "bin/remove-old-versions").write_text("#!/bin/sh\n")
        (self.tree / "bin/remove-old-versions").chmod(0o755)
        for package in ("runtime", "agent", "aggregator"):
            self.unpack(package, "1")
            (self.tree / f"versions/{VERSION}").mkdir(parents=True, exist_ok=True)
            (self.tree / f"versions/{VERSION}/{package}.complete").touch()
        for name in STUBS:
            code = int(name in failing or name == "getent")  # no user exists yet
            self.stub(name, f"exit {code}")
        if "runuser" not in failing:
            self.stub("runuser", 'shift 3\nexec "$@"')  # runuser -u USER -- COMMAND

    def stub(self, name: str, script: str) -> None:
        """Make a command that notes its arguments and then runs *script*."""
        stub = self.folder / "bin" / name
        stub.write_text(f'#!/bin/sh\necho {name} "$@" >> {self.calls}\n{script}\n')
        stub.chmod(0o755)

    def unpack(self, package: str, content: str) -> None:
        """Replace the old file with a new one, as dpkg does."""
        file = self.tree / f"packages/{package}/lib/{package}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(".new")
        new.write_text(content)
        new.replace(file)

    def run(
        self, name: str, *arguments: str, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a script as dpkg or rpm would."""
        text = whole(name).replace("/run/systemd/system", str(self.folder / "systemd"))
        for path in ("/var/lib", "/var/backups", "/etc/gangline", "/etc/systemd", "/opt/gangline"):
            text = text.replace(path, f"{self.folder}{path}")
        if self.running:
            (self.folder / "systemd").mkdir(exist_ok=True)
        return subprocess.run(
            ["/bin/sh", "-c", text, "script", *arguments],
            env={"PATH": f"{self.folder}/bin:/usr/bin:/bin", **environment},
            check=False, capture_output=True, text=True,
        )  # fmt: skip

    def called(self, command: str) -> list[str]:
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line.partition(" ")[2] for line in lines if line.partition(" ")[0] == command]


@pytest.mark.parametrize("name", [*NAMES, *SHARED])
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
    """Otherwise the unit fails later with 217/USER, without a visible cause."""
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
    queries = [f"--quiet is-active {unit}" for unit in UNITS]
    assert host.called("systemctl") == ["daemon-reload", *queries, f"try-restart {' '.join(UNITS)}"]


def test_an_upgrade_without_a_restart_says_how_to_restart(tmp_path: Path) -> None:
    """A fleet is restarted only by its operator."""
    host = Host(tmp_path, running=True)
    result = host.run(
        "gangline-aggregator.postinst", "configure", "0.1.0-1", GANGLINE_NO_RESTART="1"
    )
    assert not any("restart" in call for call in host.called("systemctl"))
    assert f"systemctl restart {' '.join(UNITS)}" in result.stdout


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
    assert host.called("userdel") == [call for call in host.called("rm") if "/var/" in call] == []


def test_in_a_chroot_nothing_is_stopped(tmp_path: Path) -> None:
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
    kinds = ("preinst", "postinst", "prerm", "postrm")
    packages = ("gangline-runtime", "gangline-agent", "gangline-aggregator")
    names = {f"{name}.{kind}" for name in packages for kind in kinds}
    assert set(NAMES) == names - {"gangline-runtime.prerm"}  # no unit runs from it


def current(host: Host) -> Path:
    return (host.tree / "current").resolve()


def test_what_runs_is_whole_while_an_upgrade_unpacks(tmp_path: Path) -> None:
    """A sampler that imported a module late got the new version's: files of a running version are never replaced."""
    host = Host(tmp_path, running=False)
    assert host.run("gangline-agent.postinst", "configure", "").returncode == 0
    old = current(host)
    assert old.name == VERSION
    first = (old / "lib/agent.py").stat()
    assert (
        first.st_ino == (host.tree / "packages/agent/lib/agent.py").stat().st_ino
    )  # no second copy
    host.unpack("agent", "2")
    host.unpack("runtime", "2")
    assert (old / "lib/agent.py").read_text() == "1"
    # The same version again, as its builder installs it: the new files.
    assert host.run("gangline-agent.postinst", "configure", VERSION).returncode == 0
    assert (current(host) / "lib/agent.py").read_text() == "2"


def test_a_version_is_used_once_all_packages_are_in_it(tmp_path: Path) -> None:
    """Between two packages of one upgrade a service that is restarted found half a version."""
    host = Host(tmp_path, running=True)
    assert host.run("gangline-agent.postinst", "configure", "").returncode == 0
    for package in ("runtime", "agent", "aggregator"):
        (host.tree / f"versions/{VERSION}/{package}.complete").unlink()
    (host.tree / "versions/0.1.0-1").mkdir()
    (host.tree / "current").unlink()
    (host.tree / "current").symlink_to("versions/0.1.0-1")
    host.calls.unlink()
    for package, then in (("runtime", "0.1.0-1"), ("agent", "0.1.0-1"), ("aggregator", VERSION)):
        result = host.run(f"gangline-{package}.postinst", "configure", "0.1.0-1")
        assert (result.returncode, current(host).name) == (0, then), result.stderr
    assert [call for call in host.called("systemctl") if "restart" in call] == [
        f"try-restart {' '.join(UNITS)}"
    ]


def test_removal_takes_a_package_out_of_every_version(tmp_path: Path) -> None:
    """dpkg does not know hard links."""
    host = Host(tmp_path, running=False)
    for package in ("runtime", "agent"):
        host.run(f"gangline-{package}.postinst", "configure", "")
    patched = whole("gangline-agent.prerm")
    assert "unlink_package agent" in patched
    result = subprocess.run(
        ["/bin/sh", "-c", patched.replace("/opt/gangline", str(host.tree)).replace("before_removal g", ": g"), "x", "remove"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    left = sorted(path.name for path in (host.tree / f"versions/{VERSION}/lib").iterdir())
    assert left == ["runtime.py"]


def store(host: Host, version: int) -> Path:
    """A store of that version, where the settings put it."""
    host.stub("getent", "exit 0")
    data = host.folder / "var/lib/gangline-aggregator"
    data.mkdir(parents=True, exist_ok=True)
    (data / "gangline.duckdb").touch()
    (data / "store_version").write_text(f"{version}\n")
    return data


@pytest.mark.parametrize("package", ["gangline-runtime", "gangline-agent", "gangline-aggregator"])
def test_going_back_past_a_migration_is_refused_before_unpacking(
    package: str, tmp_path: Path
) -> None:
    """The old aggregator refused the store after the new version was removed: an outage, and a hurried restore."""
    host = Host(tmp_path, running=True)
    data = store(host, STORE_VERSION + 1)
    (data / f"backup_before_{STORE_VERSION + 1}").write_text("/var/backups/gangline/2026-11-28\n")
    result = host.run(f"{package}.preinst", "upgrade", "0.3.0-1")
    assert result.returncode == 1
    assert "Nothing was changed" in result.stderr
    assert "gangline admin restore --from /var/backups/gangline/2026-11-28" in result.stderr
    assert host.called("systemctl") == []


@pytest.mark.parametrize(("have", "calls"), [(STORE_VERSION, 0), (STORE_VERSION - 1, 1)])
def test_a_store_that_will_be_migrated_is_backed_up_first(
    have: int, calls: int, tmp_path: Path
) -> None:
    """The installed version makes the backup, because it knows the current store."""
    host = Host(tmp_path, running=True)
    data = store(host, have)
    backup = host.folder / "var/backups/gangline/2026-11-28"
    (host.tree / "bin/gangline").write_text(f"#!/bin/sh\nmkdir -p {backup}\n")
    (host.tree / "bin/gangline").chmod(0o755)
    assert host.run("gangline-aggregator.preinst", "upgrade", "0.1.0-1").returncode == 0
    assert backup.exists() == bool(calls)
    noted = [path.read_text() for path in data.glob("backup_before_*")]
    assert noted == [f"{backup}\n"] * calls


def test_an_upgrade_without_its_backup_is_refused(tmp_path: Path) -> None:
    """With a disk too full for a backup nothing is migrated, unless explicitly allowed."""
    host = Host(tmp_path, running=True, failing=("runuser",))
    store(host, STORE_VERSION - 1)
    (host.tree / "bin/gangline").write_text("#!/bin/sh\n")
    (host.tree / "bin/gangline").chmod(0o755)
    result = host.run("gangline-aggregator.preinst", "upgrade", "0.1.0-1")
    assert result.returncode == 1 and "GANGLINE_NO_BACKUP=1" in result.stderr
    again = host.run("gangline-aggregator.preinst", "upgrade", "0.1.0-1", GANGLINE_NO_BACKUP="1")
    assert again.returncode == 0


def test_a_backup_that_fails_refuses_the_upgrade_though_an_older_one_is_there(
    tmp_path: Path,
) -> None:
    """The aggregator did not answer yet: no backup was made, the listing after it succeeded, and the store was migrated."""
    host = Host(tmp_path, running=True)
    data = store(host, STORE_VERSION - 1)
    (host.folder / "var/backups/gangline/2026-11-27").mkdir(parents=True)
    (host.tree / "bin/gangline").write_text("#!/bin/sh\necho no aggregator answers >&2\nexit 3\n")
    (host.tree / "bin/gangline").chmod(0o755)
    result = host.run("gangline-aggregator.preinst", "upgrade", "0.1.0-1")
    assert result.returncode == 1 and "could not be backed up" in result.stderr
    assert "no aggregator answers" in result.stderr
    assert not (data / f"backup_before_{STORE_VERSION}").exists()


def test_a_version_that_still_runs_stays(tmp_path: Path) -> None:
    """A sampler hangs in a driver for days: its files stay until it has ended."""
    tree = tmp_path / "opt/gangline"
    for name in ("1", "2", "3"):
        (tree / f"versions/{name}/bin").mkdir(parents=True)
    shutil.copy("/bin/sleep", tree / "versions/1/bin/sleep")
    (tree / "current").symlink_to("versions/3")
    script = (SCRIPTS / "remove_old_versions.sh").read_text()
    script = script.replace("/opt/gangline", str(tree)).replace("/run/systemd/system", "/nowhere")
    running = subprocess.Popen([tree / "versions/1/bin/sleep", "600"])
    try:
        shown = subprocess.run(
            ["/bin/sh", "-c", script], check=True, capture_output=True, text=True
        )
    finally:
        running.kill()
        running.wait()
    assert shown.stdout == f"1 stays until its last process ends: {running.pid}\n"
    assert sorted(path.name for path in (tree / "versions").iterdir()) == ["1", "3"]
    subprocess.run(["/bin/sh", "-c", script], check=True)
    assert [path.name for path in (tree / "versions").iterdir()] == ["3"]
