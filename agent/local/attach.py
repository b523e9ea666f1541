"""Connects the local findings, socket and metrics to the daemon."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from ..clock import Clock
from ..config import SOCKET_NAME, AgentConfig
from ..events import EventPublisher
from ..gpu_release import CallbackQueue, GpuReleaser
from ..hardware.nvidia import driver_gpus, pci_gpus
from ..latest import LatestReadings
from ..registration import Registration, version
from ..release_state import ReleaseStateFile
from ..sampler.pool import SamplerPool
from . import agent_service, self_status
from .agent_service import AgentService
from .grpc_session import Method
from .server import LocalServer

log = logging.getLogger(__name__)


def attach(
    config: AgentConfig,
    samplers: SamplerPool,
    clock: Clock,
    publisher: EventPublisher,
    stack: ExitStack,
    registration: Registration,
    release_file: ReleaseStateFile,
    health_check: Callable[[Sequence[str]], agent_service.HealthCheckResult],
    latest: LatestReadings,
) -> tuple[GpuReleaser, CallbackQueue]:
    """Open the agent's socket; return the releaser and the callback queue. *stack* closes them.

    The daemon's thread calls `GpuReleaser.tick` at each tick and whenever the callback queue's
    descriptor is readable. Call this after the samplers' fork server was forked: its children must
    not inherit the socket. If the socket cannot be opened, the log says so and the agent continues
    without it.
    """
    callbacks = CallbackQueue()
    stack.callback(callbacks.close)
    nodes = registration.nodes
    releaser = GpuReleaser(samplers, callbacks, clock, config.roots, publisher, release_file, nodes)
    publisher.observe(releaser.observe)
    service = AgentService(
        releaser,
        callbacks,
        clock,
        lambda: _known_gpus(config, registration),
        lambda: self_status.driver_mismatch(latest, config.proc_root, clock.boottime_ns()),
        version(),
        publisher,
        registration.gpu_serials,
    )
    _serve(
        config,
        {
            agent_service.HEALTH_CHECK_PATH: agent_service.health_check_method(health_check),
            **service.methods(),
        },
        stack,
    )
    releaser.apply_state_file()  # releases requested before the socket existed
    return releaser, callbacks


def _known_gpus(config: AgentConfig, registration: Registration) -> dict[str, str]:
    """Return PCI address -> UUID ("" if unknown) without a driver call, which may hang."""
    addresses = driver_gpus(config.proc_root) or pci_gpus(config.sys_root)
    known = {address: uuid for uuid, address in registration.gpus().items() if address}
    return dict.fromkeys(addresses, "") | known


def _serve(config: AgentConfig, methods: Mapping[str, Method], stack: ExitStack) -> None:
    try:
        server = LocalServer(config.run_path / SOCKET_NAME, methods)
    except OSError as error:
        log.warning("local requests are not answered: %s", error, extra={"cause": "local.socket"})
        return
    server.start()
    stack.callback(server.close)
