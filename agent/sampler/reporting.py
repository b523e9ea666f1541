"""What the samplers' supervision says in readings and events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ...fingerprints.block import Block
from ...fingerprints.catalogue import index_of
from ...fingerprints.wire import telemetry_pb2
from .actions import Tell
from .lanes import GPU
from .ward import DeviceState, State

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


def event_of(
    told: Tell, boottime_ns: int, key_of: Callable[[str], str]
) -> telemetry_pb2.HealthEvent:
    """Return the event of what the supervisor tells. *key_of*: the UUID of a GPU's PCI address, or that again."""
    kind, device = told.collector.rpartition("_")[0], told.device
    if told.lane == GPU:
        kind = "gpu" if device else "host"
        device = key_of(device) if device else "host"
    return telemetry_pb2.HealthEvent(
        device_kind=kind,
        device=device or told.collector,
        name=_EVENTS[told.what],
        code=int(told.seconds),
        message=told.words,
        boottime_ns=boottime_ns,
        attributes={
            "what": told.what,
            "lane": told.lane,
            "device": told.device,
            "collector": told.collector,
            "call": told.call,
            "seconds": f"{told.seconds:.1f}",
        },
    )


def row_of(state: DeviceState) -> str:
    """Return the name of its row in `probe_1s`: `gpu 0000:9b:00.0`; a driver as a whole is its lane's name."""
    return f"{state.lane} {state.device or state.collector}".strip()


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
        """Return both as of now; a row that is twice is shown as its worst. *released*: GPUs, or None for all."""
        all_states = [*map(_let_go, released), *states]
        if not all_states:
            return []
        rows = {row_of(e): e for e in sorted(all_states, key=lambda each: each.hung_seconds)}
        gpus = {
            key_of(each.device): each for each in rows.values() if each.lane == GPU and each.device
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


def _let_go(device: str | None) -> DeviceState:
    return DeviceState(GPU, device or "", "", State.RELEASED, "", 0.0, 0, 0, "")


def _with_rows(block: Block, names: Sequence[str]) -> Block:
    return block if block.devices == tuple(names) else Block(block.table, names)
