"""CPU per row of Debian's Prometheus that scrapes GPU readings each second, against Gangline's for
the same rows.

A row is one GPU at one time, all signals of `gpu_1s`. Prometheus: a target a host, 8 GPUs, prepared
texts with changing values, with more hosts while it keeps up. Ours: `ingest_cost`, live one-second
frames of such rows.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.codec import gpu_blocks
from bench.ingest_cost import LIVE_SECOND, cost
from bench.measure import Result, cpu_seconds
from gangline.contract.block import Block
from gangline.contract.signals import TABLES

GPUS = 8
STEPS, SECONDS = (250, 1000), 6
#: Prometheus begins to scrape five seconds after its start.
WARM_SECONDS = 9
VARIANTS = 16
#: Minimum share of scrapes: an overloaded Prometheus skips scrapes.
SUSTAINED_SHARE = 0.95
#: Samples that Prometheus itself adds to each scrape: up, scrape_duration_seconds, and three more.
SELF_SAMPLES = 5
_NAMES = [f"gangline_gpu_{signal.column}" for signal in TABLES["gpu_1s"]]


def texts(seed: int) -> list[bytes]:
    """Return expositions of one host: the same series, other values in each."""
    blocks = gpu_blocks(random.Random(seed), GPUS)
    return [_text(block) for block, _ in zip(blocks, range(VARIANTS), strict=False)]


def _text(block: Block) -> bytes:
    lines = list[str]()
    for row, device in enumerate(block.devices):
        values = [value for _, value in block.values(row)]
        for name, value in zip(_NAMES, values, strict=True):
            lines.append(f'{name}{{uuid="{device}"}} {value or 0}')
    return ("\n".join(lines) + "\n").encode()


def _config(hosts: int, port: int) -> str:
    targets = [f"'127.{1 + index // 250}.{index % 250}.1:{port}'" for index in range(hosts)]
    return (
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        "scrape_configs:\n- job_name: gpus\n  static_configs:\n  - targets: ["
        + ", ".join(targets)
        + "]\n"
    )


@contextmanager
def _targets(seed: int) -> Iterator[int]:
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.load.targets", str(seed)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdin and child.stdout
    try:
        yield int(child.stdout.readline())
    finally:
        child.stdin.close()
        child.wait(30)
        child.stdout.close()


def _metric(port: int, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(x.split()[-1]) for x in lines if x.split("{")[0].split(" ")[0] == name)


def _prometheus_cost(hosts: int, seed: int) -> tuple[float, float]:
    """Return (CPU us a row, share of the rows that it stored) of Prometheus with *hosts* targets."""
    program = shutil.which("prometheus")
    assert program
    with _targets(seed) as port, tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "prometheus.yml"
        config.write_text(_config(hosts, port))
        metrics_port = port + 1
        child = subprocess.Popen(
            [program, f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{metrics_port}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _ready(metrics_port)
            time.sleep(WARM_SECONDS)
            name = "prometheus_tsdb_head_samples_appended_total"
            begin, before, spent = (
                time.monotonic(),
                _metric(metrics_port, name),
                cpu_seconds(child.pid),
            )
            time.sleep(SECONDS)
            seconds = time.monotonic() - begin
            samples, spent = _metric(metrics_port, name) - before, cpu_seconds(child.pid) - spent
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait(30)
    rows = samples / (GPUS * len(_NAMES) + SELF_SAMPLES) * GPUS
    return spent / rows * 1e6, rows / (hosts * GPUS * seconds)


def _ready(port: int) -> None:
    end = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5):
                return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def run(seed: int) -> list[Result]:
    """Measure; if Prometheus is not installed, print a message and return nothing."""
    if shutil.which("prometheus") is None:
        print(
            "  left out: no prometheus here (Debian: apt-get install prometheus)", file=sys.stderr
        )
        return []
    best = 0, 0.0, 0.0
    for hosts in STEPS:
        prometheus, share = _prometheus_cost(hosts, seed)
        if share < SUSTAINED_SHARE and best[0]:
            break
        best = hosts, prometheus, share
    gangline, came = cost(seed, LIVE_SECOND)
    notes = (
        f"{best[0] * GPUS} rows of {len(_NAMES)} values each second, {best[2]:.0%} of them taken; "
        f"scraping, parsing and the head block; ours from the wire to durable, {came}"
    )
    what = f"aggregator, wire to durable, {LIVE_SECOND.name}"
    return [
        Result(what, gangline, "us CPU a row", "Prometheus, scraped each second", best[1], notes)
    ]
