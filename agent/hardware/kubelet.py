"""Pods of a host: names from kubelet's log folders, and devices from its PodResources socket."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from google.protobuf.message import DecodeError

from ...ext import place
from .files import names_in

#: Below the host's root (default of kubelet's --pod-logs-dir). A folder's name is
#: NAMESPACE_NAME_UID; a control group has only the UID, and kubelet's PodResources only the name.
POD_LOGS = "var/log/pods"
#: Names are DNS names (RFC 1123), without underscores.
_POD_LOG_FOLDER = re.compile(
    r"(?P<namespace>[a-z0-9-]{1,63})_(?P<name>[a-z0-9.-]{1,253})_(?P<uid>[0-9a-f-]{32,36})"
)

#: PodResources of kubelet, a Unix socket below the host's root. An allocation does not show a
#: process: a pod may leave its GPU idle, and a process may use a GPU without kubelet.
KUBELET_SOCKET = "var/lib/kubelet/pod-resources/kubelet.sock"
LIST_METHOD = "/v1.PodResourcesLister/List"
#: Timeout of kubelet's whole answer, shorter than a sampler's time limit.
ANSWER_SECONDS_MAX = 0.5
#: Allocations beyond this number are dropped.
ALLOCATIONS_MAX = 4096
#: Prefix of resources that are GPUs or parts of GPUs; driver of claimed GPUs.
_RESOURCES, _DRIVER = "nvidia.com/", "gpu.nvidia.com"
_NAME_CHARACTERS_MAX = 253
_DEVICE_CHARACTERS_MAX = 90


class Pod(NamedTuple):
    """A pod's name."""

    namespace: str
    name: str


def parse_pod_log_folder(folder: str) -> tuple[str, Pod] | None:
    """Return a pod's UID and name; None for any other folder."""
    match = _POD_LOG_FOLDER.fullmatch(folder)
    return (match["uid"], Pod(match["namespace"], match["name"])) if match else None


def pods_by_uid(root: Path) -> dict[str, Pod]:
    """Return the current and recent pods of this host by UID; empty without kubelet."""
    place.enter(b"/var/log", b"list /var/log/pods")
    try:
        folders = names_in(root / POD_LOGS)
    finally:
        place.leave()
    return dict(pod for folder in folders if (pod := parse_pod_log_folder(folder)))


class KubeletError(Exception):
    """kubelet did not answer, or not as expected; the message says how."""


class Allocation(NamedTuple):
    """A container's device. `replica`: the share of a GPU that kubelet allocates several times."""

    namespace: str
    pod: str
    container: str
    resource: str  # nvidia.com/gpu; with dynamic allocation the claim's driver
    device: str  # UUID, or else kubelet's name
    replica: str = ""


def parse_allocations(message: bytes) -> list[Allocation]:
    """Return the GPU allocations.

    Raises KubeletError unless *message* is a ListPodResourcesResponse.
    """
    from ...contract.wire.podresources_pb2 import ListPodResourcesResponse

    try:
        answer = ListPodResourcesResponse.FromString(message)
    except DecodeError as error:
        raise KubeletError("the response is not a ListPodResourcesResponse") from error
    allocations: list[Allocation] = []
    for pod in answer.pod_resources:
        for container in pod.containers:
            container_names = (
                pod.namespace[:_NAME_CHARACTERS_MAX],
                pod.name[:_NAME_CHARACTERS_MAX],
                container.name[:_NAME_CHARACTERS_MAX],
            )
            for devices in container.devices:
                if devices.resource_name.startswith(_RESOURCES):
                    resource = devices.resource_name[:_NAME_CHARACTERS_MAX]
                    allocations += (
                        Allocation(*container_names, resource, *_device(i))
                        for i in devices.device_ids
                    )
            for claim in container.dynamic_resources:
                for claimed in claim.claim_resources:
                    if claimed.driver_name == _DRIVER:
                        name = f"{claimed.pool_name}/{claimed.device_name}"[:_DEVICE_CHARACTERS_MAX]
                        allocations.append(Allocation(*container_names, _DRIVER, name))
    return allocations[:ALLOCATIONS_MAX]


def _device(device_id: str) -> tuple[str, str]:
    """Return device and replica of `GPU-uuid` or, if it is shared, `GPU-uuid::3`."""
    device, _, replica = device_id.partition("::")
    return device[:_DEVICE_CHARACTERS_MAX], replica[:16]


def list_allocations(path: Path, seconds_max: float = ANSWER_SECONDS_MAX) -> list[Allocation]:
    """Return the GPU allocations within *seconds_max*.

    Raises KubeletError if the call fails, OSError if the socket is absent or may not be opened.
    """
    os.stat(path)
    # Imported late: it loads h2, which samplers without kubelet should not load.
    from ..transport.unary_call import CallFailed, call

    try:
        return parse_allocations(call(path, LIST_METHOD, b"", seconds_max))
    except CallFailed as error:
        raise KubeletError(f"{error.status}: {error}") from None
