"""The aggregator as a process of its own, to be ended or killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.processes import GUARD_SECONDS, with_store


class Process:
    """`gangline aggregator` on any free port; without the operators' file, unless *more* says how often."""

    def __init__(
        self, folder: Path, *more: str, program: tuple[str, ...] = ("-m", "gangline.cli")
    ) -> None:
        command = [sys.executable, *program, "aggregator", "--data", str(with_store(folder))]
        command += ["--listen", "127.0.0.1:0", "--set", "ops_seconds=0"]
        command += ["--set", "listen_scores=off"]
        self.child = subprocess.Popen([*command, *more], stdout=subprocess.PIPE, text=True)
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        assert "listening on 127.0.0.1:" in line, line
        self.port = int(line.partition("127.0.0.1:")[2].partition(",")[0])

    def end(self, number: int) -> int:
        self.child.send_signal(number)
        with self.child:
            return self.child.wait(GUARD_SECONDS)
