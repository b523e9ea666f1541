"""A job of one host whose GPUs stand empty as they did not before. Nobody beside it tells whose fault that is: it is watched."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...fleet.gangs import Standing
from ...verdicts import Reason, State
from ..present import Present
from ..symptoms import Rule, Symptom
from .gang import gap_sql, settled, sizes

_CLEARS = "its GPUs stand empty no more than before for two or three minutes"
DATA = Rule("alone.data_wait", State.WATCH, Reason.STORAGE, _CLEARS)
CORES = Rule("alone.cpu_wait", State.WATCH, Reason.HOST_CPU, _CLEARS)


def waiting_hosts(present: Present) -> Iterator[Symptom]:
    """Name each host with a job of its own that waits for data or for cores more than it did."""
    standing = present.fleet.gangs.standing
    if standing is None:
        return
    pressure = present.threshold("gang.pressure_ratio")
    found = settled(present, standing) & (sizes(standing) == 1)
    found &= standing.gap_more >= present.threshold("gang.gap_ratio")
    found &= standing.gap_more_often >= present.threshold("gang.identity_ratio")
    for host in np.flatnonzero(found).tolist():
        cpu, io = float(standing.cpu_more[host]), float(standing.io_more[host])
        if io >= pressure and not cpu > io:
            waits = f"it waits for I/O {100 * io:.0f} % more of the time"
            words = "whether its own disks and mounts are slow or a storage that others use too, a job of one host does not tell"
            yield _symptom(present, standing, DATA, host, f"{waits}: {words}")
        elif cpu >= pressure:
            waits = f"tasks wait for its cores {100 * cpu:.0f} % more of the time"
            words = "whether the job asks for more or somebody takes them, a job of one host does not tell"
            yield _symptom(present, standing, CORES, host, f"{waits}: {words}")


def _symptom(present: Present, standing: Standing, rule: Rule, host: int, words: str) -> Symptom:
    gap = float(standing.gap_more[host])
    return Symptom(
        rule=rule,
        host=host,
        device="host",
        signal=rule.name,
        value=round(gap, 3),
        unit="of the time more than before",
        normal=f"below {present.threshold('gang.gap_ratio'):g}",
        words=f"nothing runs on its GPUs {100 * gap:.0f} % more of the time than before in this job, and {words}",
        sql=gap_sql(present, host),
    )
