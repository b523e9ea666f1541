"""Notifies the service manager by sd_notify(3), without libsystemd, and reloads on SIGHUP."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ..contract.settings import SettingsError
from .config import AgentConfig

#: WATCHDOG messages per WatchdogSec of the manager.
WATCHDOG_DIVISOR = 3
#: Reload, and two signals that end the agent.
SIGNALS = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
#: Time after which children that hang in a driver despite SIGKILL are abandoned.
CHILDREN_SECONDS_MAX = 0.5

# On SIGHUP the agent validates the settings and, if they are valid, starts over as the same process
# with the same spool. So no data is lost, and each setting has a single way to take effect. A wrong
# setting is logged, and the agent continues.
log = logging.getLogger(__name__)


class Notifier:
    """Reports the daemon's state to the service manager; in a terminal it does nothing.

    Never raises and never blocks: a manager that does not read loses messages.
    """

    def __init__(
        self, boottime_ns: Callable[[], int], environment: Mapping[str, str] = os.environ
    ) -> None:
        """*environment* provides NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID."""
        self._boottime_ns = boottime_ns
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self._socket: socket.socket | None = None
        self._watchdog_ns = _watchdog_ns(environment)
        self._watchdog_sent_ns = 0
        self._is_ready = False

    def heartbeat(self) -> None:
        """Send READY the first time, then WATCHDOG at the manager's period.

        Call this only in the main loop, so that the manager notices if the loop stops.
        """
        now_ns = self._boottime_ns()
        if not self._is_ready:
            self._is_ready = True
            self._watchdog_sent_ns = now_ns
            self._send("READY=1\nSTATUS=sampling")
        elif self._watchdog_ns and now_ns - self._watchdog_sent_ns >= self._watchdog_ns:
            self._watchdog_sent_ns = now_ns
            self._send("WATCHDOG=1")

    def reloading(self) -> None:
        """Report that the same process will start again; READY ends this state."""
        # MONOTONIC_USEC distinguishes this reload from an earlier one (systemd 253 and later).
        monotonic = _monotonic_microseconds()
        self._send(f"RELOADING=1\nMONOTONIC_USEC={monotonic}\nSTATUS=restarting")

    def reload_failed(self, reason: str) -> None:
        """Report that a requested reload failed: the agent continues with its old settings."""
        monotonic = _monotonic_microseconds()
        self._send(f"RELOADING=1\nMONOTONIC_USEC={monotonic}")
        self._send(f"READY=1\nSTATUS=not reloaded: {' '.join(reason.split())}")

    def stopping(self) -> None:
        self._send("STOPPING=1\nSTATUS=sending what is left")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, message: str) -> None:
        if self._address:
            with contextlib.suppress(OSError):
                if self._socket is None:
                    kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
                    self._socket = socket.socket(socket.AF_UNIX, kind)
                self._socket.sendto(message.encode(errors="replace"), self._address)


def _address(path: str) -> str | bytes:
    """Return the address to send to; `@` starts an abstract socket's name. "": none."""
    if path.startswith("@"):
        return b"\0" + os.fsencode(path[1:])
    return path if path.startswith("/") else ""


def _watchdog_ns(environment: Mapping[str, str]) -> int:
    """Return the period of WATCHDOG; 0 if the manager does not ask this process for it."""
    given, process = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not (given.isascii() and given.isdigit()) or process not in ("", str(os.getpid())):
        return 0
    return int(given) * 1000 // WATCHDOG_DIVISOR


def _monotonic_microseconds() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


def reexec() -> None:
    """Execute the same command again in this process, with the present settings and code.

    For the main thread, when everything is closed and signals are blocked: they stay pending until
    the new image handles them. Raises OSError if the interpreter is missing.
    """
    _end_children()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, sys.orig_argv)


def _end_children() -> None:
    """Kill children, such as an inventory in a driver: the new image would not reap them."""
    try:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return
    for child in map(int, children):
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGKILL)
    until = time.monotonic() + CHILDREN_SECONDS_MAX
    with contextlib.suppress(ChildProcessError):
        while children and time.monotonic() < until:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.01)


def block_signals(*numbers: int) -> None:
    """Block these signals: by default they would end a process that has no handler yet."""
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)


def unblock_signals() -> None:
    """Unblock the signals of a service; pending ones are delivered."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


class Reload:
    """Decides whether a SIGHUP ends this run. For the main thread."""

    def __init__(
        self,
        read: Callable[[], AgentConfig],
        check: Callable[[AgentConfig], None],
        notifier: Notifier,
    ) -> None:
        """*read* returns the present settings, *check* validates them; both raise SettingsError."""
        self._read = read
        self._check = check
        self._notifier = notifier

    def try_reload(self) -> bool:
        """Return whether the run must end and start over. Never raises.

        If so, a further SIGHUP stays pending for the new run.
        """
        try:
            config = self._read()
            self._check(config)
            check_folders(config)
        except Exception as error:  # noqa: BLE001 - after any error the agent continues
            log.error(
                "reload failed, the old settings stay in force: %s",
                error,
                extra={"cause": "reload"},
            )
            self._notifier.reload_failed(str(error))
            return False
        log.info("restarting in place with the new settings", extra={"cause": "reload.anew"})
        self._notifier.reloading()
        block_signals(signal.SIGHUP)
        return True


def check_folders(config: AgentConfig) -> None:
    """Raise SettingsError for a folder that can neither be used nor created."""
    for name in ("spool_folder", "events_folder", "state_folder"):
        folder: Path = getattr(config, name)
        existing = next(
            folder_or_parent
            for folder_or_parent in (folder, *folder.absolute().parents)
            if folder_or_parent.exists()
        )
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            raise SettingsError(
                f"{name} = {str(folder)!r}: expected a folder that process {os.getpid()} may write"
            )
