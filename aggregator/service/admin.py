"""AdminService (maintenance of a running aggregator's store) and PermitService."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from ...contract.durable_file import CopyError
from ...contract.wire import admin_pb2, permit_pb2
from ...contract.wire.admin_pb2_grpc import AdminServiceServicer
from ...contract.wire.permit_pb2_grpc import PermitServiceServicer
from ...fingerprints.interference import InterferenceError
from ..errors import CAPACITY_RETRY_SECONDS, InsufficientData, ResourceExhausted, ServiceUnavailable
from ..hazard.events import EventsError
from ..hazard.models import ModelRegistry
from ..permits import Permits
from ..principal import Principal, current_principal
from ..runs.interference_models import InterferenceModels, TrainedInterferenceModel
from ..store.maintenance.compact import CompactionResult, compact
from ..store.maintenance.consistent_view import CheckpointHold, hold_checkpoints
from ..store.store import Store
from ..store.store_folder import StoreError
from .idempotency import IdempotencyCache

Trained = TypeVar("Trained")

#: Size of the journal's pieces, one per message.
PIECE_BYTES = 1 << 20
#: Interval of checks for incoming bytes during a backup, and for a compaction's progress.
POLL_SECONDS = 0.5


class AdminService(AdminServiceServicer):
    """Coroutines of grpc.aio. A `ServiceError` becomes its status in the interceptor."""

    def __init__(
        self,
        store: Store,
        hold_bytes_max: int,
        models: ModelRegistry,
        interference: InterferenceModels,
    ) -> None:
        """*hold_bytes_max*: a backup fails when this many bytes arrive while it copies."""
        self._store, self._hold_bytes_max = store, hold_bytes_max
        self._models, self._interference = models, interference
        self._compacting: asyncio.Future[CompactionResult] | None = None
        self._training: asyncio.Future[Any] | None = None

    async def HoldStore(self, request: admin_pb2.HoldStoreRequest, context: Any) -> None:
        """Hold the store until the caller disconnects.

        Raises ServiceUnavailable, ResourceExhausted.
        """
        hold = hold_checkpoints(self._store)
        entering = asyncio.get_running_loop().run_in_executor(None, hold.__enter__)
        try:
            held = await asyncio.shield(entering)
            await _send_hold(held, context)
            while held.grown_bytes() < self._hold_bytes_max:
                await asyncio.sleep(POLL_SECONDS)
        except StoreError as error:
            raise ServiceUnavailable(str(error)) from error
        finally:
            await asyncio.shield(_end(entering, hold))
        raise ResourceExhausted(
            f"{self._hold_bytes_max} bytes arrived while the store was copied, and a restart would "
            "have to read them all. Copy to a faster disk, or raise backup_wal_bytes_max",
            CAPACITY_RETRY_SECONDS,
        )

    async def CompactStore(self, request: admin_pb2.CompactStoreRequest, context: Any) -> None:
        """Compact the store. Raises ServiceUnavailable, ResourceExhausted."""
        if self._compacting is not None and not self._compacting.done():
            message = "the store is being compacted already; wait until that has ended"
            raise ResourceExhausted(message, CAPACITY_RETRY_SECONDS)
        stop = threading.Event()
        try:
            await self._compact(context, stop)
        finally:
            stop.set()

    async def TrainHazard(
        self, request: admin_pb2.TrainHazardRequest, context: Any
    ) -> admin_pb2.TrainedHazard:
        """Train a model. Raises InsufficientData, ResourceExhausted, ServiceUnavailable."""
        try:
            done = await self._trained(lambda: self._models.train(simulated=request.simulated))
        except EventsError as error:
            raise InsufficientData(str(error)) from error
        return admin_pb2.TrainedHazard(
            accepted=done.accepted, message=done.reason, model=done.model.to_text()
        )

    async def TrainInterference(
        self, request: admin_pb2.TrainInterferenceRequest, context: Any
    ) -> admin_pb2.TrainedInterference:
        """Train a model. Raises InsufficientData, ResourceExhausted, ServiceUnavailable."""
        try:
            done = await self._trained(self._interference.train)
        except InterferenceError as error:
            raise InsufficientData(str(error)) from error
        return trained_message(done)

    async def _trained(self, work: Callable[[], Trained]) -> Trained:
        """Run *work* in a thread, one training at a time. Raises ResourceExhausted, ServiceUnavailable."""
        if self._training is not None and not self._training.done():
            raise ResourceExhausted(
                "a model is already being trained. Wait until that ends", CAPACITY_RETRY_SECONDS
            )
        # Disconnecting does not end it: repeated requests would fill the thread pool.
        training = asyncio.get_running_loop().run_in_executor(None, work)
        self._training = training
        training.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await asyncio.shield(training)
        except StoreError as error:
            raise ServiceUnavailable(str(error)) from error

    async def _compact(self, context: Any, stop: threading.Event) -> None:
        so_far = admin_pb2.CompactedStore()

        def on_progress(rows: int, total: int) -> None:
            so_far.rows, so_far.rows_total = rows, total

        running = asyncio.get_running_loop().run_in_executor(
            None, compact, self._store, on_progress, stop.is_set
        )
        # It may outlast its caller, who can be cancelled again while it stops.
        self._compacting = running
        running.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            while not (await asyncio.wait([running], timeout=POLL_SECONDS))[0]:
                await context.write(so_far)
            done = await running
        except (CopyError, StoreError) as error:
            raise ServiceUnavailable(str(error)) from error
        except BaseException:  # the caller disconnected: wait, so that no second compaction runs
            stop.set()
            await asyncio.wait([running])
            raise
        result = admin_pb2.CompactedStore(
            rows=so_far.rows,
            rows_total=so_far.rows,
            done=True,
            bytes_before=done.bytes_before,
            bytes_after=done.bytes_after,
            stood_still_microseconds=done.paused_microseconds,
        )
        await context.write(result)


def trained_message(done: TrainedInterferenceModel) -> admin_pb2.TrainedInterference:
    """Return a training as a message."""
    return admin_pb2.TrainedInterference(
        accepted=done.accepted,
        message=done.reason,
        pairs=done.pairs,
        workloads=len(done.checked.model.keys),
        error_ratio=done.checked.error,
        physics_error_ratio=done.checked.physics_error,
    )


async def _end(
    entering: asyncio.Future[CheckpointHold], hold: AbstractContextManager[CheckpointHold]
) -> None:
    """End a hold, even if the caller did not wait for its start."""
    await asyncio.wait([entering])
    if entering.exception() is None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, hold.__exit__, None, None, None)


async def _send_hold(held: CheckpointHold, context: Any) -> None:
    for begin in range(0, len(held.journal), PIECE_BYTES):
        await context.write(admin_pb2.HeldStore(journal=held.journal[begin : begin + PIECE_BYTES]))
    for begin in range(0, len(held.answers), PIECE_BYTES):
        await context.write(admin_pb2.HeldStore(answers=held.answers[begin : begin + PIECE_BYTES]))
    file = admin_pb2.HeldFile(
        path=str(held.path.absolute()),
        inode=held.inode,
        iteration=held.iteration,
        wal_bytes=held.wal_bytes,
        wall_time_ns=held.wall_time_ns,
        stood_still_microseconds=held.paused_microseconds,
    )
    await context.write(admin_pb2.HeldStore(file=file))


class PermitService(PermitServiceServicer):
    """Coroutines of grpc.aio. A `ServiceError` becomes its status in the interceptor."""

    def __init__(self, permits: Permits) -> None:
        self._permits, self._idempotency_cache = permits, IdempotencyCache()

    async def GetPermit(
        self, request: permit_pb2.GetPermitRequest, context: Any
    ) -> permit_pb2.FleetPermit:
        """Return the permit, and whether it is withheld from hosts."""
        return self._permit_message()

    async def GrantPermit(self, request: permit_pb2.GrantPermitRequest, context: Any) -> bytes:
        """Grant a permit (roles: `principal.py`). Raises InvalidArgument, ServiceUnavailable."""
        seconds = request.seconds
        reason = reason_with_login(current_principal(context), request.reason)
        return await self._idempotency_cache.once(
            request,
            context,
            lambda: self._grant(seconds, reason),
            _already_durable,
            preview=lambda: self._preview(seconds, reason),
            current=self._permit_message,
        )

    def _grant(self, seconds: int, reason: str) -> permit_pb2.FleetPermit:
        try:
            self._permits.grant(seconds, reason)
        except OSError as error:
            raise ServiceUnavailable(f"the grant cannot be stored: {error.strerror}") from error
        return self._permit_message()

    def _preview(self, seconds: int, reason: str) -> permit_pb2.FleetPermit:
        self._permits.check(seconds, reason)
        withheld = self._permits.withheld_reason()
        return permit_pb2.FleetPermit(seconds_left=seconds, reason=reason, withheld_reason=withheld)

    async def RevokePermit(
        self, request: permit_pb2.RevokePermitRequest, context: Any
    ) -> permit_pb2.FleetPermit:
        """Revoke the permit at once. Raises ServiceUnavailable if a restart would restore it."""
        try:
            self._permits.revoke(reason_with_login(current_principal(context), request.reason))
        except OSError as error:
            raise ServiceUnavailable(
                f"it is revoked, but this cannot be stored: {error.strerror}. A restart of the "
                "aggregator would grant it again until it expires"
            ) from error
        return self._permit_message()

    def _permit_message(self) -> permit_pb2.FleetPermit:
        permits, seconds = self._permits, self._permits.seconds_left()
        return permit_pb2.FleetPermit(
            seconds_left=seconds,
            reason=permits.active_grant.reason,
            withheld_reason=permits.withheld_reason() if seconds else "",
            granted_wall_time_ns=permits.active_grant.granted_ns,
        )


async def _already_durable() -> None:
    """Return at once: a grant is on disk before it takes effect."""


def reason_with_login(who: Principal, reason: str) -> str:
    """Return *reason* with the caller's login, if verified: a name in the text proves nothing."""
    return f"{who.role} {who.name}: {reason}" if who.is_authenticated and reason else reason
