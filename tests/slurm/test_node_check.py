"""node_check.sh, which is Prolog, Epilog and HealthCheckProgram: exit code 10 alone drains, and only our own drain is taken back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gangline.agent.commands.check import boot_id
from tests.agent.test_check import finding, status
from tests.processes import GUARD_SECONDS
from tests.slurm.plugin_cluster import running_cluster
from tests.slurm_cluster import MISSING, SlurmCluster, has_slurm

SCRIPT = Path(__file__).parents[2] / "executors" / "slurm" / "plugin" / "node_check.sh"
REASON = "gangline:v1;act=drain;cause=xid79;dev=0000:9b:00.0;ttl=3600"
OURS = f"{REASON};by=check"

#: Answers as the file `mode` of this node says, of both forms of the question.
GANGLINE = f"""#!/bin/sh
mode=$(cat "$0.mode.$SLURMD_NODENAME")
case $mode in
10) echo '{REASON}'; exit 10 ;;
mute) exit 10 ;;
words) echo 'usage: another program'; exit 10 ;;
killed) kill -9 $$ ;;
hung) exec sleep 600 ;;
fault) case "$*" in *--json*) echo '{{"known": true, "findings": [{{"name": "xid79"}}]}}' ;; esac; exit 0 ;;
well) case "$*" in *--json*) echo '{{"known": true, "findings": [{{"name": "xid31"}}]}}' ;; esac; exit 0 ;;
unknown) case "$*" in *--json*) echo '{{"known": false, "why": "no agent"}}' ;; esac; exit 0 ;;
*) exit "$mode" ;;
esac
"""
#: Prints the file `node`, and records its arguments.
SCONTROL = """#!/bin/sh
folder=$(dirname "$0")
case "$*" in
"-o show node "*) cat "$folder/node" && echo asked >>"$folder/asked" ;;
*) printf '%s\\n' "$*" >>"$folder/done" ;;
esac
"""
#: Exit codes and accidents that contain no information about the host.
ACCIDENTS = ("0", "1", "2", "126", "127", "124", "137", "mute", "words", "killed")

DRAIN = f"update nodename=gpu1 state=drain reason={OURS}"
TAKE_BACK = "update nodename=gpu1 state=undrain"
CONTEXTS = ("prolog_slurmd", "epilog_slurmd", "")
NODES = 3


class Host:
    """A host with the script, another `gangline` and another `scontrol`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gangline = folder / "gangline"
        for name, text in (("gangline", GANGLINE), ("scontrol", SCONTROL)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        self.shows("IDLE")

    def shows(self, state: str, reason: str = "", seconds_ago: float = 0.0) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - seconds_ago))
        shown = f" Reason={reason} [root@{stamp}]" if reason else ""
        line = f"NodeName=gpu1 Arch=x86_64 State={state} ThreadsPerCore=1 Partitions=main{shown}\n"
        (self.folder / "node").write_text(line)

    def run(self, mode: str, context: str = "") -> int:
        """Run the script as Slurm does; *context*: of a prolog or an epilog. Return its exit code."""
        (self.folder / "gangline.mode.gpu1").write_text(mode)
        environment = {
            "PATH": f"{self.folder}:/usr/bin:/bin", "SLURMD_NODENAME": "gpu1", "GANGLINE": str(self.gangline),
            "GANGLINE_STATE_FOLDER": str(self.folder / "state"),
        }  # fmt: skip
        if context:
            environment["SLURM_SCRIPT_CONTEXT"] = context
        return subprocess.run(
            [SCRIPT], env=environment, check=False, timeout=GUARD_SECONDS, capture_output=True
        ).returncode

    def done(self) -> list[str]:
        """Return the scontrol commands since the last call."""
        path = self.folder / "done"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def questions(self) -> int:
        path = self.folder / "asked"
        return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.mark.parametrize("context", CONTEXTS)
def test_exit_code_10_drains(host: Host, context: str) -> None:
    """A prolog and an epilog fail after setting Gangline's reason; a health check does not fail."""
    assert host.run("10", context) == (1 if context else 0)
    assert host.done() == [DRAIN]


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("mode", ACCIDENTS)
def test_nothing_else_does(host: Host, mode: str, context: str) -> None:
    """A missing command, a killed interpreter, a foreign program of that name: no job is stopped."""
    assert host.run(mode, context) == 0
    assert host.done() == []


@pytest.mark.parametrize("context", CONTEXTS)
def test_without_the_command_no_job_is_stopped(host: Host, context: str) -> None:
    """The package is removed, or half upgraded."""
    host.gangline.unlink()
    assert host.run("10", context) == 0
    host.gangline.mkdir()
    assert host.run("10", context) == 0
    assert host.done() == []


@pytest.mark.slow
def test_a_hung_command_stops_no_job(host: Host) -> None:
    """The command is ended after five seconds."""
    assert host.run("hung", "prolog_slurmd") == 0
    assert host.done() == []


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("state", ["IDLE+DRAIN", "MIXED+DRAIN", "DOWN", "DOWN*+DRAIN"])
def test_a_drain_of_somebody_elses_keeps_its_reason(host: Host, state: str, context: str) -> None:
    """The reason informs the person who set it; only that person ends the drain."""
    for reason in ("burn-in", "gangline:v1;act=drain;cause=xid79;ttl=3600;adv=a12", f"see {OURS}"):
        host.shows(state, reason)
        assert host.run("10", context) == (1 if context else 0)
        for mode in ("well", "unknown"):
            assert host.run(mode) == 0
    assert host.done() == []


def test_our_own_drain_is_renewed_before_it_ends(host: Host) -> None:
    """The reason contains its validity; the script does not set it again each minute."""
    host.shows("IDLE+DRAIN", OURS, seconds_ago=1700)
    host.run("10")
    assert host.done() == []
    host.shows("IDLE+DRAIN", OURS, seconds_ago=1900)
    host.run("10")
    assert host.done() == [DRAIN]


@pytest.mark.parametrize("hostile", ["link", "others", "owner"])
def test_nothing_is_written_or_believed_in_a_folder_of_another_user(
    host: Host, hostile: str, tmp_path: Path
) -> None:
    """Root would empty the target of a link there; a file there would hide that our drain is in force."""
    victim = tmp_path / "victim"
    victim.write_text("kept")
    place = tmp_path / "state"
    if hostile == "link":
        (tmp_path / "elsewhere").mkdir()
        place.symlink_to("elsewhere")
    else:
        place.mkdir()
    if hostile == "others":
        place.chmod(0o777)
    elif hostile == "owner":
        if os.geteuid():
            pytest.skip("needs root")
        os.chown(place, 65534, 65534)
    (place / "gpu1").symlink_to(victim)
    host.run("well")
    assert victim.read_text() == "kept" and (place / "gpu1").is_symlink()
    host.shows("IDLE+DRAIN", OURS)
    host.run("well")
    assert host.done() == [TAKE_BACK]


def test_our_own_drain_is_taken_back_when_the_fault_is_gone(host: Host) -> None:
    host.shows("IDLE+DRAIN", OURS)
    host.run("well")
    assert host.done() == [TAKE_BACK]


@pytest.mark.parametrize("mode", ["fault", "unknown", "1", "127", "killed", "words"])
def test_while_the_fault_stands_or_nothing_is_known_the_drain_lasts_as_long_as_it_said(
    host: Host, mode: str
) -> None:
    """An expired permit, or an ended agent, does not repair a host. After the ttl the drain is no longer Gangline's."""
    host.shows("IDLE+DRAIN", OURS, seconds_ago=3500)
    host.run(mode)
    assert host.done() == []
    host.shows("IDLE+DRAIN", OURS, seconds_ago=3700)
    host.run(mode)
    assert host.done() == [TAKE_BACK]


@pytest.mark.parametrize("context", CONTEXTS[:2])
def test_only_the_health_check_takes_back(host: Host, context: str) -> None:
    """No job starts on a drained node; an epilog belongs to a job that began earlier."""
    host.shows("IDLE+DRAIN", OURS)
    assert host.run("well", context) == 0
    assert host.done() == []


def test_slurm_is_not_asked_each_minute_by_each_host(host: Host) -> None:
    """Once after a start of the host, and after each drain until its end."""
    for _ in range(3):
        host.run("well")
    assert host.questions() == 1
    host.run("10", "prolog_slurmd")
    host.shows("IDLE+DRAIN", OURS)
    host.done()
    host.run("fault")
    host.run("well")
    assert host.done() == [TAKE_BACK]
    host.shows("IDLE")
    questions = host.questions()
    for _ in range(3):
        host.run("well")
    assert host.questions() == questions + 1


def test_a_controller_that_does_not_answer_is_borne(host: Host) -> None:
    """The prolog still fails: Slurm drains the node with its own reason."""
    (host.folder / "scontrol").write_text("#!/bin/sh\nexit 1\n")
    assert host.run("10", "prolog_slurmd") == 1
    assert host.run("10") == 0
    assert host.run("well") == 0
    (host.folder / "scontrol").unlink()
    assert host.run("well") == 0


def test_the_real_command_is_understood(host: Host) -> None:
    """`gangline check` of this version, on a status file of an agent."""
    run_folder = host.folder / "run"
    run_folder.mkdir()
    host.gangline.write_text(
        f'#!/bin/sh\nexec {sys.executable} -m gangline.cli "$@" --run-folder {run_folder}\n'
    )

    def write(*findings: dict[str, object]) -> None:
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        document = status(
            boot_id=boot_id(), boottime_ns=now, findings=list(findings), permit={"until_ns": now + 50 * 10**9, "reason": "trial"},
        )  # fmt: skip
        (run_folder / "status.json").write_text(json.dumps(document))

    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    fault = finding(confirmed_ns=now, since_ns=now)
    write(fault)
    assert host.run("", "prolog_slurmd") == 1
    assert host.done() == [DRAIN]
    host.shows("IDLE+DRAIN", OURS)
    write({**fault, "confirmed_ns": 0})  # not enforced any more, and still there
    assert host.run("") == 0
    assert host.done() == []
    write(finding(name="xid31", problem="user"))
    assert host.run("") == 0
    assert host.done() == [TAKE_BACK]
    (run_folder / "status.json").unlink()  # no agent
    assert host.run("") == 0
    assert host.done() == []


slurm = pytest.mark.skipif(not has_slurm(), reason=MISSING)


class CheckedCluster:
    """A cluster with the script as all three programs, and what `gangline check` answers on each node."""

    def __init__(self, cluster: SlurmCluster, folder: Path) -> None:
        self.slurm, self._folder = cluster, folder

    def answer(self, *modes: str) -> None:
        """Set the answers of `gangline check`, node by node."""
        answer(self._folder, *modes)

    def node(self, name: str) -> str:
        return self.slurm.command("scontrol", "-o", "show", "node", name)

    def drained(self) -> list[str]:
        states = self.slurm.node_states()
        return [name for name in states if "DRAIN" in states[name] and f"Reason={OURS} " in self.node(name)]  # fmt: skip


def answer(folder: Path, *modes: str) -> None:
    """Write what `gangline check` is to answer on gpu1, gpu2, ..."""
    for number, mode in enumerate(modes, 1):
        temporary = folder / "mode.new"
        temporary.write_text(mode)
        temporary.rename(folder / f"gangline.mode.gpu{number}")


def _wrapped(folder: Path, name: str, conf: Path) -> Path:
    wrapper = folder / name
    wrapper.write_text(
        f"#!/bin/sh\nexport SLURM_CONF={conf} GANGLINE={folder}/gangline GANGLINE_STATE_FOLDER={folder}/{name}.d "
        f"PATH=$PATH:/usr/sbin:/usr/bin:/bin\nexec {SCRIPT}\n"
    )
    wrapper.chmod(0o755)
    return wrapper


@pytest.fixture(params=["prolog", "health"])
def checked(
    request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CheckedCluster]:
    (tmp_path / "gangline").write_text(GANGLINE)
    (tmp_path / "gangline").chmod(0o755)
    answer(tmp_path, *(["well"] * NODES))
    # A short name: a step has a socket in it, whose path has at most 107 characters.
    folder = tmp_path_factory.mktemp("slurm")
    wrapper = _wrapped(tmp_path, "check", folder / "slurm.conf")
    lines = {
        "prolog": (f"Prolog={wrapper}", f"Epilog={wrapper}"),
        "health": (f"HealthCheckProgram={wrapper}", "HealthCheckInterval=1"),
    }[request.param]
    with running_cluster(folder, NODES, *lines) as cluster:
        yield CheckedCluster(cluster, tmp_path)


def _is_completed(cluster: SlurmCluster, job: str) -> bool:
    return cluster.job(job)["JobState"] == "COMPLETED"


@slurm
@pytest.mark.parametrize("checked", ["prolog"], indirect=True)
def test_a_prolog_drains_with_our_reason_and_accidents_drain_nothing(
    checked: CheckedCluster,
) -> None:
    """ "Prolog error" would be Slurm's own reason: Gangline's was set earlier, and stays."""
    cluster = checked.slurm
    checked.answer("1", "127", "killed")
    jobs = [cluster.submit("#!/bin/sh\n", "-w", name) for name in cluster.nodes]
    for job in jobs:
        cluster.until(partial(_is_completed, cluster, job), "three jobs")
    assert checked.drained() == []
    checked.answer("1", "10", "mute")
    for name in cluster.nodes:
        cluster.submit("#!/bin/sh\n", "-w", name)
    cluster.until(lambda: "State=IDLE+DRAIN" in checked.node("gpu2"), "the end of the prolog")
    assert checked.drained() == ["gpu2"]


@slurm
@pytest.mark.parametrize("checked", ["health"], indirect=True)
def test_a_health_check_drains_and_takes_back(checked: CheckedCluster) -> None:
    """A person's drain stays, with its reason."""
    checked.slurm.command("scontrol", "update", "nodename=gpu3", "state=drain", "reason=burn-in")
    checked.answer("10", "10", "10")
    checked.slurm.until(lambda: checked.drained() == ["gpu1", "gpu2"], "two drained")
    checked.answer("well", "well", "well")
    checked.slurm.until(lambda: not checked.drained(), "both back")
    assert "State=IDLE+DRAIN" in checked.node("gpu3") and "Reason=burn-in " in checked.node("gpu3")
