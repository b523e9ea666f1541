"""Reads each source of this host once, in a child process, when `gangline doctor` finds no running agent.

This module is both sides. The child is `python -m gangline.agent.local.source_reading`. It reports each source as soon as
it is read, so a driver that hangs loses only the sources after it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...contract.workers import module_command
from ..clock import SystemClock
from ..collector import CollectOutcome, CollectResult, RestartRequired, run_collector
from ..collectors import COLLECTORS
from ..hardware.files import Roots

#: A child that takes longer is killed.
SECONDS_MAX = 20.0
#: Bytes of the child's output that are used. All sources together write a tenth.
OUTPUT_BYTES_MAX = 1 << 20


def read_sources(
    roots: Roots, collectors_off: Iterable[str] = (), seconds_max: float = SECONDS_MAX
) -> Sequence[CollectResult]:
    """Return each source's first result, within *seconds_max* plus a second. Never raises."""
    command = module_command(__name__, "--sys", str(roots.sys), "--proc", str(roots.proc))
    command += ["--dev", str(roots.dev), "--run", str(roots.run), "--off", ",".join(collectors_off)]
    command += ["--nvml", roots.nvml_library] if roots.nvml_library else []
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError as error:
        return [_not_read("all sources", CollectOutcome.ERROR, f"no child process: {error}")]
    try:
        output, _ = child.communicate(timeout=seconds_max)
    except subprocess.TimeoutExpired as error:
        child.kill()  # not waited for: a child that hangs in a driver does not end
        output = error.output or b""
    return parse(output[:OUTPUT_BYTES_MAX], seconds_max)


def parse(output: bytes, seconds_max: float) -> Sequence[CollectResult]:
    """Return the child's results; a source that began and did not end is HUNG. Never raises."""
    results: dict[str, CollectResult] = {}
    for line in output.splitlines():
        try:
            name, outcome, message = json.loads(line)
            results[str(name)] = _not_read(str(name), CollectOutcome(outcome), str(message))
        except (ValueError, TypeError):
            continue  # half a line of a killed child
    if not results:
        return [_not_read("all sources", CollectOutcome.ERROR, "the child process printed nothing")]
    return [
        result._replace(message=f"did not return within {seconds_max:.0f} s: its driver hangs")
        if result.outcome is CollectOutcome.HUNG
        else result
        for result in results.values()
    ]


def _not_read(name: str, outcome: CollectOutcome, message: str) -> CollectResult:
    return CollectResult(name, (), 0.0, outcome, message)


def main() -> int:
    """Run the child: print a JSON line when a source begins (as HUNG) and when it ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("sys", "proc", "dev", "run"):
        parser.add_argument(f"--{name}", type=Path, default=Path(f"/{name}"))
    parser.add_argument("--nvml")
    parser.add_argument("--off", default="")
    options = parser.parse_args()
    roots = Roots(options.sys, options.proc, options.nvml, dev=options.dev, run=options.run)
    clock = SystemClock()
    off = options.off.split(",")
    collectors = [make(roots) for name, make in COLLECTORS.items() if name not in off]
    # Collectors that call a driver come last: the others have been read by then.
    for collector in sorted(collectors, key=lambda collector: collector.enters_driver):
        print(json.dumps([collector.name, CollectOutcome.HUNG, ""]), flush=True)
        try:
            result = run_collector(collector, clock)
        except RestartRequired as error:
            result = _not_read(collector.name, CollectOutcome.ERROR, str(error))
        print(json.dumps([collector.name, result.outcome, result.message]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
