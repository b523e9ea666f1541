"""Settings of an executor."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...contract.otlp_logs import check_url
from ...contract.settings import setting
from . import model
from .attribution_server import parse_listen
from .core import MARKS
from .torchft import LIGHTHOUSES_MAX, parse_http_address

ACTOR_CHARACTERS_MAX = 64
NODE_MAP_BYTES_MAX = 16 << 20
#: Name of a Kubernetes object or namespace.
OBJECT_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
#: Patterns of extended resources: whole GPUs, shared GPUs (`gpu.shared`), MIG instances, vGPU profiles and
#: passed-through chips (names in capitals), AMD partitions, and shares of GPUs by other device plugins.
GPU_RESOURCES = (
    "nvidia.com/gpu*", "nvidia.com/mig-*", "nvidia.com/vgpu*", "nvidia.com/pgpu*", "nvidia.com/[A-Z]*", "amd.com/gpu*",
    "amd.com/?px*", "gpu.intel.com/i915", "gpu.intel.com/xe", "habana.ai/gaudi*", "k8s.amazonaws.com/vgpu", "aliyun.com/gpu-*",
    "volcano.sh/gpu-*", "volcano.sh/vgpu-*", "tencent.com/vcuda-*",
)  # fmt: skip
#: Keys of taints that nodes in service have.
USUAL_TAINTS = (
    "nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi", "node-role.kubernetes.io/*", "cloud.google.com/*", "eks.amazonaws.com/*",
    "kubernetes.azure.com/*", "sku", "dedicated",
)  # fmt: skip

#: Limit of folders in `cycle_info_dirs`.
FOLDERS_MAX = 16


def _check_actions(actions: tuple[str, ...]) -> None:
    for action in actions:
        if action not in model.ACTIONS:
            raise ValueError(f"actions among {', '.join(model.ACTIONS)}; not {action[:40]!r}")


def _check_mark(mark: str) -> None:
    if mark not in MARKS:
        raise ValueError(f"one of {', '.join(MARKS)}")


def _check_actor(actor: str) -> None:
    if not 0 < len(actor) <= ACTOR_CHARACTERS_MAX or not actor.isprintable():
        raise ValueError(f"1 to {ACTOR_CHARACTERS_MAX} printable characters")


def _check_listen(address: str) -> None:
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


def _check_hold(mark: str) -> None:
    if mark != "hold":
        raise ValueError(
            "`hold`: in Kubernetes only people cordon nodes, and an executor sets only taints"
        )


def _check_no_weights(value: bool) -> None:
    if value:
        raise ValueError("false: nodes of this scheduler have no weights")


def _check_drain(mark: str) -> None:
    if mark != "drain":
        raise ValueError("`drain`: this scheduler has nothing else that keeps new work off a node")


def _check_drain_actions(actions: tuple[str, ...]) -> None:
    """Check the actions for a scheduler in which the executor only drains nodes. Raises ValueError."""
    _check_actions(actions)
    for action in (model.REBOOT, model.RESET_GPU, "DRAIN_AT_CHECKPOINT"):
        if action in actions:
            raise ValueError(
                f"actions without {action}, which the executor of this scheduler leaves to people"
            )


def _check_kubernetes_actions(actions: tuple[str, ...]) -> None:
    _check_actions(actions)
    if model.REBOOT in actions:
        raise ValueError("actions without REBOOT: Kubernetes reboots no node")


def _check_absolute(folder: str) -> None:
    if folder and not Path(folder).is_absolute():
        raise ValueError("an absolute path, which the launcher also requires")


def _check_folders(folders: tuple[str, ...]) -> None:
    if len(folders) > FOLDERS_MAX:
        raise ValueError(f"at most {FOLDERS_MAX} folders")
    for folder in folders:
        if not Path(folder).is_absolute():
            raise ValueError(f"absolute paths; not {folder[:80]!r}")


def _check_object_name(name: str) -> None:
    if not OBJECT_NAME.fullmatch(name):
        raise ValueError("1 to 63 lower-case letters, digits and -")


def _cluster(name: str, noun: str = "cluster") -> Any:
    return setting(name, f"how answers, outcomes and reports name this {noun}", check=_check_actor)


@dataclass(frozen=True)
class ExecutorConfig:
    """Settings of an executor of a scheduler, with Slurm's defaults."""

    ledger: str = setting(
        "/var/lib/gangline-executor",
        "folder of the ledger: what was set, written before each command",
    )
    cluster: str = _cluster("slurm")
    actions: tuple[str, ...] = setting(
        (*model.HOLDING_ACTIONS, model.RETURN),
        "advisories to carry out; REBOOT and RESET_GPU are off unless listed here",
        check=_check_actions,
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
    lease_seconds: float = setting(
        600.0,
        "lease of an accepted advisory; it ends unless the executor renews it within this time",
        low=30.0,
        high=86_400.0,
    )
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
    weights_poll_seconds: float = setting(
        60.0, "time between two reads of the scores for `weights`", low=1.0, high=3600.0
    )
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
    attribution_wait_seconds: float = setting(
        120.0,
        "how long the attribution waits for the launcher's next cycle before the answer is UNKNOWN",
        low=0.0,
        high=3600.0,
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


@dataclass(frozen=True)
class KubernetesConfig(UnweightedConfig):
    """Settings of an executor of a Kubernetes cluster."""

    ledger: str = setting(
        "",
        "folder of the ledger, for one executor outside the cluster; empty: the ledger is a "
        "ConfigMap, and of several executors only the holder of the Lease acts",
    )
    cluster: str = _cluster("kubernetes")
    mark: str = setting(
        "hold",
        "how new work is kept off a node: `hold`, a taint with its expiry in an annotation",
        check=_check_hold,
    )
    actions: tuple[str, ...] = setting(
        (*model.HOLDING_ACTIONS, model.RETURN),
        "advisories to carry out; RESET_GPU is off unless listed here",
        check=_check_kubernetes_actions,
    )
    namespace: str = setting(
        "gangline", "namespace of the ConfigMap and the Lease", check=_check_object_name
    )
    state_name: str = setting(
        "gangline-executor", "name of the ConfigMap and the Lease", check=_check_object_name
    )
    kubeconfig: str = setting(
        "",
        "kubeconfig in JSON, as printed by `kubectl config view --raw --minify --flatten -o json`; "
        "empty: the pod's service account",
    )
    kubernetes_server: str = setting(
        "", "address of `kubectl proxy`, http://127.0.0.1:8001, instead of a kubeconfig"
    )
    gpu_resources: tuple[str, ...] = setting(
        GPU_RESOURCES,
        "extended resources that are GPUs (* matches any characters); pods that request neither "
        "these nor a resource claim are ignored",
    )
    gang_labels: tuple[str, ...] = setting(
        (),
        "pod labels that name the gang; they take precedence over those of Kueue, JobSet, Ray, "
        "Kubeflow, Volcano and Job",
    )
    usual_taints: tuple[str, ...] = setting(
        USUAL_TAINTS,
        "keys of taints that only describe a node in service (* matches any characters). A key on "
        "more than half of all nodes counts as one, too",
    )
    publish_health: bool = setting(
        True,
        "write the condition GanglineHealthy and the label gangline.io/bucket (0 best to 3) of "
        "each node",
    )
    device_taints: bool = setting(
        False,
        "for an advisory of one GPU, create a DeviceTaintRule of that GPU instead of the node's "
        "taint, if the API server supports it",
    )
    kueue: bool = setting(
        False,
        "serve admission checks of Kueue whose controllerName is gangline.io/health: a workload "
        "waits while only unhealthy nodes are free",
    )
    kueue_select_bucket: bool = setting(
        False,
        "with kueue: a workload that fits on the nodes of bucket 0 gets a nodeSelector for them",
    )
    extender_listen: str = setting(
        "127.0.0.1:7611",
        "ADDRESS:PORT of `gangline executor kubernetes extender`: plain HTTP, for the scheduler on "
        "this machine",
        check=_check_listen,
    )
    extender_mirror: str = setting(
        "/run/gangline-mirror/nodes",
        "file from which the extender answers; `gangline mirror` writes it",
    )
    no_execute: bool = setting(
        False,
        "EVICT_NOW also sets gangline.io/evict:NoExecute, which evicts every pod of the node that "
        "does not tolerate it, regardless of its disruption budget",
    )

    @property
    def actor(self) -> str:
        """Name of this executor at the aggregator: shared by all replicas, but with a folder as ledger it has the host."""
        return super().actor if self.ledger else f"executor {self.cluster}"


def _drain_mark(how: str) -> Any:
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


@dataclass(frozen=True)
class HTCondorConfig(DrainingConfig):
    """Settings of an executor of an HTCondor pool."""

    cluster: str = _cluster("htcondor", "pool")
    mark: str = _drain_mark("by condor_drain -graceful")


def _check_ray_actions(actions: tuple[str, ...]) -> None:
    if any(action != "EVICT_NOW" for action in actions):
        raise ValueError(
            "EVICT_NOW or nothing: an executor of Ray can only drain a node, and a drain cannot be "
            "undone"
        )


def _check_helper(helper: tuple[str, ...]) -> None:
    if len(helper) < 2:
        raise ValueError("Ray's Python, then the path of gangline_ray.py")


@dataclass(frozen=True)
class RayConfig(UnweightedConfig):
    """Settings of an executor of a Ray cluster."""

    cluster: str = _cluster("ray")
    mark: str = _drain_mark("which cannot be taken back")
    actions: tuple[str, ...] = setting(
        (),
        "advisories to carry out: none, unless EVICT_NOW is listed here; it drains the node "
        "permanently",
        check=_check_ray_actions,
    )
    poll_seconds: float = setting(
        10.0, "time between two reads of nodes and placement groups", low=0.2, high=300.0
    )
    ray_address: str = setting("127.0.0.1:6379", "HOST:PORT of the head node's control service")
    ray_helper: tuple[str, ...] = setting(
        ("python3", "/usr/local/libexec/gangline_ray.py"),
        "Ray's Python, of the cluster's version, and the path of gangline_ray.py",
        check=_check_helper,
    )
    ray_drain_seconds: float = setting(
        60.0,
        "deadline that a drain sets for the work that runs on the node",
        low=0.0,
        high=86_400.0,
    )


@dataclass(frozen=True)
class FluxConfig(DrainingConfig):
    """Settings of an executor of a Flux instance."""

    cluster: str = _cluster("flux", "instance")
    mark: str = _drain_mark("by flux resource drain")


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
