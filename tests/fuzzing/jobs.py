"""Owners of GPU processes: control groups, a process's files in /proc, kubelet's answers, the helper's answers."""

from __future__ import annotations

import os
import random

from h2.config import H2Configuration
from h2.connection import H2Connection

from gangline.agent.hardware import (
    job_ranks,
    job_ranks_child,
    kubelet,
    process_owner,
    process_state,
)
from gangline.agent.transport.unary_call import CallFailed, UnaryCall
from gangline.contract.wire.podresources_pb2 import ListPodResourcesResponse
from tests.fuzzing.damage import REFUSED, damaged, flipped, outcome, text

_ID = b"0123456789abcdef" * 4
_UID = b"12345678-1234-4321-aaaa-123456789abc"
CGROUPS = (
    b"12:devices:/slurm/uid_1000/job_123/step_0/task_0\n4:memory:/slurm/uid_1000/job_123\n1:name=systemd:/\n",
    b"0::/system.slice/gpu-17_slurmstepd.scope/job_123/step_0+1/user/task_0\n",
    b"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
    + _UID.replace(b"-", b"_")
    + b".slice/cri-containerd-"
    + _ID
    + b".scope\n",
    b"11:pids:/kubepods/besteffort/pod" + _UID + b"/" + _ID + b"\n",
    b"0::/../../kubepods-pod" + _UID.replace(b"-", b"_") + b".slice/crio-" + _ID + b".scope\n",
    b"0::/user.slice/user-1000.slice/session-3.scope\n",
    b"0::/system.slice/docker-" + _ID + b".scope\n",
)
STATUS = b"Name:\tpython3\nUid:\t1000\t0\t0\t0\nNSpid:\t4711\t17\nThreads:\t8\n"
STAT = b"7 (a) Z 1) Z 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 5000 0\n"
FOLDER = b"ml_trainer-0_" + _UID
ENVIRON = (
    b"PATH=/bin\0RANK=3\0WORLD_SIZE=16\0TOKEN=hunter2\0SLURM_JOB_GPUS=0,2-3\0LONG=" + b"x" * 2000
)
OUTPUT = b'{"pid": 7, "start": 9, "variables": {"RANK": "3"}}\n{"pid": 8, "start": 9, "refused": "it has ended"}\n'


def _answer() -> ListPodResourcesResponse:
    answer = ListPodResourcesResponse()
    container = answer.pod_resources.add(name="trainer-0", namespace="ml").containers.add(
        name="main"
    )
    container.devices.add(resource_name="nvidia.com/gpu", device_ids=["GPU-0::1", "MIG-1"])
    claim = container.dynamic_resources.add(claim_name="c", claim_namespace="ml")
    claim.claim_resources.add(driver_name="gpu.nvidia.com", pool_name="n1", device_name="gpu-0")
    return answer


ANSWER = _answer().SerializeToString()


def fuzz_cgroup(source: random.Random) -> str:
    """The owner of a process: short printable text, or nothing; a job only from a group that names it."""
    data = source.choice((damaged, flipped))(source.choice(CGROUPS), source)
    attributes = process_owner.parse_cgroup(data).attributes()
    assert all(value.isprintable() and len(value) <= 255 for value in attributes.values()), (
        attributes
    )
    if "job_id" in attributes:
        assert b"job_" + attributes["job_id"].encode() in data
    if "pod_uid" in attributes:
        assert attributes["pod_uid"].replace("-", "").encode() in data.replace(b"-", b"").replace(
            b"_", b""
        )
    return outcome(attributes)


def fuzz_process(source: random.Random) -> str:
    """Status and stat of a process, and the folder of a pod's logs."""
    user = process_state.parse_user_id(damaged(STATUS, source))
    inner = process_state.parse_namespace_pid(damaged(STATUS, source))
    assert all(number is None or 0 <= number < 2**34 for number in (user, inner))
    assert process_state.parse_ended(damaged(STAT, source)) in (True, False)
    pod = kubelet.parse_pod_log_folder(text(damaged(FOLDER, source)))
    assert pod is None or (pod[1].name and "_" not in pod[1].name + pod[1].namespace)
    return outcome(pod)


def fuzz_pod_resources(source: random.Random) -> str:
    """kubelet's answer: allocations within their limits, or KubeletError."""
    try:
        parsed = kubelet.parse_allocations(flipped(ANSWER, source))
    except kubelet.KubeletError:
        return REFUSED
    assert all(len(allocation.device) <= 90 and len(allocation.pod) <= 253 for allocation in parsed)
    return outcome(parsed)


def fuzz_kubelet_bytes(source: random.Random) -> str:
    """The peer at kubelet's socket: an answer, CallFailed, or nothing yet."""
    server = H2Connection(H2Configuration(client_side=False, header_encoding=None))
    call = UnaryCall(kubelet.LIST_METHOD, b"", 1.0)
    server.initiate_connection()
    server.receive_data(call.data_to_send())
    server.send_headers(1, [(":status", "200"), ("content-type", "application/grpc")])
    server.send_data(1, b"\0" + len(ANSWER).to_bytes(4, "big") + ANSWER)
    status = source.choice(("0", "0", "0", "14", "99", "x", ""))
    server.send_headers(1, [("grpc-status", status), ("grpc-message", "a%20b")], end_stream=True)
    data = server.data_to_send()
    data = source.choice((damaged, flipped, lambda data, _: data))(data, source)
    try:
        answer = call.answer(data[:40]) or call.answer(data[40:])
    except CallFailed as error:
        assert str(error), "no words"
        return REFUSED
    return outcome(answer)


def fuzz_environment(source: random.Random) -> str:
    """An environment: only listed variables, in their form, and never part of another variable."""
    data = damaged(ENVIRON, source)[:60_000]
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    try:
        parsed = job_ranks_child.variables_of(reading)
    finally:
        os.close(reading)
    assert all(job_ranks_child.NAMES[k.encode()].fullmatch(v.encode()) for k, v in parsed.items())
    return outcome(parsed)


def fuzz_rank_answers(source: random.Random) -> str:
    """The helper's lines, torn: answers about processes, or nothing."""
    parsed = job_ranks.parse_answers(damaged(OUTPUT, source))
    assert all(isinstance(answer.identity[0], int) for answer in parsed)
    return outcome(parsed)


TARGETS = {
    "cgroup": fuzz_cgroup,
    "gpu-process": fuzz_process,
    "pod-resources": fuzz_pod_resources,
    "kubelet-bytes": fuzz_kubelet_bytes,
    "environment": fuzz_environment,
    "rank-answers": fuzz_rank_answers,
}
