"""`make soak-packages`: upgrades and downgrades of an agent that samples, at random moments, some of them killed in the middle.

    python -m tests.soak_packages --packages dist --rounds 40 --kills 5 --seed 1

A Debian that boots holds the agent, an aggregator of this checkout stores what it sends. After the last round the store
says what was lost, doubled or not sampled. The seed chooses moments and kills; the machine's pace makes each run another.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.packages import built
from tests.packages.booted import Booted, booted, root_archive
from tests.processes import Process, free_port, listening, until

PACKAGES = ("gangline-runtime", "gangline-agent")
#: How long after it began an upgrade may be killed.
KILL_SECONDS_MAX = 8.0
PAUSE_SECONDS_MAX = 6.0
#: The service is up again within this, or the round has failed; the machine runs other things beside.
UP_SECONDS = 120.0
NOT_SAMPLED_SECONDS_MAX = 3.0
#: Every sampled second of the host, and how often it was stored.
SECONDS_SQL = "SELECT epoch_ns(time), count(*) FROM readings.host_1s GROUP BY time ORDER BY time"
#: The operator's repair after a kill: apt does not find the archive of a half-unpacked package,
#: dpkg gets its path.
REPAIR = "dpkg --install"
INSTALL = "apt-get install --yes --allow-downgrades --reinstall"


@dataclass
class Outcome:
    """The results of the rounds."""

    rounds: int = 0
    killed: int = 0
    repaired: int = 0
    up_seconds: list[float] = field(default_factory=list)
    #: Per restart: seconds to end the old agent, and to start the new one.
    restarts: list[tuple[float, float]] = field(default_factory=list)


def descendants(pid: int) -> list[int]:
    """Return a process and all below it, the youngest first."""
    pids, pending = [], [pid]
    while pending:
        parent = pending.pop()
        pids.append(parent)
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                pending += map(int, task.read_text().split())
            except OSError:
                continue
    return pids[::-1]


def files_of(later: bool) -> str:
    """Return the packages of one version, for apt."""
    return " ".join(f"/packages/{name}{'-later' if later else ''}.deb" for name in PACKAGES)


def change(host: Booted, later: bool, kill_after: float | None) -> bool:
    """Upgrade or downgrade with apt; kill it and dpkg after *kill_after* seconds. Return whether it ended by itself.

    Raises RuntimeError with its output if it fails by itself.
    """
    command = ["sh", "-c", f"{INSTALL} {files_of(later)}"]
    path = host.root / "packages" / "apt.log"
    with path.open("wb") as log:
        child = subprocess.Popen(host.command(*command), stdout=log, stderr=log)
        try:
            child.wait(kill_after)
        except subprocess.TimeoutExpired:
            for pid in descendants(child.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            child.wait()
            return False
    if child.returncode:
        raise RuntimeError(f"apt ended with {child.returncode}: {path.read_text()[-3000:]}")
    return True


def agent_status(host: Booted) -> dict[str, Any]:
    """Return the agent's own status; empty before the first.

    From its file: `gangline agent status` compares boot ids, and systemd-nspawn shows its own to
    all except the unit's sandbox.
    """
    try:
        document = json.loads((host.root / "run/gangline/status.json").read_bytes())
    except (OSError, ValueError):
        text = host.run("cat", "/run/gangline/status.json", check=False)
        document = json.loads(text) if text.startswith("{") else {}
    return dict(document.get("agent") or {})


def is_up(host: Booted) -> bool:
    """Whether systemd says that the agent runs, and the process of its status is connected."""
    pid = host.run("systemctl", "show", "--property=MainPID", "--value", "gangline-agent").strip()
    status = agent_status(host)
    return bool(status.get("connected")) and str(status["pid"]) == pid


def restart_seconds(host: Booted) -> tuple[float, float]:
    """Return the times of the last restart: from the stop to the end of the process, and from the start to READY=1."""
    names = ("ActiveExit", "InactiveEnter", "InactiveExit", "ActiveEnter")
    properties = [f"--property={name}TimestampMonotonic" for name in names]
    shown = host.run("systemctl", "show", "gangline-agent", *properties)
    moments = {
        name: int(value or 0) / 1e6
        for name, _, value in (line.partition("TimestampMonotonic=") for line in shown.splitlines())
    }
    return moments["InactiveEnter"] - moments["ActiveExit"], moments["ActiveEnter"] - moments[
        "InactiveExit"
    ]


def run(packages: Path, rounds: int, kills: int, seed: int) -> int:
    """Run the rounds; print the results; return the exit code."""
    built.FOLDER = str(packages)
    chooser, outcome = random.Random(seed), Outcome()
    killed_rounds = set(chooser.sample(range(rounds), kills))
    archive = root_archive("bookworm", packages.absolute().parent / "build" / "roots")
    with tempfile.TemporaryDirectory(prefix="gangline-soak-") as name:
        folder = Path(name)
        port = free_port()
        arguments = ["aggregator", "--data", str(folder / "store"), "--listen", f"127.0.0.1:{port}"]
        with (
            Process(arguments, folder / "aggregator.log") as aggregator,
            booted(archive, folder, shares_network=True) as host,
        ):
            until(lambda: listening(port), "the aggregator listens", UP_SECONDS)
            _install(host, folder, port)
            for number in range(rounds):
                time.sleep(chooser.uniform(0, PAUSE_SECONDS_MAX))
                kill_after = (
                    chooser.uniform(0.2, KILL_SECONDS_MAX) if number in killed_rounds else None
                )
                _round(host, number, rounds, kill_after, outcome)
            until(lambda: agent_status(host).get("waiting_frames", 99) <= 5, "all is sent", 300)
            time.sleep(5)
            aggregator.stop()
        return _report(folder / "store", outcome)


def _install(host: Booted, folder: Path, port: int) -> None:
    packages_folder = host.root / "packages"
    packages_folder.mkdir()
    for package in PACKAGES:
        (packages_folder / f"{package}.deb").write_bytes(built.path_of(package, "deb").read_bytes())
        (packages_folder / f"{package}-later.deb").write_bytes(
            built.repacked(package, folder).read_bytes()
        )
    began = time.monotonic()
    host.run("apt-get", "install", "--yes", *(f"/packages/{name}.deb" for name in PACKAGES))
    installed = time.monotonic()
    settings = host.root / "etc/gangline/agent.toml"
    settings.write_text(settings.read_text().replace("127.0.0.1:7600", f"127.0.0.1:{port}"))
    host.run("systemctl", "enable", "--now", "gangline-agent")
    until(lambda: bool(agent_status(host)), "the first sample", UP_SECONDS)
    print(
        f"installed in {installed - began:.1f} s; first sample {time.monotonic() - installed:.1f} s later",
        flush=True,
    )
    until(lambda: is_up(host), "the agent is connected", UP_SECONDS)


def _round(
    host: Booted, number: int, rounds: int, kill_after: float | None, outcome: Outcome
) -> None:
    later = number % 2 == 0
    began = time.monotonic()
    ended = change(host, later, kill_after)
    outcome.rounds += 1
    if not ended:
        outcome.killed += 1
        state = host.run("systemctl", "is-active", "gangline-agent", check=False).strip()
        until(lambda: is_up(host), f"killed in the middle ({state}), the agent runs", UP_SECONDS)
        host.run("sh", "-c", f"{REPAIR} {files_of(later)}")
        outcome.repaired += 1
    moments = time.monotonic()
    until(lambda: is_up(host), "the agent is up again", UP_SECONDS)
    outcome.up_seconds.append(time.monotonic() - moments)
    outcome.restarts.append(restart_seconds(host))
    what = "upgrade" if later else "downgrade"
    killed = "" if ended else f", killed after {kill_after:.1f} s and repaired"
    print(
        f"{number + 1:>3} of {rounds}: {what}{killed}: {time.monotonic() - began:.1f} s "
        f"(stop {outcome.restarts[-1][0]:.1f} s, start {outcome.restarts[-1][1]:.1f} s)",
        flush=True,
    )


def _report(store: Path, outcome: Outcome) -> int:
    import duckdb

    with duckdb.connect(str(store / "gangline.duckdb"), read_only=True) as connection:
        rows = connection.execute(SECONDS_SQL).fetchall()
    doubled = sum(times > 1 for _, times in rows)
    gaps = [(b[0] - a[0]) / 1e9 for a, b in itertools.pairwise(rows)]
    # A second between samples is not a gap: only longer gaps count.
    missing = sorted((gap - 1 for gap in gaps if gap > 1.5), reverse=True)
    longest = missing[0] if missing else 0.0
    print(
        f"{outcome.rounds} upgrades and downgrades, {outcome.killed} killed in the middle and {outcome.repaired} repaired by "
        f"`{REPAIR} FILES`; {len(rows)} seconds stored, {doubled} doubled; not sampled: {len(missing)} times, "
        f"{longest:.1f} s at most (stop {max(stop for stop, _ in outcome.restarts):.1f} s, start until ready "
        f"{max(start for _, start in outcome.restarts):.1f} s); up after each within {max(outcome.up_seconds):.1f} s"
    )
    return int(bool(doubled) or longest > NOT_SAMPLED_SECONDS_MAX or not rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--packages", type=Path, default=Path("dist"))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    return run(options.packages, options.rounds, options.kills, options.seed)


if __name__ == "__main__":
    sys.exit(main())
