"""Where the kernel's trees and the driver's library are; a host may be a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Roots:
    """The roots that all readers start from. A test hands in folders, the daemon nothing."""

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    #: Path or name of the NVML library; None is the driver's own `libnvidia-ml.so.1`.
    nvml_library: str | None = None
    dev: Path = Path("/dev")
    run: Path = Path("/run")
    #: A folder of the agent's own, for what a collector must remember over a restart; None: nothing is.
    state: Path | None = None
    #: Whether a helper may read ranks in the environments of processes on GPUs (setting `read_ranks`).
    reads_ranks: bool = False

    @property
    def is_this_machine(self) -> bool:
        """Say whether /sys and /proc are this machine's own, so that its libraries may be asked too."""
        return self.sys == Path("/sys") and self.proc == Path("/proc")
