"""gangline.v1.AgentService: releases and resumes GPUs, and reports the agent's status.

Only the daemon's thread may do this work, so each call goes through the callback queue and is answered later.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from ...contract.wire import agent_pb2 as pb
from ...contract.wire.nvhcd_pb2 import HealthCheckRequest, HealthCheckResponse
from ...contract.wire.telemetry_pb2 import HealthEvent
from ..clock import Clock
from ..config import SOCKET_NAME, run_folder_candidates
from ..events import EventPublisher
from ..gpu_release import (
    REASON_CHARACTERS_MAX,
    RELEASE_SECONDS_DEFAULT,
    RELEASE_SECONDS_MAX,
    CallbackQueue,
    GpuReleaser,
    ReleaseStateFile,
    UnreleasedHandle,
)
from ..hardware.nvidia import driver_gpu_uuid, driver_gpus
from ..hardware.proc_files import boot_id
from ..transport.grpc_http2 import CallFailed, NoListener, call
from .grpc_session import CallRefused, DeferredResponse, Handler, Method, Peer

# ----------------------------------------------------------------------
# GPUs as an operator names them: by UUID, or by PCI address in any spelling that tools show. Never
# by index.

#: Of one name, and of names in one request.
NAME_CHARACTERS_MAX = 64
NAMES_MAX = 64

#: sysfs `0000:9b:00.0`, nvidia-smi `00000000:9B:00.0`, the driver's lines `PCI:0000:9b:00`, lspci `9b:00.0`.
_ADDRESS = re.compile(
    r"(?:PCI:)?(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([01][0-9a-f])(?:\.([0-7]))?", re.IGNORECASE
)
_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


class NotAGpu(ValueError):
    """That names no GPU; the words say what would."""


def canonical_name(name: str) -> str:
    """Return a PCI address as sysfs writes it, or a UUID in its usual letters. Raises NotAGpu."""
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
    """Return PCI address -> UUID (empty when not known) of every GPU that the driver has, without entering it."""
    return {address: driver_gpu_uuid(proc, address) for address in driver_gpus(proc)}


def addresses_of(names: Sequence[str], known: Mapping[str, str]) -> frozenset[str]:
    """Return the PCI addresses of these GPUs. Raises NotAGpu for one that is not among the *known*.

    Where no GPU is known (there is no driver), addresses stand as they are.
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
    raise NotAGpu(f"{name}: this host has no such GPU; it has {_format_gpus(known.items())}")


def _format_gpus(gpus: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{address} {uuid}".strip() for address, uuid in gpus) or "none"


SERVICE = "/gangline.v1.AgentService/"
RELEASE, RESUME, STATUS = f"{SERVICE}Release", f"{SERVICE}Resume", f"{SERVICE}GetStatus"
DIAGNOSTIC = f"{SERVICE}ReportDiagnostic"
#: Of a diagnostic's report.
DIAGNOSTIC_OUTCOME_MAX, DIAGNOSTIC_ATTRIBUTES_MAX, DIAGNOSTIC_CHARACTERS_MAX = 2, 16, 1024
#: In place of a PCI address, where all GPUs were released together.
ALL_GPUS = "all"

Request = TypeVar("Request", bound=Message)


class AgentService:
    """The handlers. *gpus*: PCI address -> UUID, from any thread and at once. *driver_mismatch*: as text, that library and driver are of different versions; else empty."""

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
        """*publisher*: of the events of diagnostics. *serials*: serial number -> UUID of the GPUs, as *gpus* is."""
        self._publisher, self._serials = publisher, serials
        self._releaser, self._callbacks, self._clock, self._gpus = releaser, callbacks, clock, gpus
        self._driver_mismatch, self._version = driver_mismatch, version

    def methods(self) -> Mapping[str, Method]:
        """Return the rows of the server's table."""
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
        """Return a handler that reads and checks the request here, and has the rest done by the daemon's thread."""

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
        """Return PCI addresses; None for all. Raises CallRefused."""
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
                for each in open_handles:
                    answer.holders.add(
                        pci_address=each.address, process_id=each.process_id, words=each.detail
                    )
                deferred.respond(answer.SerializeToString())

            self._releaser.release(devices, seconds, why, respond)

        return work

    def _resume(self, request: pb.ResumeRequest, peer: Peer) -> Callable[[DeferredResponse], None]:
        devices = self._devices(request.gpus)

        def work(deferred: DeferredResponse) -> None:
            if devices is not None and None in (each.address for each in self._releaser.released()):
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
                driver_words=mismatch,
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
        """Return the UUID. Raises CallRefused for a GPU that this host does not have."""
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
                pci_address=each.address or ALL_GPUS,
                seconds_left=max(0.0, (each.until_ns - now_ns) / 1e9),
                why=each.reason,
            )
            for each in self._releaser.released()
        ]


def _run_work(work: Callable[[DeferredResponse], None], deferred: DeferredResponse) -> None:
    """Do it, unless nobody waits for it any more; whatever it raises is an answer."""
    if deferred.is_cancelled:
        return
    try:
        work(deferred)
    except Exception as error:
        deferred.refuse("INTERNAL", f"{type(error).__name__}: {error}")
        raise


# ----------------------------------------------------------------------
# The node health check of NVIDIA's resiliency extension: asked by its launcher before each
# rendezvous.

HEALTH_CHECK_PATH = "/nvhcd.HealthCheckService/RunHealthCheck"
ARGUMENTS_MAX = 64

log = logging.getLogger(__name__)


class HealthCheckResult(Protocol):
    """The response's fields. `output` is JSON with an integer `fail_count`: without one some of the launcher's
    versions take a host for unhealthy."""

    @property
    def success(self) -> bool: ...
    @property
    def exit_code(self) -> int: ...
    @property
    def output(self) -> str: ...
    @property
    def error(self) -> str: ...


class HealthyResult(NamedTuple):
    """What is answered while nobody can tell more."""

    success: bool = True
    exit_code: int = 0
    output: str = json.dumps({"fail_count": 0, "failed_checks": []})
    error: str = ""


def healthy_result(arguments: Sequence[str]) -> HealthCheckResult:
    """Return that all is well."""
    return HealthyResult()


def health_check_method(run_check: Callable[[Sequence[str]], HealthCheckResult]) -> Method:
    """Return the row of the server's table. *run_check* is called for each question, in the server's thread.

    What it raises is not the host's fault: the answer is healthy, with the words in `error`. The same answer as
    the time before is not made into bytes again.
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


# ----------------------------------------------------------------------
# Where the agent of this host answers, for the commands that ask it.

AgentAnswer = TypeVar("AgentAnswer", bound=Message)


def add_socket_options(parser: argparse.ArgumentParser) -> None:
    """Let an operator name another agent than the usual ones: by its run folder, or by the socket in it."""
    default_folders = " or ".join(map(str, run_folder_candidates()))
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--run-folder",
        dest="socket",
        type=_socket_path,
        metavar="FOLDER",
        help=f"where the agent answers (default {default_folders})",
    )
    group.add_argument(
        "--socket", type=Path, metavar="PATH", help=f"the same, by its socket: FOLDER/{SOCKET_NAME}"
    )


def _socket_path(folder: str) -> Path:
    if not folder:
        raise argparse.ArgumentTypeError("expected a folder, as the agent's setting run_folder")
    return Path(folder) / SOCKET_NAME


def sockets(option: Path | None) -> tuple[Path, ...]:
    """Return the paths to try, in order."""
    return (
        (option,) if option else tuple(folder / SOCKET_NAME for folder in run_folder_candidates())
    )


def release_file(option: Path | None) -> ReleaseStateFile | None:
    """Return where an agent that does not respond now (it begins, or was killed) will look what is released; None
    where there is no run folder, and so none that begins, or we may not write there."""
    for path in sockets(option):
        if os.access(path.parent, os.W_OK | os.X_OK):
            return ReleaseStateFile(path.parent, boot_id(Path("/proc")))
    return None


def call_agent(
    paths: Iterable[Path],
    method: str,
    request: Message,
    kind: type[AgentAnswer],
    seconds_max: float,
) -> AgentAnswer:
    """Return the answer of the first agent that is there. Raises NoListener naming all paths, and CallFailed."""
    failures: list[str] = []
    for path in paths:
        try:
            return kind.FromString(call(path, method, request.SerializeToString(), seconds_max))
        except NoListener as error:
            failures.append(str(error))
        except PermissionError:
            raise CallFailed("PERMISSION_DENIED", f"{path}: permission denied") from None
        except DecodeError as error:
            raise CallFailed("UNKNOWN", f"{path}: the answer cannot be read: {error}") from error
    raise NoListener(", ".join(failures))
