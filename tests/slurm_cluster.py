"""A real Slurm of many nodes on this machine, without root, munge, cgroups or systemd, for integration tests."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.processes import GUARD_SECONDS

PROGRAMS = ("slurmctld", "slurmd", "scontrol", "sbatch", "srun", "squeue")
MISSING = (
    "Slurm is not installed: "
    "apt-get install --no-install-recommends slurmctld slurmd slurm-client slurm-wlm-basic-plugins"
)
#: Character devices that exist wherever there is a /dev: each stands for a GPU.
DEVICES = ["null", "zero", "full", "random", "urandom", "tty", "ptmx"]
GPUS = 4
COMMAND_SECONDS = 30.0

CONF = """\
ClusterName=gangline
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu,lic
Licenses=tool:2
SlurmdParameters=config_overrides
ReturnToService=1
SlurmdTimeout=300
KillWait=2
JobRequeue=1
NodeName=DEFAULT CPUs=8 Boards=1 SocketsPerBoard=2 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=100 Gres=gpu:h100:{gpus}
NodeName=gpu1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} Gres=gpu:h100:{gpus},lic:1
NodeName=gpu[2-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{second}-{last}]
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def has_slurm() -> bool:
    return all(map(_path_of, PROGRAMS))


def _path_of(name: str) -> str | None:
    # Daemons are in sbin, which is often not on the path.
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _free_ports(count: int) -> list[int]:
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first = probe.getsockname()[1]
        ports = list(range(first, first + count))
        if ports[-1] < 65_536 and all(map(_is_free, ports)):
            return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class SlurmCluster:
    """Started by `running_slurm`."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder, self.nodes = folder, [f"gpu{index}" for index in range(1, nodes + 1)]
        controller, *ports = _free_ports(nodes + 1)
        for name in ("state", "spool", "jobs"):
            (folder / name).mkdir()
        for name in self.nodes:
            (folder / "spool" / name).mkdir()
        self.conf, self.user = folder / "slurm.conf", getpass.getuser()
        host = socket.gethostname().partition(".")[0]
        self.conf.write_text(
            CONF.format(
                host=host, user=self.user, port=controller, folder=folder, nodes=nodes,
                first=ports[0], second=ports[1], last=ports[-1], gpus=GPUS,
            )
        )  # fmt: skip
        devices = [device for device in DEVICES if Path("/dev", device).is_char_device()][:GPUS]
        lines = [f"Name=gpu Type=h100 File=/dev/{device}\n" for device in devices]
        lines.append("NodeName=gpu1 Name=lic Count=1\n")
        (folder / "gres.conf").write_text("AutoDetect=off\n" + "".join(lines))
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SLURM")},
            "SLURM_CONF": str(self.conf),
            "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin",
        }
        # these look for cgroups; earlier versions do not know the keyword
        if self._version() >= (23,):
            (folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}

    def _version(self) -> tuple[int, ...]:
        text = self.command("scontrol", "--version")
        return tuple(map(int, re.findall(r"[0-9]+", text)[:2]))

    def start(self) -> None:
        """Start all, and return when all nodes are idle."""
        self._start_daemon("slurmctld", "slurmctld", "-D", "-f", str(self.conf))
        for name in self.nodes:
            self.start_node(name)
        self.until(lambda: len(self.node_states("IDLE")) == len(self.nodes), "all nodes idle")

    def set_licenses(self, licenses: str) -> None:
        """Change the licenses in slurm.conf."""
        text = re.sub(
            r"^Licenses=.*$", f"Licenses={licenses}", self.conf.read_text(), flags=re.MULTILINE
        )
        self.conf.write_text(text)
        self.command("scontrol", "reconfigure")

    def start_node(self, name: str) -> None:
        self._start_daemon(name, "slurmd", "-D", "-f", str(self.conf), "-N", name)

    def kill_node(self, name: str) -> None:
        """Kill the slurmd of a node, and let the controller notice at once."""
        self.daemons[name].kill()
        self.daemons[name].wait(GUARD_SECONDS)
        self.command(
            "scontrol", "update", f"nodename={name}", "state=down", "reason=Not responding"
        )

    def restart_controller(self) -> None:
        """End slurmctld, which saves its state then, and start it again with that."""
        self.daemons["slurmctld"].terminate()
        self.daemons["slurmctld"].wait(GUARD_SECONDS)
        self._start_daemon("slurmctld", "slurmctld", "-D", "-f", str(self.conf))
        self.until(lambda: len(self.node_states()) == len(self.nodes), "the controller is back")

    def _start_daemon(self, name: str, *command: str) -> None:
        self.daemons[name] = subprocess.Popen(
            command, env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def command(self, *command: str) -> str:
        """Return the output of *command*. Raises AssertionError with its error."""
        done = subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True,
            timeout=COMMAND_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def node_states(self, *wanted: str) -> dict[str, str]:
        """Return the state of each node; with *wanted*, of those in one of these."""
        try:
            text = self.command("scontrol", "-o", "show", "node")
        except AssertionError:  # the controller is not up yet
            return {}
        states = dict(re.findall(r"NodeName=(\S+).*? State=(\S+)", text))
        return {name: state for name, state in states.items() if not wanted or state in wanted}

    def job(self, number: str) -> dict[str, str]:
        text = self.command("scontrol", "-o", "show", "job", number)
        return dict(re.findall(r"(\w+)=(\S+)", text))

    def submit(self, script: str, *options: str) -> str:
        """Submit a batch script, and return the job's number. Its output: `output`."""
        path = self.folder / "jobs" / f"{time.monotonic_ns()}.sh"
        path.write_text(script)
        output = f"--output={self.folder}/jobs/%j.out"
        return self.command("sbatch", "--parsable", output, *options, str(path)).strip()

    def output(self, number: str) -> str:
        path = self.folder / "jobs" / f"{number}.out"
        return path.read_text() if path.exists() else ""

    def until(self, condition: Callable[[], object], what: str) -> None:
        end = time.monotonic() + GUARD_SECONDS
        while not condition():
            if time.monotonic() > end:
                log = self.folder / "slurmctld.log"
                last_lines = log.read_text().splitlines()[-15:] if log.exists() else []
                raise AssertionError(
                    "\n".join([f"never: {what}", str(self.node_states()), *last_lines])
                )
            time.sleep(0.02)

    def close(self) -> None:
        for daemon in self.daemons.values():
            daemon.send_signal(signal.SIGKILL)
            daemon.wait(GUARD_SECONDS)
        # Each step has a daemon of its own, which outlives the node's.
        conf = f"SLURM_CONF={self.conf}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                mine = conf in (process / "environ").read_bytes().split(b"\0")
                if mine and int(process.name) != os.getpid():
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                continue


@contextmanager
def running_slurm(folder: Path, nodes: int) -> Iterator[SlurmCluster]:
    """Yield a cluster of *nodes* nodes, gpu1 to gpuN, of GPUS GPUs each."""
    cluster = SlurmCluster(folder, nodes)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
