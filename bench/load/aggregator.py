"""A real aggregator as a child process, with its CPU as the kernel accounts it and its /metrics."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..measure import cpu_seconds, family, pss_bytes

#: The first start compiles nothing, but a loaded machine is slow.
START_SECONDS_MAX = 60.0
#: A load generator connects its hosts one after another, and does not retry when it has to wait.
RECONNECTS = 100_000
#: Its data folder, within the given folder.
STORE = "store"


@dataclass(frozen=True)
class Running:
    """A running aggregator."""

    pid: int
    address: str
    metrics: str
    folder: Path

    def cpu(self) -> tuple[float, float]:
        """Return the CPU seconds of all its threads, and of the thread with the event loop."""
        main = Path(f"/proc/{self.pid}/task/{self.pid}/schedstat").read_text().split()[0]
        return cpu_seconds(self.pid), int(main) / 1e9

    def memory_bytes(self) -> int:
        """Return its resident set."""
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def peak_bytes(self) -> int:
        """Return its peak resident set (VmHWM), plus the PSS of its children."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        (peak,) = (int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
        return peak + pss_bytes(family(self.pid)[1:])

    def figures(self) -> dict[str, float]:
        """Return the figures of its /metrics, by sample."""
        request = urllib.request.Request(self.metrics, headers={"Accept": "text/plain"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name.removeprefix("gangline_aggregator_"): float(v) for name, _, v in samples}


@contextmanager
def aggregator(folder: Path | None = None, *settings: str) -> Iterator[Running]:
    """Run an aggregator in *folder* (None: temporary) with *settings* (`key=value`)."""
    with tempfile.TemporaryDirectory() as temporary:
        data = folder or Path(temporary)
        given = ["metrics_listen=127.0.0.1:0", f"reconnects_per_second={RECONNECTS}", *settings]
        log = data / "aggregator.log"
        data.mkdir(parents=True, exist_ok=True)
        with open(log, "wb") as errors:
            child = subprocess.Popen(
                [sys.executable, "-m", "gangline.cli", "aggregator", "--data", str(data / STORE),
                 "--listen", "127.0.0.1:0", *(w for setting in given for w in ("--set", setting))],
                stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        assert child.stdout
        try:
            line = child.stdout.readline()
            if "listening on " not in line:
                raise RuntimeError(f"the aggregator did not start: {log.read_text()[-4000:]}")
            address = line.split("listening on ")[1].split(",")[0]
            metrics = f"http://127.0.0.1:{_port_of_metrics(child.pid, address)}/metrics"
            yield Running(child.pid, address, metrics, data / STORE)
        finally:
            child.terminate()
            child.wait(START_SECONDS_MAX)
            child.stdout.close()


def _port_of_metrics(pid: int, address: str) -> int:
    """Return the other TCP port that the process listens on."""
    own = int(address.rpartition(":")[2])
    sockets = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue  # already closed
        if target.startswith("socket:["):
            sockets.add(target[8:-1])
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        port = int(fields[1].rpartition(":")[2], 16)
        if fields[3] == "0A" and fields[9] in sockets and port != own:
            return port
    raise RuntimeError("the aggregator listens on no port for /metrics")
