"""The child: prints a few environment variables of other processes and exits.

Runs as a file, with `-I -S`.

It imports no other module of Gangline or of the user, because it may have CAP_SYS_PTRACE and
environments contain secrets. It keeps and prints only the variables in NAMES, and only values of
the expected form.

    python -I -S job_ranks_child.py PROC PID:START [PID:START ...]

START is field 22 of /proc/PID/stat: a process that reused the PID later is not read. Prints a JSON
object per line.
"""

import json
import os
import re
import resource
import signal
import sys

NUMBER = re.compile(rb"[0-9]{1,10}")
GPUS = re.compile(rb"[0-9]{1,4}(?:[-,][0-9]{1,4}){0,63}")
SHARE = re.compile(rb"[0-9]{1,3}(?:\.[0-9]{1,6})?")
#: `0=1000MB,1=2G`; a GPU by its number or UUID.
MEMORY = re.compile(
    rb"[0-9A-Za-z-]{1,48}=[0-9]{1,15}[KMGkmg]?[Bb]?(?:,[0-9A-Za-z-]{1,48}=[0-9]{1,15}[KMGkmg]?[Bb]?){0,3}"
)
#: The only variables that are kept, and their forms.
NAMES = {
    b"RANK": NUMBER,
    b"WORLD_SIZE": NUMBER,
    b"LOCAL_RANK": NUMBER,
    b"LOCAL_WORLD_SIZE": NUMBER,
    b"SLURM_PROCID": NUMBER,
    b"SLURM_NTASKS": NUMBER,
    b"SLURM_LOCALID": NUMBER,
    b"SLURM_JOB_ID": NUMBER,
    b"SLURM_STEP_ID": NUMBER,
    b"SLURM_ARRAY_JOB_ID": NUMBER,
    b"SLURM_ARRAY_TASK_ID": NUMBER,
    b"SLURM_HET_JOB_ID": NUMBER,
    b"SLURM_JOB_GPUS": GPUS,
    b"SLURM_STEP_GPUS": GPUS,
    b"OMPI_COMM_WORLD_RANK": NUMBER,
    b"OMPI_COMM_WORLD_SIZE": NUMBER,
    b"PMI_RANK": NUMBER,
    b"PMI_SIZE": NUMBER,
    b"JOB_COMPLETION_INDEX": NUMBER,
    b"GANGLINE_CHECKPOINT_SECONDS": NUMBER,
    b"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": SHARE,
    b"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": MEMORY,
}
#: Maximum that is read of an environment; the kernel's own limit is 6 MB.
ENVIRON_BYTES_MAX = 8 << 20
CHUNK_BYTES = 1 << 16
#: A longer variable is not in NAMES, and is skipped.
VARIABLE_BYTES_MAX = 512
#: The alarm ends a child that is blocked by a stuck process, if the kernel permits.
SECONDS_MAX = 5


def variable_of(entry: bytes) -> tuple[str, str] | None:
    """Return name and value of a `NAME=value` entry if it is in NAMES and has its form."""
    name, _, value = entry.partition(b"=")
    form = NAMES.get(name)
    return (name.decode(), value.decode()) if form and form.fullmatch(value) else None


def variables_of(descriptor: int) -> dict[str, str]:
    """Return the variables of an open `environ`; the first of duplicate names, as getenv(3) does."""
    variables: dict[str, str] = {}
    left, size, skipping = b"", 0, False
    while size < ENVIRON_BYTES_MAX and (chunk := os.read(descriptor, CHUNK_BYTES)):
        size += len(chunk)
        *entries, left = (left + chunk).split(b"\0")
        for entry in entries:
            variable = None if skipping else variable_of(entry)
            skipping = False
            if variable:
                variables.setdefault(*variable)
        if len(left) > VARIABLE_BYTES_MAX:
            left, skipping = b"", True
    return variables


def start_of(folder: str) -> int:
    """Return the start of the process with this folder of /proc, in clock ticks since boot.

    Raises OSError, or ValueError if `stat` is incomplete.
    """
    with open(f"{folder}/stat", "rb", buffering=0) as file:
        tokens = file.read(4096).rpartition(b")")[2].split()
    if len(tokens) < 20:
        raise ValueError("no stat")
    return int(tokens[19])


def answer(proc: str, pid: int, start: int) -> dict[str, object]:
    """Return the answer about a process: its variables, or the reason of a refusal."""
    result: dict[str, object] = {"pid": pid, "start": start}
    folder = f"{proc}/{pid}"
    try:
        if start_of(folder) != start:
            return {**result, "refused": "another process has its number"}
        descriptor = os.open(f"{folder}/environ", os.O_RDONLY | os.O_CLOEXEC)
        try:
            variables = variables_of(descriptor)
        finally:
            os.close(descriptor)
        if start_of(folder) != start:
            return {**result, "refused": "another process has its number"}
    except PermissionError:
        return {**result, "refused": "no permission"}
    except (OSError, ValueError):
        return {**result, "refused": "it has ended"}
    return {**result, "variables": variables}


def main(arguments: list[str]) -> int:
    """Print a line for each process as soon as it is read."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(SECONDS_MAX)
    for argument in arguments[1:]:
        pid, _, start = argument.partition(":")
        sys.stdout.write(json.dumps(answer(arguments[0], int(pid), int(start))) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
