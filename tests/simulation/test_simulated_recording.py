"""The flight recorder of a simulated host: its samples agree with the readings of the same second."""

from __future__ import annotations

import numpy as np
import pytest

from gangline.agent.transport.recording_uploads import RecordingUploads
from gangline.contract.recording import decode_recording
from gangline.contract.wire.telemetry_pb2 import (
    IngestAck,
    RecordingRequest,
    UploadRecordingRequest,
)
from gangline.ext.phases import HISTORY_SIGNALS, STATES
from gangline.simulator.recording import SECOND_NS, SimulatedRecorder
from tests.simulation.readings import calm


def answered(seconds: int, **fields: object) -> tuple[UploadRecordingRequest, list[float]]:
    """Return the last piece of the answer after 60 simulated seconds, and the mean power of each."""
    live, uploads = calm(1, 1), RecordingUploads()
    recorder, watts = SimulatedRecorder("sim-000", b"b" * 16, uploads), list[float]()
    for second in range(1, 61):
        ((_, blocks, _),) = live.step(1.0)
        (fast,) = [block for block in blocks if block.table == "gpu_fast_1s"]
        column = [name for name, *_ in _columns()].index("power_mean_watts")
        watts.append(fast.floats[column * fast.rows])
        if second == 60:
            request = RecordingRequest(id="r", seconds=seconds, **fields)  # type: ignore[arg-type]
            recorder.on_response(IngestAck(recordings=[request, request]))
        recorder.update(second * SECOND_NS, 10**18 + second * SECOND_NS, blocks)
    whole = UploadRecordingRequest()
    while (piece := uploads.next_piece()) is not None:
        whole.error = piece.error
        whole.data += piece.data
        uploads.accept()
    return whole, watts


def _columns() -> list[tuple[str]]:
    from gangline.contract.signals import TABLES

    return [(signal.name.partition(".")[2],) for signal in TABLES["gpu_fast_1s"]]


def test_a_recording_agrees_with_its_seconds() -> None:
    """Eight GPUs at 10 Hz, marked as simulated; their mean power over a minute equals the readings' mean."""
    answer, watts = answered(60)
    decoded = decode_recording(answer.data)
    assert (len(decoded.devices), decoded.samples, decoded.simulated) == (8, 600, True)
    assert (decoded.signals, decoded.states) == (HISTORY_SIGNALS, STATES)
    assert decoded.wall_time_ns - decoded.boottime_ns == 10**18
    power = np.array(decoded.column(0, HISTORY_SIGNALS.index("power_watts")))
    assert power.mean() == pytest.approx(np.mean(watts), rel=0.1)
    state = np.array(decoded.column(0, HISTORY_SIGNALS.index("state")))
    active = np.array(decoded.column(0, HISTORY_SIGNALS.index("sm_active_ratio")))
    assert {0.0, 1.0} <= set(state) and active[state == 1.0].max() == 0.0
    assert power[state == 0.0].mean() > power[state == 1.0].mean()


def test_no_more_seconds_than_requested() -> None:
    """The last five of a minute."""
    decoded = decode_recording(answered(5)[0].data)
    assert 45 <= decoded.samples <= 51 and decoded.seconds <= 5.0


@pytest.mark.parametrize(
    ("seconds", "fields", "message"),
    [
        (0, {}, "expected 1 to 300"),
        (301, {}, "expected 1 to 300"),
        (0, {"name": "20260102T030405Z-0a1b2c3d"}, "stores no recordings"),
        (0, {"list": True}, ""),
    ],
)
def test_what_it_cannot_is_said(seconds: int, fields: dict[str, object], message: str) -> None:
    """A simulated host answers what a real one answers, or why not."""
    answer, _ = answered(seconds, **fields)
    assert message in answer.error and bool(message) == bool(answer.error)
