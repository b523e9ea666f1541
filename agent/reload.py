"""SIGHUP: the settings are read again and looked at; if they are good, the agent begins anew with them.

Anew and whole, as the same process with the same spool: nothing is lost, and nothing has two ways to be
set. A wrong setting is said in one line, and the agent goes on as it was.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

from ..fingerprints.settings import SettingsError
from . import service
from .config import AgentConfig

log = logging.getLogger(__name__)


class Reload:
    """Whether a SIGHUP ends this run. For the main thread."""

    def __init__(
        self,
        read: Callable[[], AgentConfig],
        check: Callable[[AgentConfig], None],
        notifier: service.Notifier,
    ) -> None:
        """*read* returns the settings as they are set now, *check* looks at what it does not; both
        raise SettingsError."""
        self._read = read
        self._check = check
        self._notifier = notifier

    def asked(self) -> bool:
        """Return whether the run is to end and begin anew. Never raises.

        If so, a further SIGHUP waits for the one that begins.
        """
        try:
            config = self._read()
            self._check(config)
            check_folders(config)
        except Exception as error:  # noqa: BLE001 - whatever it is, going on is better
            log.error("not reloaded, going on as before: %s", error, extra={"cause": "reload"})
            self._notifier.refused(str(error))
            return False
        log.info("beginning anew with the settings as they are now", extra={"cause": "reload.anew"})
        self._notifier.reloading()
        service.hold_back(signal.SIGHUP)
        return True


def check_folders(config: AgentConfig) -> None:
    """Raise SettingsError for a folder that could neither be used nor made."""
    for name in ("spool_folder", "events_folder", "state_folder"):
        folder: Path = getattr(config, name)
        there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            raise SettingsError(
                f"{name} = {str(folder)!r}: expected a folder that process {os.getpid()} may write"
            )
