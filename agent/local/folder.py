"""The run folder: where what is asked of the agent on its host is found."""

from __future__ import annotations

import os
from pathlib import Path

#: Of a service: systemd makes it (RuntimeDirectory=gangline), and gives it to the agent's user.
SERVICE_FOLDER = Path("/run/gangline")
#: Of an agent that somebody runs by hand with default settings, below where it was started.
OWN_FOLDER = Path("var/agent/run")
SOCKET = "agent.sock"
STATUS = "status.json"


def choose(setting: str, own: Path = OWN_FOLDER, service: Path = SERVICE_FOLDER) -> Path:
    """Return the folder of this agent: as set, else the service's where that may be written, else *own*."""
    if setting:
        return Path(setting)
    return service if os.access(service, os.W_OK | os.X_OK) else own


def candidates(setting: str = "") -> tuple[Path, ...]:
    """Return the folders where an agent may answer, the likeliest first. For those who ask."""
    return (Path(setting),) if setting else (SERVICE_FOLDER, OWN_FOLDER)
