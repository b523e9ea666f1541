"""gangline.v1.AgentService: releases and resumes GPUs, and reports the agent's status.

Only the daemon's thread may do this work: each call goes through the callback queue and gets its
response later.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from ...contract.wire import agent_pb2 as pb
from ...contract.wire.nvhcd_pb2 import HealthCheckRequest, HealthCheckResponse
from ...contract.wire.telemetry_pb2 import HealthEvent
from ..clock import Clock
from ..events import EventPublisher
from ..gpu_release import RELEASE_SECONDS_DEFAULT, CallbackQueue, GpuReleaser, UnreleasedHandle
from ..hardware.nvidia import driver_gpu_uuid, driver_gpus
from ..release_state import REASON_CHARACTERS_MAX, RELEASE_SECONDS_MAX
from .grpc_session import CallRefused, DeferredResponse, Handler, Method, Peer

#: Limits of a request: characters in a GPU's name, and names in the request.
NAME_CHARACTERS_MAX = 64
NAMES_MAX = 64

#: sysfs `0000:9b:00.0`, nvidia-smi `00000000:9B:00.0`, the driver's lines `PCI:0000:9b:00`, lspci `9b:00.0`.
_ADDRESS = re.compile(
    r"(?:PCI:)?(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([01][0-9a-f])(?:\.([0-7]))?", re.IGNORECASE
)
_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)

SERVICE = "/gangline.v1.AgentService/"
RELEASE, RESUME, STATUS = f"{SERVICE}Release", f"{SERVICE}Resume", f"{SERVICE}GetStatus"
DIAGNOSTIC = f"{SERVICE}ReportDiagnostic"
#: Limits of a ReportDiagnostic request: outcome, attributes, characters per text.
DIAGNOSTIC_OUTCOME_MAX, DIAGNOSTIC_ATTRIBUTES_MAX, DIAGNOSTIC_CHARACTERS_MAX = 2, 16, 1024
#: Replaces the PCI address of a release of all GPUs together.
ALL_GPUS = "all"
#: The node health check of NVIDIA's resiliency extension (NVRx): its launcher calls it before each
#: rendezvous.
HEALTH_CHECK_PATH = "/nvhcd.HealthCheckService/RunHealthCheck"
ARGUMENTS_MAX = 64
log = logging.getLogger(__name__)


class NotAGpu(ValueError):
    """A name that identifies no GPU of this host; the message says which names do."""


def canonical_name(name: str) -> str:
    """Return the name as a PCI address of sysfs or a lower-case UUID. Raises NotAGpu."""
    name = name.strip()
    if match := _ADDRESS.fullmatch(name):
        domain, bus, device, function = match.groups()
        return f"{int(domain or '0', 16):04x}:{bus.lower()}:{device.lower()}.{function or 0}"
    if _UUID.fullmatch(name):
        return "GPU-" + name[4:].lower()
    shown = repr(name[:NAME_CHARACTERS_MAX])
    if name.isdigit():
        raise NotAGpu(
            f"{shown} is an index, which may change when a GPU is lost. Give a UUID or PCI "
            "address, as shown by nvidia-smi -L or lspci"
        )
    if name.upper().startswith("MIG-"):
        raise NotAGpu(f"{shown} is a MIG instance: name the GPU that it is part of")
    raise NotAGpu(f"{shown}: expected a UUID (GPU-...) or a PCI address (0000:9b:00.0)")


def known_gpus(proc: Path) -> dict[str, str]:
    """Return PCI address -> UUID ("" if unknown) of the driver's GPUs, without a driver call."""
    return {address: driver_gpu_uuid(proc, address) for address in driver_gpus(proc)}


def addresses_of(names: Sequence[str], known: Mapping[str, str]) -> frozenset[str]:
    """Return the PCI addresses of these GPUs. Raises NotAGpu for a GPU that is not in *known*.

    While *known* is empty (no driver is loaded), PCI addresses pass unchecked.
    """
    if len(names) > NAMES_MAX:
        raise NotAGpu(f"{len(names)} names, at most {NAMES_MAX}; no name means all GPUs")
    return frozenset(_address(canonical_name(name), known) for name in names)


def _address(name: str, known: Mapping[str, str]) -> str:
    if name in known or (not known and not name.startswith("GPU-")):
        return name
    for address, uuid in known.items():
        if uuid.lower() == name.lower():
            return address
    gpus = ", ".join(f"{address} {uuid}".strip() for address, uuid in known.items()) or "none"
    raise NotAGpu(f"{name}: this host has no such GPU; it has {gpus}")


Request = TypeVar("Request", bound=Message)


class AgentService:
    """Handlers of AgentService.

    *gpus* returns PCI address -> UUID at once, in any thread. *driver_mismatch* returns a text if
    NVML library and kernel driver have different versions, else "".
    """

    def __init__(
        self,
        releaser: GpuReleaser,
        callbacks: CallbackQueue,
        clock: Clock,
        gpus: Callable[[], Mapping[str, str]],
        driver_mismatch: Callable[[], str],
        version: str,
        publisher: EventPublisher | None = None,
        serials: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """*publisher* takes diagnostic events. *serials* returns serial number -> GPU UUID."""
        self._publisher, self._serials = publisher, serials
        self._releaser, self._callbacks, self._clock, self._gpus = releaser, callbacks, clock, gpus
        self._driver_mismatch, self._version = driver_mismatch, version

    def methods(self) -> Mapping[str, Method]:
        """Return method path -> Method, for the local server."""
        return {
            RELEASE: Method(self._handler(pb.ReleaseRequest, self._release), privileged=True),
            RESUME: Method(self._handler(pb.ResumeRequest, self._resume), privileged=True),
            STATUS: Method(self._handler(pb.GetStatusRequest, self._status)),
            DIAGNOSTIC: Method(
                self._handler(pb.ReportDiagnosticRequest, self._report_diagnostic), privileged=True
            ),
        }

    def _handler(
        self,
        kind: type[Request],
        prepare: Callable[[Request, Peer], Callable[[DeferredResponse], None]],
    ) -> Handler:
        """Return a handler: it checks the request at once; the daemon's thread does the work."""

        def handle(message: bytes, peer: Peer) -> DeferredResponse:
            try:
                work = prepare(kind.FromString(message), peer)
            except (DecodeError, ValueError) as error:
                raise CallRefused("INVALID_ARGUMENT", str(error)) from error
            deferred = DeferredResponse()
            if not self._callbacks.post(lambda: _run_work(work, deferred)):
                raise CallRefused("RESOURCE_EXHAUSTED", "too many calls wait for the agent")
            return deferred

        return handle

    def _devices(self, names: Sequence[str]) -> frozenset[str] | None:
        """Return the PCI addresses; None for all GPUs. Raises CallRefused."""
        try:
            return addresses_of(names, self._gpus()) if names else None
        except NotAGpu as error:
            raise CallRefused("INVALID_ARGUMENT", str(error)) from error

    def _release(
        self, request: pb.ReleaseRequest, peer: Peer
    ) -> Callable[[DeferredResponse], None]:
        seconds = request.seconds or RELEASE_SECONDS_DEFAULT
        if not (isfinite(seconds) and 0 < seconds <= RELEASE_SECONDS_MAX):
            raise ValueError(
                f"seconds {seconds:g}: expected more than 0, at most {RELEASE_SECONDS_MAX:g}"
            )
        devices = self._devices(request.gpus)
        why = "".join(c if c.isprintable() else " " for c in request.why[:REASON_CHARACTERS_MAX])
        why = why or f"asked by process {peer.process_id}"

        def work(deferred: DeferredResponse) -> None:
            def respond(open_handles: Sequence[UnreleasedHandle]) -> None:
                requested = {ALL_GPUS} if devices is None else devices
                released = [gpu for gpu in self._released() if gpu.pci_address in requested]
                answer = pb.ReleaseResponse(released=released or self._released())
                for handle in open_handles:
                    answer.holders.add(
                        pci_address=handle.address,
                        process_id=handle.process_id,
                        message=handle.detail,
                    )
                deferred.respond(answer.SerializeToString())

            self._releaser.release(devices, seconds, why, respond)

        return work

    def _resume(self, request: pb.ResumeRequest, peer: Peer) -> Callable[[DeferredResponse], None]:
        devices = self._devices(request.gpus)

        def work(deferred: DeferredResponse) -> None:
            if devices is not None and None in (
                release.address for release in self._releaser.released()
            ):
                message = "all GPUs were released together: resume without names reopens them"
                deferred.refuse("FAILED_PRECONDITION", message)
                return
            resumed = [address or ALL_GPUS for address in self._releaser.resume(devices)]
            deferred.respond(pb.ResumeResponse(resumed=resumed).SerializeToString())

        return work

    def _status(
        self, request: pb.GetStatusRequest, peer: Peer
    ) -> Callable[[DeferredResponse], None]:
        def work(deferred: DeferredResponse) -> None:
            mismatch, now_ns = self._driver_mismatch(), self._clock.boottime_ns()
            answer = pb.GetStatusResponse(
                version=self._version,
                process_id=os.getpid(),
                released=self._released(),
                driver_updating=bool(mismatch),
                driver_message=mismatch,
                abandoned_count=self._releaser.abandoned_count,
            )
            for state in self._releaser.unhealthy_devices():
                answer.devices.add(
                    device=state.device,
                    lane=state.group,
                    state=state.state.name.lower(),
                    call=state.call,
                    hung_seconds=state.hung_seconds,
                    abandoned_count=state.abandoned_count,
                    next_try_seconds=max(0.0, (state.next_try_ns - now_ns) / 1e9),
                )
            deferred.respond(answer.SerializeToString())

        return work

    def _report_diagnostic(
        self, request: pb.ReportDiagnosticRequest, peer: Peer
    ) -> Callable[[DeferredResponse], None]:
        del peer
        texts = [
            request.report_id,
            request.message,
            *request.attributes,
            *request.attributes.values(),
        ]
        if request.outcome > DIAGNOSTIC_OUTCOME_MAX:
            raise ValueError(f"outcome {request.outcome}: expected 0, 1 or 2")
        if (
            len(request.attributes) > DIAGNOSTIC_ATTRIBUTES_MAX
            or max(map(len, texts)) > DIAGNOSTIC_CHARACTERS_MAX
            or not request.report_id
        ):
            raise ValueError(
                f"expected a report_id, at most {DIAGNOSTIC_ATTRIBUTES_MAX} attributes and "
                f"{DIAGNOSTIC_CHARACTERS_MAX} characters in each text"
            )
        uuid = self._diagnosed_gpu(request)
        event = HealthEvent(
            event_id=f"gpu.diagnostic/{request.report_id}/{uuid}",
            device_kind="gpu",
            device=uuid,
            name="gpu.diagnostic",
            code=request.outcome,
            message=request.message,
            attributes=dict(request.attributes),
        )

        def work(deferred: DeferredResponse) -> None:
            if self._publisher is None:
                deferred.refuse("FAILED_PRECONDITION", "this agent publishes no events")
                return
            self._publisher.publish(event)
            deferred.respond(pb.ReportDiagnosticResponse(gpu=uuid).SerializeToString())

        return work

    def _diagnosed_gpu(self, request: pb.ReportDiagnosticRequest) -> str:
        """Return the GPU's UUID. Raises CallRefused for a GPU that this host does not have."""
        known = [uuid for uuid in self._gpus().values() if uuid]
        if request.gpu:
            if request.gpu in known:
                return request.gpu
            raise CallRefused(
                "NOT_FOUND",
                f"{request.gpu}: this host has no such GPU; it has {', '.join(known) or 'none'}",
            )
        serials = self._serials()
        if request.serial in serials:
            return serials[request.serial]
        raise CallRefused(
            "NOT_FOUND",
            f"no GPU of this host has the serial number {request.serial!r}; it has "
            f"{', '.join(sorted(serials)) or 'none that reports one'}",
        )

    def _released(self) -> list[pb.ReleasedGpu]:
        now_ns = self._clock.boottime_ns()
        return [
            pb.ReleasedGpu(
                pci_address=release.address or ALL_GPUS,
                seconds_left=max(0.0, (release.until_ns - now_ns) / 1e9),
                why=release.reason,
            )
            for release in self._releaser.released()
        ]


def _run_work(work: Callable[[DeferredResponse], None], deferred: DeferredResponse) -> None:
    """Run *work* unless its call is cancelled. An exception is answered and raised again."""
    if deferred.is_cancelled:
        return
    try:
        work(deferred)
    except Exception as error:
        deferred.refuse("INTERNAL", f"{type(error).__name__}: {error}")
        raise


class HealthCheckResult(Protocol):
    """Fields of the response.

    `output` is JSON with an integer `fail_count`: without this field some versions of the launcher
    take a host for unhealthy.
    """

    @property
    def success(self) -> bool: ...
    @property
    def exit_code(self) -> int: ...
    @property
    def output(self) -> str: ...
    @property
    def error(self) -> str: ...


class HealthyResult(NamedTuple):
    """The response while no finding is known."""

    success: bool = True
    exit_code: int = 0
    output: str = json.dumps({"fail_count": 0, "failed_checks": []})
    error: str = ""


def healthy_result(arguments: Sequence[str]) -> HealthCheckResult:
    return HealthyResult()


def health_check_method(run_check: Callable[[Sequence[str]], HealthCheckResult]) -> Method:
    """Return the Method of RunHealthCheck; it calls *run_check* in the server's thread.

    An exception of *run_check* is not the host's fault: the response is healthy and has the
    exception's text in `error`. The bytes of an unchanged result are reused.
    """
    cached: tuple[HealthCheckResult, bytes] | None = None

    def run(message: bytes, peer: Peer) -> bytes:
        nonlocal cached
        try:
            request = HealthCheckRequest.FromString(message)
        except DecodeError as error:
            raise CallRefused("INVALID_ARGUMENT", f"not a HealthCheckRequest: {error}") from error
        if len(request.args) > ARGUMENTS_MAX:
            raise CallRefused(
                "INVALID_ARGUMENT", f"{len(request.args)} args, at most {ARGUMENTS_MAX}"
            )
        try:
            result = run_check(request.args)
            if cached is None or cached[0] is not result:
                cached = result, _encode(result)
            return cached[1]
        except Exception as error:
            log.exception("the health check failed", extra={"cause": "local.health"})
            error_text = f"the agent cannot tell: {type(error).__name__}: {error}"
            return _encode(HealthyResult(error=error_text))

    return Method(run)


def _encode(result: HealthCheckResult) -> bytes:
    response = HealthCheckResponse(success=result.success, exit_code=result.exit_code)
    response.output, response.error = result.output, result.error
    return response.SerializeToString()
