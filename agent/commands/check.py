"""`gangline check`: one line and an exit code about this host, from the agent's status file.

It runs before and after each job on each host, so it imports little and neither calls nor waits.
An uncertain result gives exit code 0: it must never stop a fleet.
"""

from __future__ import annotations

import os
import stat
import sys
import time

from ..local import check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


#: BLOCKED is the only exit code by which this command bars jobs. Codes other than these two come
#: from elsewhere: a shell without this command, an interpreter that does not start, a signal.
OK, BLOCKED = 0, 10
#: As in `agent/config.py`, whose import would cost more than everything else here.
FOLDERS, FILE_NAME = ("/run/gangline", "var/agent/run"), "status.json"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
PURPOSES = ("person", "healthcheck", "prolog", "epilog", "cron")
USAGE = """usage: gangline check [--for PURPOSE] [--json] [--run-folder FOLDER]

Prints the findings about this host in one line, from the status file of its agent.

  --for PURPOSE       person (default); healthcheck: prints the drain reason if the exit code is 10;
                      prolog, epilog; cron: prints nothing if nothing is wrong
  --json              the findings and the verdict as JSON
  --run-folder FOLDER run folder of the agent; default: /run/gangline, and for a person also ./var/agent/run

exit codes: 10 if the setting `enforcing` names an active finding, the finding was confirmed within the last
30 s, and a permit of the aggregator is in force. 0 in all other cases: healthy, report-only, stale, no agent,
an unreadable file, a wrong option"""


def main(arguments: list[str]) -> int:
    """Print the line, return the exit code. Never raises: our error is not a finding."""
    try:
        return _run(arguments)
    except Exception as error:  # noqa: BLE001 - our own error must not drain a host
        _print_line(f"gangline: the check itself failed: {type(error).__name__}: {error}; exit 0")
        return OK


def _run(arguments: list[str]) -> int:
    if "-h" in arguments or "--help" in arguments:
        _print_line(USAGE)
        return OK
    options = _options(arguments)
    if isinstance(options, str):
        _print_line(f"gangline: {options}; nothing was checked, exit 0")
        return OK
    purpose, as_json, folder = options
    # A prolog runs in any user's folder, so only a person's check uses the relative folder.
    status, why = read_status(
        (folder,) if folder else FOLDERS if purpose == "person" else FOLDERS[:1]
    )
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    if status is None:
        _print_unknown(why, as_json=as_json)
        return OK
    blocking = check.enforced_findings(status, now_ns)
    if as_json:
        _print_json(status, blocking, now_ns)
    elif blocking and purpose == "healthcheck":
        _print_line(check.drain_reason(blocking[0]))
    elif purpose != "cron" or status["findings"] or status["notes"]:
        _print_line(f"gangline: {check.summary(status, now_ns)}")
        if purpose == "person" and os.isatty(1):  # scripts get a single line
            for line in check.agent_lines(status, now_ns):
                _print_line(f"gangline: {line}")
    return BLOCKED if blocking else OK


def _options(arguments: list[str]) -> tuple[str, bool, str] | str:
    """Return purpose, whether as JSON, and the folder; or an error message."""
    purpose, as_json, folder = "person", False, ""
    rest = [
        part
        for argument in arguments
        for part in (argument.split("=", 1) if argument.startswith("--") else (argument,))
    ]
    while rest:
        option = rest.pop(0)
        if option == "--json":
            as_json = True
        elif option == "--for" and rest and rest[0] in PURPOSES:
            purpose = rest.pop(0)
        elif option == "--run-folder" and rest and rest[0]:
            folder = rest.pop(0)
        elif option == "--for":
            return f"--for: expected one of {', '.join(PURPOSES)}"
        elif option == "--run-folder":
            return "--run-folder: expected a folder, as the agent's setting run_folder"
        else:
            return f"{check.printable(option)!r}: expected --for PURPOSE, --json or --run-folder FOLDER"
    return purpose, as_json, folder


def read_status(folders: tuple[str, ...]) -> tuple[dict[str, Any] | None, str]:
    """Return the current document, or None and the reason."""
    paths = [f"{folder}/{FILE_NAME}" for folder in folders]
    why = f"no agent runs here: there is no {paths[0]}"
    for path in paths:
        try:
            content = _read(path, own_user_only=path.startswith(FOLDERS[1]))
        except FileNotFoundError:
            continue
        except OSError as error:
            return None, f"{path}: {error.strerror}"
        except ValueError as error:
            return None, f"{path}: {error}"
        return _parse_current(path, content)
    return None, why


def _read(path: str, *, own_user_only: bool) -> bytes:
    """Return the file. Raises OSError; ValueError if a user other than the agent's could write it.

    *own_user_only*: only accept a file of this user: the relative folder may belong to anyone.
    """
    # Root runs this in each prolog: a link made by the agent's user could open any device.
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a regular file")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ValueError("writable by users other than its owner, so it is ignored")
        owners = (
            (os.geteuid(),)
            if own_user_only
            else (0, os.geteuid(), os.stat(os.path.dirname(path)).st_uid)
        )
        if status.st_uid not in owners:
            raise ValueError("owned by another user, so it is ignored")
        return os.read(file, check.STATUS_BYTES_MAX + 1)
    finally:
        os.close(file)


def _parse_current(path: str, content: bytes) -> tuple[dict[str, Any] | None, str]:
    try:
        status = check.parse(content)
    except check.StatusError as error:
        return None, f"{path}: {error}"
    boot = boot_id()
    if boot and boot != status["boot_id"]:
        return None, f"no agent runs here: {path} is of another boot"
    if old := check.stale_reason(status, time.clock_gettime_ns(time.CLOCK_BOOTTIME)):
        return None, f"the agent is down, or hangs: {path}: {old}"
    return status, ""


def boot_id() -> str:
    """Return the kernel's id of this boot; "" if unreadable."""
    try:
        with open(BOOT_ID, "rb", buffering=0) as file:
            return file.read(64).strip().replace(b"-", b"").decode()
    except (OSError, ValueError):
        return ""


def _print_unknown(why: str, *, as_json: bool) -> None:
    why = check.printable(why)
    if as_json:
        import json

        _print_line(
            json.dumps(
                {
                    "format": check.FORMAT,
                    "known": False,
                    "why": why,
                    "enforced": [],
                    "exit_code": OK,
                }
            )
        )
    else:
        _print_line(f"gangline: {why}. The state of this host is unknown, exit 0")


def _print_json(status: dict[str, Any], blocking: list[dict[str, Any]], now_ns: int) -> None:
    import json

    findings = [
        {**finding, "withheld": check.not_enforced_reason(status, finding, now_ns)}
        for finding in status["findings"]
    ]
    shown = {key: value for key, value in status.items() if key != "agent"}
    answer = {
        **shown,
        "findings": findings,
        "known": True,
        "enforced": [finding["name"] for finding in blocking],
    }
    _print_line(json.dumps({**answer, "exit_code": BLOCKED if blocking else OK}))


def _print_line(line: str) -> None:
    """Print *line*. A closed pipe or a full disk must not change the exit code."""
    try:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)
