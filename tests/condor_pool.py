"""A pool of HTCondor with eight machines, n1.local to n8.local, on this one: real daemons in the Debian 13 of `tests/debian13.py`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gangline.executors.model import SchedulerError
from gangline.executors.scheduler_command import run_command
from tests.debian13 import MISSING as MISSING_PART
from tests.debian13 import debian13, has_debian13, start_inside
from tests.processes import GUARD_SECONDS, free_port

MISSING = MISSING_PART.format(part="condor")
MACHINES = 8
CONFIG = """
RELEASE_DIR = /usr
LIB = /usr/lib/condor
LIBEXEC = /usr/libexec/condor
BIN = /usr/bin
SBIN = /usr/sbin
ETC = /etc/condor
LOCAL_DIR = @FOLDER@
LOG = $(LOCAL_DIR)/log
SPOOL = $(LOCAL_DIR)/spool
EXECUTE = $(LOCAL_DIR)/execute
LOCK = $(LOCAL_DIR)/lock
RUN = $(LOCAL_DIR)/run
CONDOR_HOST = 127.0.0.1
COLLECTOR_HOST = 127.0.0.1:@PORT@
NETWORK_INTERFACE = 127.0.0.1
BIND_ALL_INTERFACES = false
NO_DNS = true
DEFAULT_DOMAIN_NAME = local
UID_DOMAIN = local
FILESYSTEM_DOMAIN = local
USE_SHARED_PORT = false
# Several masters on one machine: none of them knows the others' sessions.
SEC_USE_FAMILY_SESSION = false
SEC_DEFAULT_NEGOTIATION = NEVER
SEC_DEFAULT_AUTHENTICATION = NEVER
SEC_DEFAULT_ENCRYPTION = NEVER
SEC_DEFAULT_INTEGRITY = NEVER
ALLOW_READ = *
ALLOW_WRITE = *
ALLOW_ADMINISTRATOR = *
ALLOW_DAEMON = *
ALLOW_NEGOTIATOR = *
DISCARD_SESSION_KEYRING_ON_STARTUP = false
RUNBENCHMARKS = false
# A folder is no mount point.
MOUNT_UNDER_SCRATCH =
MOUNT_PRIVATE_DEV_SHM = false
BASE_CGROUP =
NUM_CPUS = 1
MEMORY = 512
NUM_SLOTS = 1
SLOT_TYPE_1 = 100%
NUM_SLOTS_TYPE_1 = 1
UPDATE_INTERVAL = 2
NEGOTIATOR_INTERVAL = 1
NEGOTIATOR_CYCLE_DELAY = 1
NEGOTIATOR_MIN_INTERVAL = 1
SCHEDD_INTERVAL = 1
SCHEDD_MIN_INTERVAL = 1
SCHEDD_NAME = sched@local
UNUSED_CLAIM_TIMEOUT = 1
DAEMON_LIST = MASTER COLLECTOR NEGOTIATOR SCHEDD
COLLECTOR_PORT = @PORT@
MAXJOBRETIREMENTTIME = 30 * 86400
DedicatedScheduler = "DedicatedScheduler@sched@local"
STARTD_ATTRS = $(STARTD_ATTRS) DedicatedScheduler
RANK = Scheduler =?= $(DedicatedScheduler)
START = True
PREEMPT = False
SUSPEND = False
KILL = False
WANT_SUSPEND = False
WANT_VACATE = False
"""
SUBMIT = """
universe = parallel
executable = /bin/sleep
arguments = 1000
machine_count = @COUNT@
request_cpus = 1
request_memory = 10
transfer_executable = false
should_transfer_files = NO
initialdir = /tmp
queue
"""


def has_condor() -> bool:
    return has_debian13("usr/sbin/condor_master")


class CondorPool:
    """Started by `condor_pool`."""

    def __init__(self, machines: int = MACHINES, more: str = "") -> None:
        self.inside = f"/srv/condor-{uuid.uuid4().hex[:8]}"
        self.folder = debian13() / self.inside[1:]
        self._machines, self._more = machines, more
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self.folder.mkdir(parents=True)
        text = CONFIG.replace("@FOLDER@", self.inside).replace("@PORT@", str(free_port()))
        (self.folder / "condor_config").write_text(text + self._more)
        self._start_master("central", {})
        for index in range(1, self._machines + 1):
            daemons = {
                "_CONDOR_NETWORK_HOSTNAME": f"n{index}",
                "_CONDOR_DAEMON_LIST": "MASTER STARTD",
            }
            self._start_master(f"n{index}", daemons)
        self.until(lambda: len(self.machines()) == self._machines, "all machines are in the pool")

    def _start_master(self, name: str, environment: dict[str, str]) -> None:
        local = self.folder / name
        for part in ("log", "spool", "execute", "lock", "run"):
            (local / part).mkdir(parents=True)
        run_command(["chroot", str(debian13()), "chown", "-R", "condor:condor", f"{self.inside}/{name}"])  # fmt: skip
        (local / "execute").chmod(0o1777)
        with (local / "master.log").open("wb") as output:
            process = start_inside(
                "condor_master", "-f", output=output,
                environment={**self.environment, "_CONDOR_LOCAL_DIR": f"{self.inside}/{name}", **environment},
            )  # fmt: skip
        self._processes.append(process)

    @property
    def environment(self) -> dict[str, str]:
        return {"CONDOR_CONFIG": f"{self.inside}/condor_config"}

    def run(self, command: Sequence[str]) -> str:
        assignments = [f"{name}={value}" for name, value in self.environment.items()]
        return run_command(["chroot", str(debian13()), "env", *assignments, *command])

    def machines(self) -> list[str]:
        try:
            return self.run(["condor_status", "-af", "Machine"]).split()
        except SchedulerError:
            return []

    def submit(self, count: int) -> str:
        """Submit a job of *count* machines as a user other than root; return its name."""
        text = SUBMIT.replace("@COUNT@", str(count))
        (self.folder / "job.sub").write_text(text)
        done = self.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "condor_submit", "-terse", f"{self.inside}/job.sub"])  # fmt: skip
        return done.split()[0]

    def until(self, condition: object, what: str) -> None:
        assert callable(condition)
        end = time.monotonic() + GUARD_SECONDS
        while not condition():
            assert time.monotonic() < end, f"never: {what}"
            time.sleep(0.1)

    def close(self) -> None:
        for process in self._processes:
            self._kill(process.pid)
            process.wait(GUARD_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _kill(self, pid: int) -> None:
        """Kill a process and all below it: daemons have process groups of their own."""
        children = Path(f"/proc/{pid}/task/{pid}/children")
        try:
            below = [int(child) for child in children.read_text().split()]
            os.kill(pid, signal.SIGKILL)
        except OSError:
            return
        for child in below:
            self._kill(child)


@contextmanager
def condor_pool(machines: int = MACHINES, more: str = "") -> Iterator[CondorPool]:
    pool = CondorPool(machines, more)
    try:
        pool.start()
        yield pool
    finally:
        pool.close()
