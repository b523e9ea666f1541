"""The Ansible role, run by the real ansible-playbook over hosts that are folders: package manager,
systemd and agent are fakes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.processes import GUARD_SECONDS

ROOT = Path(__file__).parent.parent.parent
ANSIBLE = ROOT / "packaging" / "ansible"
PLAYBOOK = ANSIBLE / "gangline.yml"
PROGRAM = Path(sys.executable).with_name("ansible-playbook")
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="needs: pip install ansible-core")
#: Ansible takes 20 s for a host: few of them, each in a batch of its own. `serial` itself is Ansible's.
HOSTS = ["gpu-001", "gpu-002", "gpu-003"]

#: Fakes of a host's programs. HOST is its folder.
STAND_INS = {
    "python": '#!/bin/sh\nPATH="HOST/bin:$PATH" exec PYTHON "$@"\n',
    "dpkg-deb": '#!/bin/sh\nfor file; do :; done\nprintf %s "$(cat "$file")"\n',
    "dpkg-query": "#!/bin/sh\ncat HOST/installed 2>/dev/null\n",
    "apt-get": """#!/bin/sh
[ "$GANGLINE_NO_RESTART" = 1 ] || exit 9
echo "NAME" >> SHARED/order
for file; do case "$file" in /*.deb) cat "$file"; echo ;; esac; done > HOST/installed
""",
    "systemctl": """#!/bin/sh
case "$1" in
    show) printf 'LoadState=loaded\\nActiveState=%s\\nUnitFileState=enabled\\n' "$(cat HOST/active)" ;;
    is-enabled) cat HOST/enabled; [ "$(cat HOST/enabled)" = enabled ] ;;
    enable) echo enabled > HOST/enabled ;;
    start | restart) echo active > HOST/active; echo "$1" >> HOST/started ;;
esac
""",
    "gangline": """#!/bin/sh
if [ "$(cat HOST/active)" != active ]; then echo '{"known": false, "why": "no agent runs here"}'
elif grep -q "gangline-agent 2" HOST/installed && [ -e HOST/worse ]; then
    echo '{"known": true, "findings": [{"name": "old", "device": "gpu"}, {"name": "agent_slow", "device": "cpu"}]}'
else echo '{"known": true, "findings": [{"name": "old", "device": "gpu"}]}'
fi
""",
}


class Fleet:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in HOSTS:
            host = folder / name
            (host / "bin").mkdir(parents=True)
            (host / "active").write_text("inactive\n")
            (host / "enabled").write_text("disabled\n")
            for program, text in STAND_INS.items():
                text = text.replace("HOST", str(host)).replace("NAME", name)
                text = text.replace("PYTHON", sys.executable).replace("SHARED", str(folder))
                (host / "bin" / program).write_text(text)
                (host / "bin" / program).chmod(0o755)
        inventory = {name: self._variables(folder / name) for name in HOSTS}
        inventory_text = yaml.safe_dump({"all": {"hosts": inventory}})
        (folder / "inventory.yml").write_text(inventory_text)

    def _variables(self, host: Path) -> dict[str, Any]:
        return {
            "ansible_connection": "local",
            "ansible_python_interpreter": str(host / "bin" / "python"),
            "ansible_remote_tmp": str(host / "tmp"),
            "gangline_command": str(host / "bin" / "gangline"),
            "gangline_settings_file": str(host / "agent.toml"),
            "gangline_stage_folder": str(host / "stage"),
        }

    def packages(self, version: int) -> list[str]:
        hosts_done = []
        for package in ("gangline-runtime", "gangline-agent"):
            path = self.folder / f"{package}_{version}_amd64.deb"
            path.write_text(f"{package} {version}")
            hosts_done.append(str(path))
        return hosts_done

    def play(self, version: int, **variables: object) -> subprocess.CompletedProcess[str]:
        given: dict[str, object] = {
            "gangline_become": False, "gangline_package_manager": "apt", "gangline_settle_seconds": 0,
            "gangline_start_seconds": 2, "gangline_package_files": self.packages(version), **variables,
        }  # fmt: skip
        command = [str(PROGRAM), "-i", str(self.folder / "inventory.yml"), "-e", json.dumps(given), str(PLAYBOOK)]  # fmt: skip
        environment = {
            **os.environ, "ANSIBLE_HOME": str(self.folder / "ansible"), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_PIPELINING": "1",
            "ANSIBLE_LOCALHOST_WARNING": "0", "PATH": f"{self.folder / HOSTS[0] / 'bin'}:{os.environ['PATH']}",
        }  # fmt: skip
        (self.folder / "order").unlink(missing_ok=True)
        return subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=10 * GUARD_SECONDS)  # fmt: skip

    def order(self) -> list[str]:
        path = self.folder / "order"
        return path.read_text().split() if path.exists() else []

    def installed(self, name: str) -> str:
        return (self.folder / name / "installed").read_text()


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def changed(output: str) -> dict[str, int]:
    lines = (line.split() for line in output.partition("PLAY RECAP")[2].splitlines() if "changed=" in line)  # fmt: skip
    return {
        line[0]: int(next(w for w in line if w.startswith("changed=")).partition("=")[2])
        for line in lines
    }


def test_its_syntax_is_good() -> None:
    """The quick part: ansible reads every file of it."""
    command = [str(PROGRAM), "--syntax-check", "-i", "localhost,", str(PLAYBOOK)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    (play,) = yaml.safe_load(PLAYBOOK.read_text())
    assert play["serial"] == [1, "5%", "25%"]
    role = ANSIBLE / "roles" / "gangline"
    defaults = yaml.safe_load((role / "defaults" / "main.yml").read_text())
    specs = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text())
    assert set(defaults) == set(specs["argument_specs"]["main"]["options"])


@pytest.mark.slow
def test_it_goes_in_steps_changes_nothing_twice_and_stops(fleet: Fleet) -> None:
    """A bad package breaks two hosts, not the fleet: a single failure may be chance. Faults from
    before the upgrade do not count.
    """
    settings = {"aggregator": "head:7600", "spool_bytes_max": 1 << 28}
    ended = fleet.play(1, gangline_settings=settings)
    assert ended.returncode == 0, ended.stdout
    assert fleet.order() == HOSTS
    host = fleet.folder / HOSTS[0]
    assert (host / "started").read_text().split() == ["start", "restart"]
    assert 'aggregator = "head:7600"\nspool_bytes_max = 268435456\n' in (host / "agent.toml").read_text()  # fmt: skip
    again = fleet.play(1, gangline_settings=settings)
    assert again.returncode == 0, again.stdout
    assert changed(again.stdout) == dict.fromkeys(HOSTS, 0), again.stdout
    assert fleet.order() == []
    for name in HOSTS[:2]:
        (fleet.folder / name / "worse").touch()
    ended = fleet.play(2)
    assert ended.returncode != 0
    assert "2 hosts got worse (at most 1 may)" in ended.stdout
    assert f"{HOSTS[0]}: agent_slow on cpu" in ended.stdout
    assert fleet.order() == HOSTS[:2]
    assert "gangline-agent 1" in fleet.installed(HOSTS[2])


def test_wrong_variables_are_rejected(fleet: Fleet) -> None:
    """Without a version and files the role changes nothing, and the message names the missing variable."""
    ended = fleet.play(1, gangline_package_files=[])
    assert ended.returncode != 0
    assert "set gangline_version (such as 0.1.0-1) or gangline_package_files" in ended.stdout
    assert fleet.order() == []


def test_packages_are_staged_in_no_folder_of_another_user() -> None:
    """Between the copy and the installation its owner could put in another package, which root installs."""
    for manager in ("apt", "dnf"):
        tasks = yaml.safe_load(
            (PLAYBOOK.parent / f"roles/gangline/tasks/{manager}.yml").read_text()
        )
        (stage,) = [
            task["ansible.builtin.file"] for task in tasks if "ansible.builtin.file" in task
        ]
        assert stage["follow"] is False and stage["mode"] == "0755"
        assert stage["owner"] == stage["group"] and stage["owner"].startswith("{{ 'root' if")
