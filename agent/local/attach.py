"""Wires what the agent answers on its host into the daemon."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from ..clock import Clock
from ..config import SOCKET, AgentConfig
from ..events import Teller
from ..gpu_release import Mailbox, NotInTheWay, ReleasedFile, Samplers
from ..hardware.nvidia import driver_gpus, pci_gpus
from ..latest import Latest
from ..registration import Registration, version
from . import agent_service, host_status
from .agent_service import AgentService
from .grpc_session import Method
from .server import Server

log = logging.getLogger(__name__)


def attach(
    config: AgentConfig,
    samplers: Samplers,
    clock: Clock,
    teller: Teller,
    stack: ExitStack,
    registration: Registration,
    released: ReleasedFile,
    answer: Callable[[Sequence[str]], agent_service.HealthAnswer],
    latest: Latest,
) -> tuple[NotInTheWay, Mailbox]:
    """Open the agent's socket, and return what the daemon's thread calls: `NotInTheWay.turn` at each tick and
    whenever the mailbox's descriptor can be read. *stack* closes what was opened.

    After the samplers' nursery was forked: its children are not to inherit the socket. *answer*: to the health check.
    A socket that cannot be had is said in the log; the agent goes on without it.
    """
    mailbox = Mailbox()
    stack.callback(mailbox.close)
    nodes = registration.nodes
    way = NotInTheWay(samplers, mailbox, clock, config.roots, teller, released, nodes)
    teller.observe(way.observe)
    service = AgentService(
        way,
        mailbox,
        clock,
        lambda: _known(config, registration),
        lambda: host_status.words(latest, config.proc_root, clock.boottime_ns()),
        version(),
    )
    _serve(config, {agent_service.PATH: agent_service.method(answer), **service.methods()}, stack)
    way.heed_the_file()  # of who asked before the socket was there
    return way, mailbox


def _known(config: AgentConfig, registration: Registration) -> dict[str, str]:
    """Return PCI address -> UUID (empty when not known) of the GPUs. The driver, which may hang, is not asked."""
    listed = driver_gpus(config.proc_root) or pci_gpus(config.sys_root)
    known = {address: uuid for uuid, address in registration.gpus().items() if address}
    return dict.fromkeys(listed, "") | known


def _serve(config: AgentConfig, methods: Mapping[str, Method], stack: ExitStack) -> None:
    try:
        server = Server(config.run_path / SOCKET, methods)
    except OSError as error:
        log.warning("no answers on this host: %s", error, extra={"cause": "local.socket"})
        return
    server.start()
    stack.callback(server.close)
