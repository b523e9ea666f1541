"""Root's package scripts write, remove, run and trust nothing in a folder that an unprivileged user owns.

The users are real, in a copy of this machine's root file system; the victim is a file of root's.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages.stubs import OverlaidRoot, overlaid_root
from tests.packages.test_scripts import STORE_VERSION, whole

SERVICE, AGENT, OTHER = "gangline-aggregator", "gangline", "gangline-other"
DATA, STATE = "/var/lib/gangline-aggregator", "/var/lib/gangline"
VICTIM, SECRET, OWNED = "/root/victim", "of root", "root::0:0::"
#: A backup that succeeds, and a folder of backups whose names the user chooses.
GANGLINE = """#!/bin/sh
[ "$(id -un)" = gangline-aggregator ] || exit 7
case "$(env)" in *SECRET*) exit 8 ;; esac
! [ -t 0 ] && ! [ -t 1 ] || exit 9
printf 'written \\033[2J\\n'
"""


class Hostile:
    """Root's script text in a root file system with the users of the packages."""

    def __init__(self, root: OverlaidRoot) -> None:
        self.root = root
        for name, home in ((SERVICE, DATA), (AGENT, STATE), (OTHER, "/nowhere")):
            root.run(f"useradd --system --home-dir {home} --shell /usr/sbin/nologin {name}")
        root.run(f"echo '{SECRET}' >{VICTIM}; chmod 600 {VICTIM}; mkdir -p /opt/gangline/bin /var/backups")  # fmt: skip
        for folder, name in ((DATA, SERVICE), ("/var/backups/gangline", SERVICE), (STATE, AGENT)):
            root.run(f"install -d -m 0750 -o {name} -g {name} {folder}")
        self.program("opt/gangline/bin/gangline", GANGLINE)
        self.program("opt/gangline/bin/remove-old-versions", "#!/bin/sh\n")

    def program(self, path: str, text: str) -> None:
        (self.root.root / path).write_text(text)
        (self.root.root / path).chmod(0o755)

    def by(self, user: str, command: str) -> None:
        """Prepare the folder as its owner."""
        self.root.run(f"runuser -u {user} -- /bin/sh -ec '{command}'")

    def script(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        (self.root.root / "script").write_text(whole(name))
        return self.root.run(f"SECRET=1 /bin/sh /script {' '.join(words)}", check=False)

    @property
    def victim(self) -> str:
        return (self.root.root / VICTIM.lstrip("/")).read_text().strip()


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Hostile]:
    with overlaid_root(tmp_path) as root:
        yield Hostile(root)


def test_root_writes_through_no_link_of_the_aggregators_user(hostile: Hostile) -> None:
    """`backup_before_N` was a link to a file of root's, and root wrote a name of the user's choice into it."""
    hostile.by(SERVICE, f"touch {DATA}/gangline.duckdb; echo 1 >{DATA}/store_version")
    hostile.by(SERVICE, f"ln -s {VICTIM} {DATA}/backup_before_{STORE_VERSION}")
    hostile.by(SERVICE, f'mkdir "/var/backups/gangline/zz\n{OWNED}"')
    result = hostile.script("gangline-aggregator.preinst", "upgrade", "0.1.0-1")
    assert (result.returncode, hostile.victim) == (0, SECRET), result.stdout
    assert "written [2J" in result.stdout and "\033" not in result.stdout
    note = hostile.root.root / f"{DATA}/backup_before_{STORE_VERSION}".lstrip("/")
    assert not note.is_symlink() and note.owner is not None and note.stat().st_uid != 0


@pytest.mark.parametrize("planted", ["ln -s /root/version store_version", "mkfifo store_version", "mkdir store_version"])  # fmt: skip
def test_root_reads_no_version_from_a_link(planted: str, hostile: Hostile) -> None:
    """A link to a file that only root may read decided whether a version was refused, and root printed its digits."""
    hostile.root.run("echo 4711 >/root/version; chmod 600 /root/version")
    hostile.by(SERVICE, f"cd {DATA}; {planted}")
    result = hostile.script("gangline-agent.preinst", "upgrade", "0.1.0-1")
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize(
    "name", ["/x; touch /root/owned", "$(touch /root/owned)", "/x\033[2J", "-o", ""]
)
def test_root_is_shown_no_command_of_the_users(name: str, hostile: Hostile) -> None:
    """The name of the backup is part of a line that an administrator copies into a root shell."""
    data = hostile.root.root / DATA.lstrip("/")
    (data / f"backup_before_{STORE_VERSION + 1}").write_text(f"{name}\n--force\n")
    hostile.by(SERVICE, f"echo {STORE_VERSION + 1} >{DATA}/store_version")
    result = hostile.script("gangline-runtime.preinst", "upgrade", "0.1.0-1")
    assert result.returncode == 1
    assert f"restore --from /var/backups/gangline --data {DATA} --force\n" in result.stdout


def test_a_data_folder_of_another_user_is_no_reason_to_skip_the_backup(hostile: Hostile) -> None:
    """Seen as the service's user it looked empty, and the store was migrated without a backup."""
    hostile.by(SERVICE, f"touch {DATA}/gangline.duckdb")
    hostile.root.run(f"chown {OTHER} {DATA}; chmod 700 {DATA}")
    result = hostile.script("gangline-aggregator.preinst", "upgrade", "0.1.0-1")
    assert result.returncode == 1 and "GANGLINE_NO_BACKUP=1" in result.stdout


def test_a_purge_removes_only_files_of_the_agents_user(hostile: Hostile) -> None:
    """The spool's inode named a folder of /dev/shm that another user had made there, and root removed it."""
    shared = hostile.root.root / "dev/shm"
    shared.mkdir(parents=True, exist_ok=True)
    hostile.root.run("chmod 1777 /dev/shm")
    hostile.by(AGENT, f"mkdir {STATE}/spool /dev/shm/gangline-spool-1-2")
    hostile.by(OTHER, "mkdir /dev/shm/mine")
    hostile.by(
        OTHER, f'ln -s /dev/shm/mine "/dev/shm/gangline-spool-$(stat -c "%D" {STATE} || true)"'
    )
    hostile.by(OTHER, "mkdir /dev/shm/gangline-spool-9-9; touch /dev/shm/gangline-spool-9-9/a")
    result = hostile.script("gangline-agent.postrm", "purge")
    assert result.returncode == 0, result.stdout
    left = {path.name for path in shared.iterdir()}
    assert "gangline-spool-9-9" in left and "gangline-spool-1-2" not in left
    assert not (hostile.root.root / STATE.lstrip("/")).exists()


@pytest.mark.parametrize(("owner", "code"), [("root", 0), (AGENT, 1)])
def test_the_chart_gives_away_no_files_of_a_foreign_folder(
    owner: str, code: int, hostile: Hostile
) -> None:
    """`chown -R` by root gave the agent's user whatever the folder's owner had linked there."""
    template = Path("packaging/helm/gangline/templates/agent.yaml")
    text = (Path(__file__).parents[2] / template).read_text()
    match = re.search(r"- sh\n +- -ec\n +- \|\n((?: {14}.*\n)+)", text)
    assert match is not None
    hostile.root.run(
        f"chown {owner} {STATE}; ln {VICTIM} {STATE}/hard; ln -s {VICTIM} {STATE}/soft"
    )
    command = re.sub(r"\{\{.*?\}\}", "FOLDER", match[1])
    (hostile.root.root / "script").write_text(command)
    result = hostile.root.run("/bin/sh -e /script", check=False)
    assert result.returncode == code, result.stdout
    assert (hostile.root.root / VICTIM.lstrip("/")).stat().st_uid == 0
    state = (hostile.root.root / STATE.lstrip("/")).stat()
    assert (state.st_uid == 47600) is (code == 0)
