"""Settings of an executor of a Kubernetes cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...contract.settings import setting
from .. import model
from ..settings import (
    UnweightedConfig,
    check_actions,
    check_listen,
    cluster_setting,
)

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


def _check_hold(mark: str) -> None:
    if mark != "hold":
        raise ValueError(
            "`hold`: in Kubernetes only people cordon nodes, and an executor sets only taints"
        )


def _check_kubernetes_actions(actions: tuple[str, ...]) -> None:
    check_actions(actions)
    if model.REBOOT in actions:
        raise ValueError("actions without REBOOT: Kubernetes reboots no node")


def _check_object_name(name: str) -> None:
    if not OBJECT_NAME.fullmatch(name):
        raise ValueError("1 to 63 lower-case letters, digits and -")


@dataclass(frozen=True)
class KubernetesConfig(UnweightedConfig):
    """Settings of an executor of a Kubernetes cluster."""

    ledger: str = setting(
        "",
        "folder of the ledger, for one executor outside the cluster; empty: the ledger is a "
        "ConfigMap, and of several executors only the holder of the Lease acts",
    )
    cluster: str = cluster_setting("kubernetes")
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
        "kubeconfig with the executor's own login (YAML or JSON; also login programs of EKS and GKE, "
        "and OIDC); empty: the pod's service account, outside a pod kubectl's kubeconfig",
    )
    kubernetes_server: str = setting(
        "",
        "address of the API server without a login, instead of a kubeconfig: "
        "http://127.0.0.1:8001 of `kubectl proxy`",
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
        check=check_listen,
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
