"""A real Slurm whose slurmctld has our job_submit plugin, and nodes of several kinds."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.slurm_cluster import COMMAND_SECONDS, SlurmCluster

#: The plugin folders of Debian and other distributions.
PLUGIN_FOLDERS = ("/usr/lib/*/slurm-wlm", "/usr/lib*/slurm", "/usr/local/lib/slurm")
MISSING_PLUGIN = (
    "Slurm's plugin job_submit/lua is not installed: "
    "apt-get install --no-install-recommends slurm-wlm-basic-plugins liblua5.1-0"
)


def has_plugin() -> bool:
    """Say whether slurmctld can load job_submit/lua."""
    return any(list(Path("/").glob(f"{folder[1:]}/job_submit_lua.so")) for folder in PLUGIN_FOLDERS)


@contextmanager
def running_cluster(folder: Path, nodes: int, *lines: str) -> Iterator[SlurmCluster]:
    cluster = SlurmCluster(folder, nodes)
    cluster.conf.write_text("\n".join([cluster.conf.read_text(), *lines, ""]))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


def sbatch(cluster: SlurmCluster, *options: str) -> tuple[str, str]:
    """Submit a long job; return its number ("" if refused) and the message to the user."""
    command = ["sbatch", "--parsable", "--output=/dev/null", *options, "--wrap=sleep 300"]
    done = subprocess.run(
        command, env=cluster.environment, cwd=cluster.folder, capture_output=True, text=True,
        check=False, timeout=COMMAND_SECONDS,
    )  # fmt: skip
    number = done.stdout.strip() if done.returncode == 0 else ""
    return number, done.stderr


def excluded_nodes(cluster: SlurmCluster, number: str) -> str:
    text = cluster.command("scontrol", "-o", "show", "job", number)
    match = re.search(r" ExcNodeList=(\S+)", text)
    return "" if match is None or match[1] == "(null)" else match[1]
