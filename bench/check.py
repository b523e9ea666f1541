"""Run time of `gangline check` against a bare interpreter start, because every prolog runs it."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.measure import Result
from gangline.agent.commands import check
from gangline.agent.local import check as verdict

RUNS = 80
#: Baseline: the cost of a one-line script in a prolog.
BARE = ("/usr/bin/python3", "-c", "pass")


#: The script that pip writes for the command.
SCRIPT = """#!{python}
import sys
from gangline.cli import main
if __name__ == "__main__":
    sys.exit(main())
"""


def run(seed: int) -> list[Result]:
    """Start each command in turn, RUNS times; return the medians."""
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        _show(where)
        tree = Path(sys.executable).with_name("gangline")
        arguments = ("check", "--run-folder", folder)
        commands = {
            "installed": (str(_installed(where / "installed")), *arguments),
            "tree": (str(tree), *arguments), "pass": (sys.executable, "-c", "pass"), "bare": BARE,
        }  # fmt: skip
        durations = _in_turn(commands)
    peer, bare = " ".join(BARE), 1000 * durations["bare"]
    floor = f"of it {1000 * durations['pass']:.1f} ms are this tree's own `python -c pass`"
    return [
        Result(
            "gangline check, installed", 1000 * durations["installed"], "ms", peer, bare, "<= 3"
        ),
        Result("gangline check, editable tree", 1000 * durations["tree"], "ms", peer, bare, floor),
    ]


def _installed(folder: Path) -> Path:
    """Create an environment with this package as installed from a wheel; return its command."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "gangline").symlink_to(Path(__file__).parent.parent)
    command = folder / "bin" / "gangline"
    command.write_text(SCRIPT.format(python=python))
    command.chmod(0o755)
    return command


def _show(folder: Path) -> None:
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    texts = dict.fromkeys(verdict.FINDING_TEXTS, "a text of some length")
    times = {"since_ns": now_ns, "confirmed_ns": now_ns}
    finding = texts | times | {"count": 1, "enforceable": True}
    shown = {
        "host": "gpu-017", "agent_version": "gpu-017", "policy": "gpu-017", "boot_id": check.boot_id(),
        "format": verdict.FORMAT, "boottime_ns": now_ns, "enforcing": ["xid79"], "permit": None,
        "notes": [], "findings": [finding] * 4, "left_out": 0,
    }  # fmt: skip
    (folder / "status.json").write_text(json.dumps(shown))


def _in_turn(commands: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Return the median seconds of each; alternating, so that other load affects all equally."""
    durations: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(RUNS):
        for name, command in commands.items():
            begin = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            durations[name].append(time.perf_counter() - begin)
    return {name: statistics.median(duration) for name, duration in durations.items()}
