"""Debian's node_exporter as a peer, where available: its binary, unpacked but not installed."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .measure import ended

PACKAGE = "prometheus-node-exporter"
ADDRESS = "127.0.0.1:7693"
FETCH_SECONDS_MAX = 60
SCRAPE_SECONDS_MAX = 5.0


def find(folder: Path) -> Path | None:
    """Return the program, installed or unpacked from the package in *folder*; None without both."""
    installed = shutil.which(PACKAGE)
    if installed:
        return Path(installed)
    folder.mkdir()
    try:
        fetch = ["apt-get", "-q", "download", PACKAGE]
        subprocess.run(
            fetch, cwd=folder, timeout=FETCH_SECONDS_MAX, check=True, capture_output=True
        )
        (package,) = folder.glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", package, folder / "unpacked"], check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return folder / "unpacked/usr/bin" / PACKAGE


@contextmanager
def scraped(program: Path, root: Path) -> Iterator[tuple[int, list[int]]]:
    """Run node_exporter over a host's folder, scraped once a second.

    Yield its pid and the sizes of its answers in bytes.
    """
    options = [f"--path.sysfs={root}/sys", f"--path.procfs={root}/proc", f"--path.rootfs={root}"]
    child = subprocess.Popen(
        [program, *options, f"--web.listen-address={ADDRESS}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    stop, sizes = threading.Event(), list[int]()
    scraper = threading.Thread(target=_scrape, args=(stop, sizes), daemon=True)
    scraper.start()
    with ended(child):
        try:
            yield child.pid, sizes
        finally:
            stop.set()
            scraper.join(2 * SCRAPE_SECONDS_MAX)


def _scrape(stop: threading.Event, sizes: list[int]) -> None:
    while not stop.wait(1 - time.monotonic() % 1):
        url = f"http://{ADDRESS}/metrics"
        with (
            suppress(OSError, urllib.error.URLError),
            urllib.request.urlopen(url, timeout=SCRAPE_SECONDS_MAX) as answer,
        ):
            sizes.append(len(answer.read()))
