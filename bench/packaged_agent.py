"""CPU of the packaged agent against the same agent on the distribution's Python, on one host.

    python -m bench.packaged_agent DIST [--seconds N] [--python /usr/bin/python3]

DIST holds the debs of `make packages`. Without an aggregator frames go to the spool. Two agents of
each kind run at once: other load of the machine affects both kinds alike.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from .agent_cost import HERE, WARM_UP_SECONDS, Ground
from .measure import ProcessCost, ended, family

#: Target (issue 23): CPU of the packaged agent relative to the other.
RATIO_MAX = 1.05
AGENTS = 2
#: By then the inventory process has ended, also on a busy machine.
SETTLED_SECONDS = 4 * WARM_UP_SECONDS
ROOT = HERE.parent


def commands(dist: Path, folder: Path, python: str) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return name -> (command, environment) of each kind of agent; unpacks the debs into *folder*."""
    for package in ("gangline-runtime", "gangline-agent"):
        (deb,) = dist.glob(f"{package}_*.deb")
        subprocess.run(["dpkg-deb", "--extract", str(deb), str(folder)], check=True)
    tree = folder / "opt" / "gangline" / "packages" / "runtime"
    shutil.copytree(tree.with_name("agent"), tree, dirs_exist_ok=True)
    bin_folder = tree / "bin"
    (site,) = (ROOT / ".venv" / "lib").glob("python3*/site-packages")
    own = {"PYTHONPATH": f"{ROOT / 'build' / 'names'}:{site}"}
    return {
        "packaged": ([str(bin_folder / "python3.13"), "-EsP", str(bin_folder / "gangline")], {}),
        "distribution": ([python, "-sP", "-m", "gangline.cli"], own),
    }


def start(
    command: list[str], environment: Mapping[str, str], ground: Ground, name: str
) -> subprocess.Popen[bytes]:
    """Start one agent."""
    options = ground.agent_options(name)
    calls = ground.gpus(f"{name}.gpus")
    with (ground.folder / name / "log").open("wb") as log:
        return subprocess.Popen(
            [*command, "agent", *options, "--aggregator", "127.0.0.1:9"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
            env={**os.environ, "PYTHONNODEBUGRANGES": "1", **environment, "GANGLINE_FAKE_NVML": str(calls.scenario)},
        )  # fmt: skip


def main() -> int:
    """Measure, print both and their ratio; return 1 if the ratio is above RATIO_MAX."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dist", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--python", default="/usr/bin/python3")
    options = parser.parse_args()
    with Ground.temporary() as ground, ExitStack() as stack:
        kinds = commands(options.dist, ground.folder / "packages", options.python)
        running: dict[str, list[subprocess.Popen[bytes]]] = {kind: [] for kind in kinds}
        for number in range(AGENTS):
            for kind, (command, environment) in kinds.items():
                child = start(command, environment, ground, f"{kind}{number}")
                stack.enter_context(ended(child))
                running[kind].append(child)
        time.sleep(SETTLED_SECONDS)
        pids = [(kind, child.pid) for kind, children in running.items() for child in children]
        before = [ProcessCost.now(family(pid)) for _, pid in pids]
        time.sleep(options.seconds)
        cost = dict.fromkeys(kinds, 0.0)
        for (kind, pid), earlier in zip(pids, before, strict=True):
            cost[kind] += ProcessCost.now(family(pid)).since(earlier).cpu_seconds
    for kind, seconds in cost.items():
        print(
            f"{kind}: {seconds * 1e6 / options.seconds / AGENTS:.0f} us/s of CPU an agent, {AGENTS} agents, {options.seconds:.0f} s"
        )
    ratio = cost["packaged"] / cost["distribution"]
    print(f"ratio: {ratio:.2f} (target: at most {RATIO_MAX})")
    return int(ratio > RATIO_MAX)


if __name__ == "__main__":
    sys.exit(main())
