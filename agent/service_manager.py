"""Notifies the service manager by the sd_notify(3) protocol, without libsystemd."""

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

#: How much longer the manager waits than we let it: it gives WatchdogSec, and we speak this often within it.
WATCHDOG_DIVISOR = 3
#: Reload, and two ways to end.
SIGNALS = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
#: Children that sit in a driver and do not die of SIGKILL are abandoned after this long.
CHILDREN_SECONDS_MAX = 0.5


class Notifier:
    """Reports the daemon's state to the service manager. Without one, as in a terminal, everything here does nothing.

    Never raises and never waits: a manager that does not read loses what we said, and nothing else.
    """

    def __init__(
        self, boottime_ns: Callable[[], int], environment: Mapping[str, str] = os.environ
    ) -> None:
        """Takes NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID from *environment*."""
        self._boottime_ns = boottime_ns
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self._socket: socket.socket | None = None
        self._watchdog_ns = _watchdog_ns(environment)
        self._watchdog_sent_ns = 0
        self._is_ready = False

    def heartbeat(self) -> None:
        """The loop has turned: READY the first time, and WATCHDOG as often as the manager wants it.

        To be called by the loop itself and by nothing else, so that a loop that stops is noticed.
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
        """The same process will start over; READY ends it."""
        # MONOTONIC_USEC lets the manager tell this reload from one before it (systemd 253 and later).
        monotonic = _monotonic_microseconds()
        self._send(f"RELOADING=1\nMONOTONIC_USEC={monotonic}\nSTATUS=restarting")

    def reload_failed(self, reason: str) -> None:
        """A reload was asked for and is not made: the agent continues as it was."""
        monotonic = _monotonic_microseconds()
        self._send(f"RELOADING=1\nMONOTONIC_USEC={monotonic}")
        self._send(f"READY=1\nSTATUS=not reloaded: {' '.join(reason.split())}")

    def stopping(self) -> None:
        """The agent ends."""
        self._send("STOPPING=1\nSTATUS=sending what is left")

    def close(self) -> None:
        """Release the socket."""
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
    """Return where to send to; `@` begins the name of an abstract socket. Empty: to nobody."""
    if path.startswith("@"):
        return b"\0" + os.fsencode(path[1:])
    return path if path.startswith("/") else ""


def _watchdog_ns(environment: Mapping[str, str]) -> int:
    """Return how often WATCHDOG must be said; 0 for never: nobody asked, or asked another process."""
    given, process = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not (given.isascii() and given.isdigit()) or process not in ("", str(os.getpid())):
        return 0
    return int(given) * 1000 // WATCHDOG_DIVISOR


def _monotonic_microseconds() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


def reexec() -> None:
    """Become the same command again, as the same process: with the settings and the code of now.

    For the main thread, when everything is closed and signals are held back: what comes meanwhile waits
    until the new image listens. Raises OSError if the interpreter is gone.
    """
    _end_children()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, sys.orig_argv)


def _end_children() -> None:
    """Kill what is left of them, an inventory in a driver: what starts over would never bury it."""
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
    """Let these signals wait: their default action would end a process that has no handler for them yet."""
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)


def unblock_signals() -> None:
    """Let the signals of a service come, with those that waited."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


# ----------------------------------------------------------------------
# SIGHUP: the settings are read again and looked at; if they are good, the agent starts over with
# them.
#
# Anew and whole, as the same process with the same spool: nothing is lost, and nothing has two ways
# to be set. A wrong setting is said in one line, and the agent continues as it was.

log = logging.getLogger(__name__)


class Reload:
    """Whether a SIGHUP ends this run. For the main thread."""

    def __init__(
        self,
        read: Callable[[], AgentConfig],
        check: Callable[[AgentConfig], None],
        notifier: Notifier,
    ) -> None:
        """*read* returns the settings as they are set now, *check* looks at what it does not; both
        raise SettingsError."""
        self._read = read
        self._check = check
        self._notifier = notifier

    def try_reload(self) -> bool:
        """Return whether the run is to end and start over. Never raises.

        If so, a further SIGHUP waits for the one that begins.
        """
        try:
            config = self._read()
            self._check(config)
            check_folders(config)
        except Exception as error:  # noqa: BLE001 - whatever it is, continuing is better
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
    """Raise SettingsError for a folder that could neither be used nor made."""
    for name in ("spool_folder", "events_folder", "state_folder"):
        folder: Path = getattr(config, name)
        existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            raise SettingsError(
                f"{name} = {str(folder)!r}: expected a folder that process {os.getpid()} may write"
            )
