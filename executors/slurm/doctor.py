"""Checks of `gangline executor slurm doctor`: costly settings, missing rights, features that this version lacks."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Iterable, Mapping

from ...contract.text import counted
from ..model import Capabilities, DoctorFinding, DoctorLevel, SchedulerError
from ..scheduler_command import Run, run_command
from .scheduler import Slurm

#: Setting of SchedulerParameters -> (stock value, fast value, cost of a larger value).
SCHEDULER_PARAMETERS = {
    "batch_sched_delay": (3, 0, "a requeued gang waits up to {value} s longer"),
    "sched_interval": (60, 5, "a gang that does not fit at once waits up to {value} s for the next full pass"),
    "bf_interval": (30, 1, "heterogeneous jobs and jobs behind others wait up to {value} s for a backfill pass"),
}  # fmt: skip
MIN_JOB_AGE_SECONDS = 60
#: Default paths of Slurm's configuration, if SLURM_CONF is not set. The second path is used in configless mode.
CONFIG_FILES = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")
#: Timeout of the first command: without a configuration Slurm asks DNS for a controller, which may take long.
FIRST_SECONDS = 3.0


def parse_config(text: str) -> dict[str, str]:
    """Return the settings of `scontrol show config`."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = re.match(r"(\w[\w./-]*)\s+=\s?(.*)$", line)
        if match:
            found.setdefault(match.group(1), match.group(2).strip())
    return found


def config_findings(
    config: Mapping[str, str], capabilities: Capabilities, user: str
) -> Iterable[DoctorFinding]:
    """Yield findings about costly settings, missing features and rights. Pure."""
    yield DoctorFinding(DoctorLevel.OK, f"Slurm {capabilities.version} answers")
    parameters: dict[str, str] = {}
    for assignment in config.get("SchedulerParameters", "").split(","):
        name, _, value = assignment.partition("=")
        parameters[name] = value
    for name, (stock, fast, cost) in SCHEDULER_PARAMETERS.items():
        given = parameters.get(name, "")
        seconds = int(given) if given.isdecimal() else stock
        if seconds > fast:
            text = cost.format(value=seconds)
            yield DoctorFinding(
                DoctorLevel.SLOW,
                f"{name}={seconds}: {text}; SchedulerParameters={name}={fast} removes it",
            )
    if config.get("JobRequeue", "1") == "0":
        yield DoctorFinding(
            DoctorLevel.SLOW,
            "JobRequeue=0: only jobs submitted with --requeue can be moved off a bad node; JobRequeue=1 allows it for all",
        )
    age = re.match(r"([0-9]+)", config.get("MinJobAge", ""))
    if age and int(age.group(1)) < MIN_JOB_AGE_SECONDS:
        yield DoctorFinding(
            DoctorLevel.NOTE,
            f"MinJobAge={age.group(1)}: Slurm forgets ended jobs so soon that some ends may not be reported; {MIN_JOB_AGE_SECONDS} is enough",
        )
    if not capabilities.drain_ends:
        yield DoctorFinding(
            DoctorLevel.NOTE,
            "this version has no resumeafter: a drain would outlive a dead executor, so nodes are "
            "kept free by reservations, which expire (mark = auto)",
        )
    private = config.get("PrivateData", "none")
    if re.search(r"jobs|nodes|reservations", private):
        yield DoctorFinding(
            DoctorLevel.NOTE,
            f"PrivateData={private}: run the executor as SlurmUser, or it does not see all nodes and jobs",
        )
    slurm_user = config.get("SlurmUser", "").partition("(")[0]
    if user not in ("root", slurm_user):
        yield DoctorFinding(
            DoctorLevel.NOTE,
            f"runs as {user}, Slurm's own user is {slurm_user}: reservations and requeues need the operator role; check with --try",
        )


def rights_finding(run: Run, node: str) -> DoctorFinding:
    """Return whether a trial reservation succeeds: only a trial shows this right."""
    name = "gangline_doctor"
    try:
        run(
            ["scontrol", "create", "reservation", f"reservationname={name}", f"nodes={node}", "starttime=now+1days",
             "duration=1", "users=root", "flags=ignore_jobs,overlap"]
        )  # fmt: skip
        run(["scontrol", "delete", f"reservationname={name}"])
    except SchedulerError as error:
        return DoctorFinding(
            DoctorLevel.MISSING,
            f"reservations cannot be made: {error}; give the user AdminLevel=Operator, or run as SlurmUser",
        )
    return DoctorFinding(DoctorLevel.OK, "reservations can be made and deleted")


def missing_config(environment: Mapping[str, str]) -> str:
    """Return why Slurm's commands find no configuration on this machine; "" if a file exists."""
    if named := environment.get("SLURM_CONF"):
        return "" if os.path.isfile(named) else f"SLURM_CONF={named}: there is no such file"
    if any(os.path.isfile(file) for file in CONFIG_FILES):
        return ""
    return f"there is no {CONFIG_FILES[0]}: run this where Slurm's commands work, or set SLURM_CONF"


def findings(
    scheduler: Slurm, attempt: bool, environment: Mapping[str, str] = os.environ
) -> Iterable[DoctorFinding]:
    """Yield findings about the Slurm of this machine; with *attempt*, also try to make a reservation."""
    missing = missing_config(environment)
    if missing and "SLURM_CONF" in environment:
        yield DoctorFinding(DoctorLevel.MISSING, missing)
        return
    try:
        text = run_command(["scontrol", "show", "config"], FIRST_SECONDS)
    except SchedulerError as error:
        yield DoctorFinding(DoctorLevel.MISSING, f"{missing} ({error})" if missing else str(error))
        return
    try:
        config = parse_config(text)
        yield from config_findings(config, scheduler.capabilities(), getpass.getuser())
        nodes = scheduler.read_nodes()
        yield DoctorFinding(DoctorLevel.OK, counted(len(nodes), "node"))
        if attempt and nodes:
            yield rights_finding(run_command, next(iter(nodes)))
    except SchedulerError as error:
        yield DoctorFinding(DoctorLevel.MISSING, str(error))
