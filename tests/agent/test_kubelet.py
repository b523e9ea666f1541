"""kubelet's allocations: a real gRPC server on a real socket, and other servers."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.collector import CollectOutcome, CollectResult, run_collector
from gangline.agent.collectors.change_events import REPEAT_NS, RESYNC_NAME
from gangline.agent.collectors.kubelet import KubeletAllocations
from gangline.agent.events import EventPublisher
from gangline.agent.hardware import kubelet
from gangline.agent.hardware.files import Roots
from gangline.agent.hardware.kubelet import (
    ALLOCATIONS_MAX,
    KUBELET_SOCKET,
    LIST_METHOD,
    Allocation,
    KubeletError,
    parse_allocations,
)
from gangline.agent.transport.unary_call import CallFailed, UnaryCall
from gangline.contract.wire.podresources_pb2 import (
    ContainerDevices,
    ContainerResources,
    ListPodResourcesResponse,
    PodResources,
)
from gangline.contract.wire.telemetry_pb2 import HealthEvent
from tests.agent.fakes import HandedClock, read
from tests.agent.jobs_host import SECOND
from tests.agent.memory_server import HEAD, OK, Server, framed

GPU = "GPU-00000000-0000-0000-0000-000000000000"
MIG = "MIG-00000000-0001-0009-0000-000000000000"
#: Only a guard.
GUARD_SECONDS = 20.0

Answer = Callable[[], ListPodResourcesResponse]


def pod(name: str, *devices: str, resource: str = "nvidia.com/gpu") -> PodResources:
    held = ContainerDevices(resource_name=resource, device_ids=devices)
    container = ContainerResources(name="main", devices=[held])
    return PodResources(name=name, namespace="ml", containers=[container])


def answer_of(*pods: PodResources) -> ListPodResourcesResponse:
    return ListPodResourcesResponse(pod_resources=pods)


class Kubelet:
    """A server by gRPC's own library, like kubelet's Go server."""

    def __init__(self, path: Path) -> None:
        self.answer: Answer = answer_of
        self._server = grpc.server(ThreadPoolExecutor(1))
        handler: Any = grpc.unary_unary_rpc_method_handler(
            lambda request, context: self.answer(),
            response_serializer=ListPodResourcesResponse.SerializeToString,
        )
        service, _, method = LIST_METHOD.strip("/").partition("/")
        handlers = grpc.method_handlers_generic_handler(service, {method: handler})
        self._server.add_generic_rpc_handlers((handlers,))
        self._server.add_insecure_port(f"unix:{path}")
        self._server.start()

    def stop(self) -> None:
        self._server.stop(0).wait(GUARD_SECONDS)


@pytest.fixture
def path(short_path: Path) -> Path:
    result = short_path / KUBELET_SOCKET
    result.parent.mkdir(parents=True)
    return result


@pytest.fixture
def served(path: Path) -> Iterator[Kubelet]:
    server = Kubelet(path)
    yield server
    server.stop()


class KubeletHost:
    """A collector, its clock and its events."""

    def __init__(self, root: Path) -> None:
        (root / "proc").mkdir()
        self.clock = HandedClock()
        self.events: list[HealthEvent] = []
        self.anew: list[HealthEvent] = []
        self.collector_roots = Roots(sys=root / "sys", proc=root / "proc")
        self.collector = KubeletAllocations(
            self.collector_roots, self.clock, answer_seconds_max=GUARD_SECONDS
        )
        self.collector.start(EventPublisher(self.clock, self, lambda: None))

    def put(self, event: HealthEvent) -> None:
        copy = HealthEvent()
        copy.CopyFrom(event)
        (self.anew if event.name == RESYNC_NAME else self.events).append(copy)

    def told(self) -> list[HealthEvent]:
        result, self.events = self.events, []
        return result

    def turn(self) -> CollectResult:
        self.clock.now_ns += 10 * SECOND
        return run_collector(self.collector, self.clock)


@pytest.fixture
def host(short_path: Path) -> KubeletHost:
    return KubeletHost(short_path)


def test_who_holds_what_and_gives_it_back(host: KubeletHost, served: Kubelet) -> None:
    """Two GPUs were idle for a week: a pod held them without a process."""
    served.answer = lambda: answer_of(pod("trainer-0", GPU, MIG), pod("web"))
    result = host.turn()
    assert result.outcome is CollectOutcome.OK, result.message
    assert read(result.blocks)["host"] == {"containers_count": 1, "gpus_count": 2}
    reported = host.told()
    assert [(e.device, e.name, dict(e.attributes)) for e in reported] == [
        (device, "gpu.allocation", {
            "state": "held", "source": "kubelet", "namespace": "ml", "pod": "trainer-0",
            "container": "main", "resource": "nvidia.com/gpu",
        })
        for device in (GPU, MIG)
    ]  # fmt: skip
    host.turn()
    assert host.told() == []
    served.answer = lambda: answer_of(pod("trainer-0", MIG))
    host.turn()
    [back] = host.told()
    assert (back.device, back.attributes["state"]) == (GPU, "released")
    assert back.event_id == reported[0].event_id and back.revision > reported[0].revision
    assert back.message == "pod ml/trainer-0 container main has given back nvidia.com/gpu"


def test_after_a_restart_all_is_told_anew(host: KubeletHost, served: Kubelet) -> None:
    """A pod returned its GPU during an upgrade, and held it in the view for another hour."""
    served.answer = lambda: answer_of(pod("trainer-0", GPU))
    host.turn()
    host.turn()
    [anew] = host.anew
    last = max(e.last_boottime_ns for e in host.told())
    assert (anew.device, anew.attributes["what"]) == ("host", "gpu.allocation")
    assert anew.boottime_ns == last
    served.answer = answer_of
    other = KubeletAllocations(host.collector_roots, host.clock, answer_seconds_max=GUARD_SECONDS)
    other.start(EventPublisher(host.clock, host, lambda: None))
    host.collector = other
    host.turn()
    again = host.anew[-1]
    assert (again.event_id, host.told()) == (anew.event_id, [])
    assert again.boottime_ns > last and again.revision > anew.revision


@pytest.mark.slow
def test_a_line_that_is_full_is_waited_for_ever_longer(host: KubeletHost, path: Path) -> None:
    """kubelet hung; a Unix socket refuses at once, and was asked every 10 s forever."""
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as stack:
        listener.bind(str(path))
        listener.listen(0)
        for _ in range(2):
            other = stack.enter_context(socket.socket(socket.AF_UNIX))
            other.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                other.connect(str(path))
        result = host.turn()
        assert (result.outcome, result.message) == (
            CollectOutcome.ERROR,
            f"KubeletError: UNAVAILABLE: {path} accepts no more connections",
        )
        assert host.collector._last_error is not None


def test_it_is_told_again(host: KubeletHost, served: Kubelet) -> None:
    """The aggregator had a new disk and no older allocations."""
    served.answer = lambda: answer_of(pod("trainer-0", GPU))
    host.turn()
    host.clock.now_ns += REPEAT_NS
    host.turn()
    first, again = host.told()
    assert first.event_id == again.event_id and first.boottime_ns == again.boottime_ns


def test_a_shared_gpu_is_held_several_times(host: KubeletHost, served: Kubelet) -> None:
    """Time slicing: kubelet gives one GPU out as GPU-uuid::0 and ::1."""
    served.answer = lambda: answer_of(
        pod("a", f"{GPU}::0", resource="nvidia.com/gpu.shared"),
        pod("b", f"{GPU}::1", resource="nvidia.com/gpu.shared"),
    )
    result = host.turn()
    assert read(result.blocks)["host"] == {"containers_count": 2, "gpus_count": 1}
    reported = host.told()
    assert {(e.device, e.attributes["pod"], e.attributes["replica"]) for e in reported} == {
        (GPU, "a", "0"),
        (GPU, "b", "1"),
    }


def test_a_claimed_device_keeps_the_name_that_is_told() -> None:
    """Dynamic allocation reports `gpu-0`: taking it for the first GPU would be a guess."""
    message = ListPodResourcesResponse()
    container = message.pod_resources.add(name="p", namespace="ml").containers.add(name="main")
    claim = container.dynamic_resources.add(claim_name="c", claim_namespace="ml")
    claim.claim_resources.add(driver_name="gpu.nvidia.com", pool_name="n1", device_name="gpu-0")
    claim.claim_resources.add(driver_name="net.example", pool_name="n1", device_name="nic-0")
    expected = [Allocation("ml", "p", "main", "gpu.nvidia.com", "n1/gpu-0")]
    assert parse_allocations(message.SerializeToString()) == expected


def test_what_is_no_gpu_is_left_out() -> None:
    """A pod's huge pages and network cards are not reported."""
    message = answer_of(pod("p", "0000:9b:00.0", resource="mellanox.com/rdma"))
    assert parse_allocations(message.SerializeToString()) == []


def test_too_many_are_cut() -> None:
    """A device plugin that gives each GPU out ten thousand times must not fill the agent's memory."""
    message = answer_of(pod("p", *(f"{GPU}::{n}" for n in range(ALLOCATIONS_MAX + 5))))
    assert len(parse_allocations(message.SerializeToString())) == ALLOCATIONS_MAX


def test_a_large_answer_passes_the_windows(served: Kubelet, path: Path) -> None:
    """HTTP/2 stops after 65,535 bytes unless the reader extends the window."""
    many = [pod(f"p{n:05}-{'x' * 200}", f"{GPU}::{n}") for n in range(3000)]
    served.answer = lambda: answer_of(*many)
    assert len(kubelet.list_allocations(path, GUARD_SECONDS)) == 3000


def test_no_kubelet_is_no_data(host: KubeletHost) -> None:
    """Most hosts have no kubelet, which is not an error."""
    assert host.turn().outcome is CollectOutcome.NO_DATA


def test_a_socket_that_nobody_serves_is_no_data(host: KubeletHost, path: Path) -> None:
    """kubelet was stopped and left its socket behind."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert host.turn().outcome is CollectOutcome.NO_DATA


def test_a_kubelet_that_answers_with_a_status(host: KubeletHost, served: Kubelet) -> None:
    """The message of its refusal is an operator's first hint."""

    def fail() -> ListPodResourcesResponse:
        raise RuntimeError("devices manager not ready")

    served.answer = fail
    result = host.turn()
    assert (
        result.outcome is CollectOutcome.ERROR
        and "UNKNOWN: " in result.message
        and "not ready" in result.message
    )


def listening(path: Path, answer: Callable[[socket.socket], object]) -> threading.Thread:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(1)

    def serve() -> None:
        with server:
            connection, _ = server.accept()
            with connection:
                answer(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def test_a_kubelet_that_never_answers(path: Path) -> None:
    """kubelet hung on its disk; the sampler that called it must not hang with it."""
    done = threading.Event()
    thread = listening(path, lambda _: done.wait(GUARD_SECONDS))
    with pytest.raises(KubeletError, match=r"no answer within 0\.05 s"):
        kubelet.list_allocations(path, 0.05)
    done.set()
    thread.join(GUARD_SECONDS)


def test_a_kubelet_that_answers_drop_by_drop(path: Path) -> None:
    """Each byte came within the time-out, but never the whole answer."""
    done = threading.Event()

    def drip(connection: socket.socket) -> None:
        try:
            while not done.is_set():
                connection.sendall(b"\0\0\0\4\0\0\0\0\0")  # SETTINGS, empty, again and again
        except OSError:
            return

    thread = listening(path, drip)
    with pytest.raises(KubeletError):
        kubelet.list_allocations(path, 0.05)
    done.set()
    thread.join(GUARD_SECONDS)


def test_a_failing_kubelet_is_asked_ever_more_rarely(host: KubeletHost, path: Path) -> None:
    """Another server used the socket, and was asked every ten seconds for a year."""
    host.collector._seconds_max = 0.01
    asked: list[int] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(1)
        server.setblocking(False)
        for turn in range(1, 17):
            assert host.turn().outcome is CollectOutcome.ERROR
            with contextlib.suppress(BlockingIOError):
                server.accept()[0].close()
                asked.append(turn)
    assert asked == [1, 2, 4, 8, 16]


@pytest.mark.skipif(os.getuid() == 0, reason="root may open everything")
def test_a_closed_socket_is_blind(host: KubeletHost, served: Kubelet, path: Path) -> None:
    """The folder belongs to root."""
    path.chmod(0)
    assert host.turn().outcome is CollectOutcome.BLIND


@pytest.mark.parametrize("size", [3, 50_000])
def test_an_answer_before_a_goaway_in_the_same_read_counts(size: int) -> None:
    """A stopping server sends its answer and GOAWAY: the complete answer was dropped."""
    call, server = UnaryCall(LIST_METHOD, b"", 1.0), Server()
    call.answer(server.receive(call.data_to_send()))
    body = framed(bytes(size))
    parts = [body[index : index + 16_000] for index in range(0, len(body), 16_000)]
    data = server.answer(1, HEAD, *parts, OK)
    server.connection.close_connection()
    assert call.answer(data + server.connection.data_to_send()) == bytes(size)


@given(st.binary(max_size=400))
def test_no_bytes_break_the_call(data: bytes) -> None:
    call = UnaryCall(LIST_METHOD, b"", 1.0)
    call.data_to_send()
    try:
        assert call.answer(data) is None
    except CallFailed as error:
        assert str(error)


@given(st.binary(max_size=400))
def test_no_answer_breaks_the_parser(data: bytes) -> None:
    """A kubelet of another version."""
    try:
        assert all(isinstance(allocation, Allocation) for allocation in parse_allocations(data))
    except KubeletError as error:
        assert "ListPodResourcesResponse" in str(error)
