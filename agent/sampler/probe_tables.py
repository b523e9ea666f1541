"""Tables about samplers: their states and abandoned processes, and the late readings of slow devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ...contract.block import Block
from ...contract.signals import index_of
from ...contract.wire import telemetry_pb2
from .collector_groups import GPU
from .messages import ReportEvent, TimedResult
from .quarantine import DeviceState, QuarantineState

#: Readings of a slow device that are older than this are dropped when its lane's next block arrives.
AGE_NS_MAX = 2_000_000_000
TABLES_MAX = 256
#: Tables of the GPUs' lane in which DCGM fills cells.
BORROWED_TABLES = frozenset({"gpu_fast_1s"})

_HUNG = index_of("probe.hung_seconds")
_STATE = index_of("probe.state")
_ABANDONED = index_of("probe.abandoned_count")
_EVENTS = {
    "hung": "probe.hung",
    "slow": "probe.hung",
    "answers": "probe.answered",
    "driver_hung": "probe.driver_hung",
    "driver_answers": "probe.driver_answered",
}


class SlowDeviceCache:
    """Keeps tables of solo samplers until the lane's turn of the same table comes."""

    def __init__(self) -> None:
        self._stored: dict[str, list[tuple[int, Block]]] = {}

    def store(self, results: Sequence[TimedResult], now_ns: int) -> None:
        """Store the blocks of a solo round. The decoder refills a block in the sampler's next round at the earliest."""
        for block in (block for timed in results for block in timed.result.blocks):
            if len(self._stored) < TABLES_MAX:
                self._stored.setdefault(block.table, []).append((now_ns, block))

    def divert(self, results: Sequence[TimedResult], now_ns: int) -> list[TimedResult]:
        """Take the blocks of tables that another lane fills; return the turns without them."""
        remaining = list[TimedResult]()
        for timed in results:
            borrowed = [block for block in timed.result.blocks if block.table in BORROWED_TABLES]
            for block in borrowed:
                self._stored[block.table] = [(now_ns, block)]
            own = [block for block in timed.result.blocks if block.table not in BORROWED_TABLES]
            remaining.append(
                timed._replace(result=timed.result._replace(blocks=own)) if borrowed else timed
            )
        return remaining

    def apply(self, results: Sequence[TimedResult], now_ns: int) -> None:
        """Fill the missing cells of the lane's blocks, and drop the stored blocks that were used.

        A stored block without a common device waits for the next block of its table: the GPUs of another vendor have a
        block of their own.
        """
        for block in (
            (block for timed in results for block in timed.result.blocks) if self._stored else ()
        ):
            for at_ns, slow_block in self._stored.pop(block.table, ()):
                if now_ns - at_ns > AGE_NS_MAX:
                    continue
                if not _fill_missing(slow_block, block):
                    self._stored.setdefault(block.table, []).append((at_ns, slow_block))


def _fill_missing(slow_block: Block, block: Block) -> bool:
    """Fill the missing cells of *block*; return False if no device of *slow_block* has a row."""
    if slow_block.signal_ids != block.signal_ids:
        return True
    rows = {name: row for row, name in enumerate(block.devices)}
    pairs = [(row, rows[name]) for row, name in enumerate(slow_block.devices) if name in rows]
    for column in range(len(block.signal_ids)):
        for source_row, target_row in pairs:
            source = column * slow_block.rows + source_row
            target = column * block.rows + target_row
            if slow_block.valid[source] and not block.valid[target]:
                block.ints[target] = slow_block.ints[source]
                block.valid[target] = 1
    return bool(pairs)


def event_of(
    report: ReportEvent, boottime_ns: int, key_of: Callable[[str], str]
) -> telemetry_pb2.HealthEvent:
    """Return the event for a report. *key_of*: the UUID of a GPU's PCI address, or that address if unknown."""
    device_kind, device = report.collector.rpartition("_")[0], report.device
    if report.group == GPU:
        device_kind = "gpu" if device else "host"
        device = key_of(device) if device else "host"
    return telemetry_pb2.HealthEvent(
        device_kind=device_kind,
        device=device or report.collector,
        name=_EVENTS[report.kind],
        code=int(report.seconds),
        message=report.message,
        boottime_ns=boottime_ns,
        attributes={
            "what": report.kind,
            "lane": report.group,
            "device": report.device,
            "collector": report.collector,
            "call": report.call,
            "seconds": f"{report.seconds:.1f}",
        },
    )


def row_of(state: DeviceState) -> str:
    """Return the row's name in `probe_1s`: `gpu 0000:9b:00.0`; for a driver as a whole, group and collector."""
    return f"{state.group} {state.device or state.collector}".strip()


class ProbeTables:
    """Fills `probe_1s` and `gpu_1s_probe`. No rows, no block."""

    def __init__(self) -> None:
        self._probe = Block("probe_1s", ())
        self._gpu = Block("gpu_1s_probe", ())

    def blocks(
        self,
        states: Sequence[DeviceState],
        released: Iterable[str | None],
        key_of: Callable[[str], str],
    ) -> list[Block]:
        """Return the nonempty tables. If two states have the same row name, the longer hang is shown.

        *released*: addresses of released GPUs; None: all GPUs.
        """
        released_states = [
            DeviceState(
                group=GPU,
                device=device or "",
                collector="",
                state=QuarantineState.RELEASED,
                call="",
                hung_seconds=0.0,
                abandoned_count=0,
                next_try_ns=0,
                message="",
            )
            for device in released
        ]
        all_states = [*released_states, *states]
        if not all_states:
            return []
        rows = {
            row_of(state): state
            for state in sorted(all_states, key=lambda state: state.hung_seconds)
        }
        gpus = {
            key_of(state.device): state
            for state in rows.values()
            if state.group == GPU and state.device
        }
        self._probe = _with_rows(self._probe, list(rows))
        self._gpu = _with_rows(self._gpu, list(gpus))
        for row, state in enumerate(rows.values()):
            self._probe.put_float(_HUNG, row, state.hung_seconds)
            self._probe.put_int(_STATE, row, int(state.state))
            self._probe.put_int(_ABANDONED, row, state.abandoned_count)
        for row, state in enumerate(gpus.values()):
            self._gpu.put_float(0, row, state.hung_seconds)
        return [block for block in (self._probe, self._gpu) if block.rows]


def _with_rows(block: Block, names: Sequence[str]) -> Block:
    return block if block.devices == tuple(names) else Block(block.table, names)
