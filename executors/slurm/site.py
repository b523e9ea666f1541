"""How the command reaches Slurm."""

from __future__ import annotations

from collections.abc import Iterable

from ..model import DoctorFinding
from ..scheduler_command import run_command
from ..settings import ExecutorConfig
from ..site import SchedulerSite
from . import doctor
from .scheduler import Slurm


class SlurmSite(SchedulerSite):
    """Slurm through its commands."""

    title = "Slurm"
    has_weights = True

    def __init__(self, config: ExecutorConfig) -> None:
        super().__init__(config)
        self._slurm = Slurm(run_command, config.reset_command, config.release_command)
        self.scheduler = self._slurm

    def findings(self, attempt: bool) -> Iterable[DoctorFinding]:
        """Yield the findings of Slurm's doctor."""
        return doctor.findings(self._slurm, attempt)
