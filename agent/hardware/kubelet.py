"""What kubelet has given to which container: PodResources, over kubelet's Unix socket.

An allocation is no process: a pod may hold a GPU and do nothing with it, and a process may have come past kubelet.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from google.protobuf.message import DecodeError

#: Below the root of the host.
SOCKET = "var/lib/kubelet/pod-resources/kubelet.sock"
LIST = "/v1.PodResourcesLister/List"
#: kubelet's answer, all together: shorter than the time in which a sampler must return.
ANSWER_SECONDS_MAX = 0.5
#: Of an answer, no more is kept.
ALLOCATIONS_MAX = 4096
#: Resources whose devices are GPUs or parts of GPUs; and the driver of those that are claimed.
_RESOURCES, _DRIVER = "nvidia.com/", "gpu.nvidia.com"
_NAME_CHARACTERS_MAX = 253
_DEVICE_CHARACTERS_MAX = 90


class KubeletError(Exception):
    """kubelet did not answer, or not with what it should; the words say how."""


class Allocation(NamedTuple):
    """A device that a container holds. `replica`: of a GPU that kubelet deals out several times."""

    namespace: str
    pod: str
    container: str
    resource: str  # nvidia.com/gpu; the claim's driver under dynamic allocation
    device: str  # UUID; where kubelet does not say it, the name that it says
    replica: str = ""


def parse_allocations(message: bytes) -> list[Allocation]:
    """Return who holds which GPU. Raises KubeletError for what is no ListPodResourcesResponse."""
    from ...fingerprints.wire.podresources_pb2 import ListPodResourcesResponse

    try:
        answer = ListPodResourcesResponse.FromString(message)
    except DecodeError as error:
        raise KubeletError("the answer is no ListPodResourcesResponse") from error
    found: list[Allocation] = []
    for pod in answer.pod_resources:
        for container in pod.containers:
            who = (
                pod.namespace[:_NAME_CHARACTERS_MAX],
                pod.name[:_NAME_CHARACTERS_MAX],
                container.name[:_NAME_CHARACTERS_MAX],
            )
            for devices in container.devices:
                if devices.resource_name.startswith(_RESOURCES):
                    resource = devices.resource_name[:_NAME_CHARACTERS_MAX]
                    found += (Allocation(*who, resource, *_device(i)) for i in devices.device_ids)
            for claim in container.dynamic_resources:
                for one in claim.claim_resources:
                    if one.driver_name == _DRIVER:
                        name = f"{one.pool_name}/{one.device_name}"[:_DEVICE_CHARACTERS_MAX]
                        found.append(Allocation(*who, _DRIVER, name))
    return found[:ALLOCATIONS_MAX]


def _device(device_id: str) -> tuple[str, str]:
    """Return device and replica of `GPU-uuid` or, where it is shared, `GPU-uuid::3`."""
    device, _, replica = device_id.partition("::")
    return device[:_DEVICE_CHARACTERS_MAX], replica[:16]


def ask(path: Path, seconds_max: float = ANSWER_SECONDS_MAX) -> list[Allocation]:
    """Return who holds which GPU, within *seconds_max* in all. Raises KubeletError, and OSError when nobody listens
    there or we may not ask."""
    os.stat(path)
    # With it comes h2, which no sampler is to carry where there is no kubelet.
    from ..transport.unary import CallFailed, call

    try:
        return parse_allocations(call(path, LIST, b"", seconds_max))
    except CallFailed as error:
        raise KubeletError(f"{error.status}: {error}") from None
