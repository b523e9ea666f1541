"""Use of the host by each job, from its control group, while several jobs hold GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...contract.block import Block
from ...contract.job_names import job_name
from ...ext import place
from ..hardware.files import Roots, read_text
from ..hardware.isolation_facts import own_levels, parse_paths
from ..hardware.job_groups import JobGroupReader
from ..hardware.processes import PROC
from .block_writer import block_of, put
from .process_tracker import TrackedProcess

TABLE = "job_group_1s"
#: Jobs on a host; further ones are left out.
JOBS_MAX = 64


class JobGroups:
    """Control groups of the jobs: `observe` after a change, `block` in each turn."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._reader: JobGroupReader | None = None
        #: Job -> path of its control group by controller.
        self._paths: dict[str, dict[str, str]] = {}
        self._block: Block | None = None

    def observe(self, processes: Iterable[tuple[TrackedProcess, Mapping[str, str]]]) -> None:
        """Take the processes on GPUs, with their attributes of `gpu.process`."""
        before, self._paths = self._paths, {}
        for process, attributes in processes:
            name = job_name(attributes.get("source", ""), attributes)
            if not name or name in self._paths or process.is_dead or process.snapshot is None:
                continue
            if len(self._paths) < JOBS_MAX:
                paths = before.get(name) or self._read_paths(process.gpu_process.pid)
                self._paths |= {name: paths} if paths else {}

    def _read_paths(self, pid: int) -> dict[str, str]:
        place.enter(PROC.encode(), b"read cgroup")
        text = read_text(self._roots.proc / str(pid) / "cgroup") or ""
        place.leave()
        return {name: own_levels(path)[-1] for name, path in parse_paths(text).items()}

    def block(self) -> Block | None:
        """Return a row for each job; None unless there are several."""
        if len(self._paths) < 2:
            return None
        self._reader = self._reader or JobGroupReader(self._roots.sys)
        block = self._block = block_of(self._block or Block(TABLE, ()), self._paths)
        for row, paths in enumerate(self._paths.values()):
            for name, value in self._reader.read(paths)._asdict().items():
                put(block, f"job_group.{name}", row, value)
        return block
