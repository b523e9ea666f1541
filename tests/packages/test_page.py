"""docs/install.md, literally: the lines that the page has under a heading are run in an empty Debian that boots."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages.booted import COMMAND_SECONDS, Booted, booted, root_archive
from tests.packages.built import FOLDER, NEXT, field, needs_packages, path_of, repacked
from tests.packages.test_install import SUITES
from tests.packages.test_repository import MISSING, TOOLS, secret_key
from tests.processes import until

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "install.md").read_text()
PACKAGES = ("gangline-runtime", "gangline-agent")
#: The operator's folder of packages: the page's lines run there.
WHERE = "/root/packages"


def lines_of(heading: str) -> list[str]:
    """Return the indented lines under a heading of the page, except those of other systems and
    those that are a file's content.
    """
    match = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL
    )
    assert match is not None, heading
    lines = re.findall(r"^    (\S.*)$", match[1], re.MULTILINE)
    return [line for line in lines if not re.match(r"(dnf|rpm) |[A-Z][\w-]+[:=]|GANGLINE_", line)]


def test_the_page_has_the_lines() -> None:
    """A heading that is renamed would leave the tests below with nothing to run."""
    assert lines_of("Install the agent") == [
        "apt install ./gangline-runtime_*.deb ./gangline-agent_*.deb",
        "systemctl enable --now gangline-agent",
        "gangline doctor",
        "gangline check",
    ]
    counts = {
        heading: len(lines_of(heading))
        for heading in ("Install the aggregator", "Upgrade and go back", "Check a host", "A signed repository")
    }  # fmt: skip
    assert counts == {
        "Install the aggregator": 4,
        "Upgrade and go back": 3,
        "Check a host": 1,
        "A signed repository": 3,
    }


class Operator:
    """Types a line and confirms apt's questions."""

    def __init__(self, host: Booted) -> None:
        self.host = host

    def types(self, line: str, *, codes: tuple[int, ...] = (0,)) -> str:
        command = self.host.command("sh", "-c", f"cd {WHERE} && {line}")
        ended = subprocess.run(
            command, check=False, input="y\n", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=COMMAND_SECONDS,
        )  # fmt: skip
        assert ended.returncode in codes, f"{line}: {ended.stdout}"
        return ended.stdout

    def puts(self, package: Path) -> str:
        """Put a package into the folder; return what its name has between `_` and `.deb`."""
        shutil.copy(package, self.host.root / WHERE.lstrip("/"))
        return package.stem.partition("_")[2]


@pytest.fixture(scope="module", params=SUITES)
def operator(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    archive = root_archive(request.param, Path(FOLDER).absolute().parent / "build" / "roots")
    with booted(archive, tmp_path_factory.mktemp("host")) as machine:
        (machine.root / WHERE.lstrip("/")).mkdir()
        # There is no network: apt would ask for minutes whether there is one.
        for sources in (machine.root / "etc/apt").rglob("*.list"):
            sources.unlink()
        yield Operator(machine)


@needs_packages
def test_the_agent_is_installed_upgraded_and_taken_back(operator: Operator, tmp_path: Path) -> None:
    """The lines of `Install the agent`, `Check a host` and `Upgrade and go back`."""
    old = {operator.puts(path_of(package, "deb")) for package in PACKAGES}.pop()
    install, enable, doctor, check = lines_of("Install the agent")
    operator.types(install)
    operator.types(enable)
    until(
        lambda: "agent" in operator.types("cat /run/gangline/status.json", codes=(0, 1)), "a sample"
    )
    # There is no aggregator, which doctor calls a problem, and says where.
    assert "127.0.0.1:7600" in operator.types(doctor, codes=(1,))
    assert operator.types(check).strip()
    (line,) = lines_of("Check a host")
    assert "--json" in line and operator.types(line, codes=(1,)).strip()
    assert json.loads(operator.types("gangline doctor --json", codes=(1,)))["results"]

    new = {operator.puts(repacked(package, tmp_path)) for package in PACKAGES}.pop()
    upgrade, back, repair = lines_of("Upgrade and go back")
    running = "readlink /opt/gangline/current"
    operator.types(upgrade.replace("NEW", new))
    assert operator.types(running).strip().endswith(f"-{NEXT}")
    operator.types(back.replace("OLD", old))
    assert operator.types(running).strip() == f"versions/{field('gangline-agent', 'Version')}"
    for package in PACKAGES:
        (operator.host.root / WHERE.lstrip("/") / f"{package}_{old}.deb").unlink()
    operator.types(repair)
    assert operator.types(running).strip().endswith(f"-{NEXT}")
    assert operator.types("systemctl is-active gangline-agent").strip() == "active"
    operator.types("apt purge gangline-agent gangline-runtime")
    assert not operator.types("ls -A /opt/gangline /var/lib/gangline 2>/dev/null", codes=(2,))


@needs_packages
def test_the_script_for_other_systems_ends_with_a_row(operator: Operator, tmp_path: Path) -> None:
    """The command of the page's last table for RHEL and Ubuntu also runs on Debian, and prints a row of that table."""
    for name in ("old", "new"):
        (operator.host.root / name).mkdir()
    for package in PACKAGES:
        shutil.copy(path_of(package, "deb"), operator.host.root / "old")
        shutil.copy(repacked(package, tmp_path), operator.host.root / "new")
    shutil.copy(ROOT / "packaging" / "try_on_host.sh", operator.host.root)
    printed = operator.types("sh /try_on_host.sh /old /new").splitlines()
    heading = re.search(r"^## Where this was tried\n(.*)$", PAGE, re.MULTILINE)
    assert heading is not None and printed[-1].count("|") == heading[1].count("|")
    assert printed[-1].startswith("| Debian") and f"-{NEXT} and back, removal" in printed[-1]
    assert operator.types("sh /try_on_host.sh /old", codes=(2,)).startswith("usage, as root")
    operator.types("apt purge gangline-agent gangline-runtime")


@needs_packages
def test_the_aggregator_is_installed_and_lists_the_host(operator: Operator) -> None:
    """The lines of `Install the aggregator`, beside an agent on the same host."""
    for path in (operator.host.root / WHERE.lstrip("/")).iterdir():
        path.unlink()
    for package in (*PACKAGES, "gangline-aggregator"):
        operator.puts(path_of(package, "deb"))
    install, enable, timer, hosts = lines_of("Install the aggregator")
    operator.types(install)
    operator.types(enable)
    operator.types(timer)
    install, enable, *_ = lines_of("Install the agent")
    operator.types(install)
    operator.types(enable)
    name = operator.types("uname -n").strip()
    until(lambda: name in operator.types(hosts, codes=(0, 1, 3)), f"gangline hosts lists {name}")
    operator.types("apt purge gangline-agent gangline-aggregator gangline-runtime")


@needs_packages
@pytest.mark.skipif(any(shutil.which(name) is None for name in TOOLS), reason=MISSING)
def test_the_agent_is_installed_from_a_signed_repository(
    operator: Operator, tmp_path: Path
) -> None:
    """The lines of `A signed repository`, with a folder in the place of the web server."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for package in PACKAGES:
        for kind in ("deb", "rpm"):
            shutil.copy(path_of(package, kind), packages)
    to = operator.host.root / "repository"
    script = ROOT / "packaging" / "build" / "repository.py"
    command = ["python3", "-B", str(script), "--packages", str(packages), "--to", str(to), "--key", str(secret_key(tmp_path))]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    shutil.copy(to / "gangline.asc", operator.host.root / WHERE.lstrip("/"))
    for line in lines_of("A signed repository"):
        operator.types(line.replace("https://HOST", "file:/repository"))
    assert operator.types("gangline --version").startswith("gangline ")
