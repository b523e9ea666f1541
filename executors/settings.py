"""Settings that executors of all schedulers have, and the file that maps node names."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..contract.otlp_logs import check_url
from ..contract.settings import constant, setting
from . import model
from .core import MARKS

ACTOR_CHARACTERS_MAX = 64
NODE_MAP_BYTES_MAX = 16 << 20

#: Limit of folders in `cycle_info_dirs`.
FOLDERS_MAX = 16
LIGHTHOUSES_MAX = 16


def parse_listen(listen: str) -> tuple[str, int]:
    """Return (host, port) of an address such as `127.0.0.1:9482` or `[::1]:9482`. Raises ValueError."""
    host, _, port = listen.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if is_bracketed else host
    if (
        not host
        or (":" in host) != is_bracketed
        or not (port.isascii() and port.isdigit())
        or int(port) > 65535
    ):
        raise ValueError("ADDRESS:PORT, as 127.0.0.1:9482 or [::1]:9482")
    return host, int(port)


def parse_http_address(address: str) -> tuple[str, int]:
    """Return (host, port) of `http://HOST:PORT`. Raises ValueError."""
    parts = urlsplit(address)
    if parts.scheme != "http" or not parts.hostname or not parts.port or parts.username:
        raise ValueError("http://HOST:PORT")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError("http://HOST:PORT")
    return parts.hostname, parts.port


def check_actions(actions: tuple[str, ...]) -> None:
    """Raise ValueError unless all *actions* are known."""
    for action in actions:
        if action not in model.ACTIONS:
            raise ValueError(f"actions among {', '.join(model.ACTIONS)}; not {action[:40]!r}")


def _check_mark(mark: str) -> None:
    if mark not in MARKS:
        raise ValueError(f"one of {', '.join(MARKS)}")


def _check_actor(actor: str) -> None:
    if not 0 < len(actor) <= ACTOR_CHARACTERS_MAX or not actor.isprintable():
        raise ValueError(f"1 to {ACTOR_CHARACTERS_MAX} printable characters")


def check_listen(address: str) -> None:
    """Raise ValueError unless *address* is ADDRESS:PORT."""
    parse_listen(address)


def _check_optional_listen(address: str) -> None:
    if address:
        parse_listen(address)


def _check_lighthouses(addresses: tuple[str, ...]) -> None:
    if len(addresses) > LIGHTHOUSES_MAX:
        raise ValueError(f"at most {LIGHTHOUSES_MAX} addresses")
    for address in addresses:
        try:
            parse_http_address(address)
        except ValueError:
            raise ValueError(f"addresses as http://head:29510; not {address[:60]!r}") from None


def _check_no_weights(value: bool) -> None:
    if value:
        raise ValueError("false: nodes of this scheduler have no weights")


def _check_drain(mark: str) -> None:
    if mark != "drain":
        raise ValueError("`drain`: this scheduler has nothing else that keeps new work off a node")


def _check_drain_actions(actions: tuple[str, ...]) -> None:
    """Check the actions for a scheduler in which the executor only drains nodes. Raises ValueError."""
    check_actions(actions)
    for action in (model.REBOOT, model.RESET_GPU, "DRAIN_AT_CHECKPOINT"):
        if action in actions:
            raise ValueError(
                f"actions without {action}, which the executor of this scheduler leaves to people"
            )


def _check_absolute(folder: str) -> None:
    if folder and not Path(folder).is_absolute():
        raise ValueError("an absolute path, which the launcher also requires")


def _check_folders(folders: tuple[str, ...]) -> None:
    if len(folders) > FOLDERS_MAX:
        raise ValueError(f"at most {FOLDERS_MAX} folders")
    for folder in folders:
        if not Path(folder).is_absolute():
            raise ValueError(f"absolute paths; not {folder[:80]!r}")


def cluster_setting(name: str, noun: str = "cluster") -> Any:
    """Return the setting of the cluster\'s name, *name* by default."""
    return setting(name, f"how answers, outcomes and reports name this {noun}", check=_check_actor)


@dataclass(frozen=True)
class ExecutorConfig:
    """Settings of an executor of a scheduler, with Slurm's defaults."""

    ledger: str = setting(
        "/var/lib/gangline-executor",
        "folder of the ledger: what was set, written before each command",
    )
    cluster: str = cluster_setting("slurm")
    actions: tuple[str, ...] = setting(
        (*model.HOLDING_ACTIONS, model.RETURN),
        "advisories to carry out; REBOOT and RESET_GPU are off unless listed here",
        check=check_actions,
    )
    mark: str = setting(
        "auto",
        "how new work is kept off a node: `hold` (a reservation, which expires), `drain`, or "
        "`auto`: a hold, but for EVICT_NOW a drain if this version of the scheduler lets drains "
        "expire",
        check=_check_mark,
    )
    marks_max: int = setting(
        100,
        "maximum number of nodes that this executor marks at one time, even if the aggregator "
        "grants more",
        low=1,
        high=10_000,
    )
    lease_seconds: float = constant(600.0, "it must outlive a restart of the executor, and no more")
    poll_seconds: float = setting(
        1.5, "time between two reads of jobs and reservations", low=0.2, high=60.0
    )
    nodes_poll_seconds: float = setting(
        10.0,
        "time between two reads of all nodes; nodes with advice are read with the jobs",
        low=1.0,
        high=600.0,
    )
    report_gangs: bool = setting(True, "tell the aggregator which jobs run where")
    report_unavailable: bool = setting(True, "tell the aggregator which nodes others took out")
    report_outcomes: bool = setting(True, "tell the aggregator how jobs ended")
    weights: bool = setting(
        False,
        "add the bucket of each node's score, 0 to 3, to its weight, so that the scheduler prefers "
        "healthier nodes",
    )
    weights_poll_seconds: float = constant(60.0, "scores change by the minute")
    follow_plan: bool = setting(
        False,
        "lower the weight of the nodes that the aggregator plans for a requeued job, until the job "
        "runs again",
    )
    torchft_lighthouses: tuple[str, ...] = setting(
        (),
        "addresses of torchft lighthouses, for example http://head:29510; EVICT_NOW ends the "
        "replicas on the node immediately; empty: off",
        check=_check_lighthouses,
    )
    node_map: str = setting(
        "", "file with a line `NODE HOST` for each node that has another name in the fleet"
    )
    metrics_listen: str = setting(
        "",
        "ADDRESS:PORT of /metrics for Prometheus: plain HTTP, no login; empty: off",
        check=_check_optional_listen,
    )
    otlp_logs: str = setting(
        "",
        "address of an OpenTelemetry collector, for example http://127.0.0.1:4318, which receives "
        "each step as a log record; empty: off",
        check=check_url,
    )
    release_command: str = setting(
        "",
        "command to run before a reboot or a reset, for example `ssh {node} gangline release`; run "
        "without a shell",
    )
    reset_command: str = setting(
        "",
        "command that resets the GPUs of a node for RESET_GPU, for example `ssh {node} nvidia-smi "
        "-r`; run without a shell",
    )

    segment_health_dir: str = setting(
        "",
        "absolute path of ft_launcher's --ft-segment-health-check-dir; receives a file for each "
        "task of a Slurm array that has a node which an advisory takes out",
        check=_check_absolute,
    )
    cycle_info_dirs: tuple[str, ...] = setting(
        (),
        "folders of ft_launcher's --ft-cycle-info-dir, absolute, where only trusted users can "
        "write",
        check=_check_folders,
    )
    attribution_listen: str = setting(
        "",
        "ADDRESS:PORT that serves ft_launcher's --ft-attribution-endpoint, over HTTP and without a "
        "login",
        check=_check_optional_listen,
    )
    attribution_wait_seconds: float = constant(
        120.0, "a launcher begins its next cycle within two minutes"
    )

    @property
    def actor(self) -> str:
        """Name of this executor at the aggregator; executors on different machines have different names."""
        return f"executor {self.cluster} {socket.gethostname()}"[:120]

    def policy(self) -> model.ExecutorPolicy:
        """Return the actions and limits for decisions."""
        return model.ExecutorPolicy(
            frozenset(self.actions),
            self.mark,
            self.marks_max,
            self.lease_seconds,
            self.actor,
            bool(self.torchft_lighthouses),
        )


@dataclass(frozen=True)
class UnweightedConfig(ExecutorConfig):
    """Settings of an executor of a scheduler whose nodes have no weights."""

    weights: bool = setting(False, "not here: nodes have no weights", check=_check_no_weights)
    follow_plan: bool = setting(False, "not here: nodes have no weights", check=_check_no_weights)


def drain_mark(how: str) -> Any:
    """Return the setting `mark` of a scheduler that only drains; *how*: by which command."""
    return setting("drain", f"how new work is kept off a node: `drain`, {how}", check=_check_drain)


@dataclass(frozen=True)
class DrainingConfig(UnweightedConfig):
    """Settings of an executor that only drains nodes."""

    actions: tuple[str, ...] = setting(
        (
            *(one for one in model.HOLDING_ACTIONS if one not in model.MOVING_ACTIONS),
            "EVICT_NOW",
            model.RETURN,
        ),
        "advisories to carry out; EVICT_NOW drains the node, and its jobs continue",
        check=_check_drain_actions,
    )


class NodeNames:
    """Mapping of node names in the scheduler and host names at the aggregator, from a file; other names are equal."""

    def __init__(self, file: str = "") -> None:
        """Read *file*, if given. Raises OSError, and ValueError with the invalid line."""
        self._host_of: dict[str, str] = {}
        self._node_of: dict[str, str] = {}
        if not file:
            return
        path = Path(file)
        if path.stat().st_size > NODE_MAP_BYTES_MAX:
            raise ValueError(f"{file}: larger than {NODE_MAP_BYTES_MAX} bytes")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            fields = line.partition("#")[0].split()
            if not fields:
                continue
            if len(fields) != 2 or not all(model.NODE_NAME.fullmatch(word) for word in fields):
                raise ValueError(f"{file}:{number}: expected `NODE HOST`, found {line[:80]!r}")
            node, host = fields
            if node in self._host_of or host in self._node_of:
                raise ValueError(f"{file}:{number}: {node} or {host} is named twice")
            self._host_of[node], self._node_of[host] = host, node

    def host_of(self, node: str) -> str:
        """Return the aggregator's name of *node*."""
        return self._host_of.get(node, node)

    def node_of(self, host: str) -> str:
        """Return the scheduler's name of *host*; "" if this name belongs to a node with another host."""
        if host in self._node_of:
            return self._node_of[host]
        return "" if host in self._host_of else host
