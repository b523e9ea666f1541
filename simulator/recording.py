"""Flight recorder of a simulated host: ten samples a second, derived from the model's values of each second.

Within a second the states follow one another by their shares. Power, SM activity and tensor activity keep their mean of
that second; PCIe and NVLink traffic is uniform. The file says that it is simulated.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence

import numpy as np

from ..agent.transport.recording_uploads import RecordingUpload, RecordingUploads
from ..contract.block import Block
from ..contract.recording import SECONDS_MAX, GpuRecording, RecordingError, encode_recording
from ..contract.signals import index_of
from ..contract.wire.telemetry_pb2 import IngestAck, RecordingRequest, RegisterNodeResponse
from ..ext.phases import HISTORY_SIGNALS, STATES
from .noise import Floats

SECOND_NS, PERIOD_NS = 1_000_000_000, 100_000_000
SAMPLES_PER_SECOND = SECOND_NS // PERIOD_NS
_MEANS = (
    "power_mean_watts",
    "sm_active_ratio",
    "tensor_active_ratio",
    "memory_bandwidth_ratio",
    "pcie_transmitted_bytes_per_second",
    "pcie_received_bytes_per_second",
    "nvlink_transmitted_bytes_per_second",
    "nvlink_received_bytes_per_second",
    "sm_clock_mean_hertz",
)
_SHARES = tuple(f"{state}_ratio" for state in STATES)
_FAST = [index_of(f"gpu_fast.{name}") for name in (*_MEANS, *_SHARES)]
_STEP = index_of("gpu_fast.step_seconds")
#: Power outside computing, over the power of computing; and the deviation of the noise of a sample.
WAIT_POWER_RATIO, NOISE_RATIO = 0.6, 0.01
REQUESTS_MAX = 8


class SimulatedRecorder:
    """Recorder of one host: seconds in, recordings out. `on_response` is thread-safe, all else is for one thread."""

    def __init__(self, host: str, boot_id: bytes, uploads: RecordingUploads) -> None:
        self._host, self._boot_id, self._uploads = host, boot_id.hex(), uploads
        self._requests: deque[RecordingRequest] = deque(maxlen=REQUESTS_MAX)
        self._seconds: deque[tuple[int, Floats]] = deque(maxlen=SECONDS_MAX)
        self._devices: tuple[str, ...] = ()
        self._step_seconds = 1.0
        self._seen: deque[str] = deque(maxlen=REQUESTS_MAX)

    def on_response(self, message: RegisterNodeResponse | IngestAck) -> None:
        """Queue the aggregator's requests."""
        if isinstance(message, IngestAck):
            for request in message.recordings:
                if request.id not in self._seen:
                    self._seen.append(request.id)
                    self._requests.append(request)

    def update(self, boottime_ns: int, wall_ns: int, blocks: Sequence[Block]) -> None:
        """Store a second of the host, and answer the requests."""
        for block in blocks:
            if block.table == "gpu_fast_10s" and block.rows:
                step = _columns(block, [_STEP])
                known = step[np.isfinite(step) & (step > 0)]
                self._step_seconds = float(np.median(known)) if known.size else 1.0
            if block.table == "gpu_fast_1s" and block.rows:
                if block.devices != self._devices:
                    self._seconds.clear()
                    self._devices = tuple(block.devices)
                self._seconds.append((boottime_ns, _columns(block, _FAST)))
        while self._requests:
            self._uploads.add(self._answer(self._requests.popleft(), boottime_ns, wall_ns))

    def _answer(self, request: RecordingRequest, now_ns: int, wall_ns: int) -> RecordingUpload:
        if request.list:
            return RecordingUpload(request.id)
        if request.name:
            return RecordingUpload(request.id, error="a simulated host stores no recordings")
        try:
            recording = self.record(request.seconds, now_ns, wall_ns)
            return RecordingUpload(request.id, encode_recording(recording, level=1))
        except RecordingError as error:
            return RecordingUpload(request.id, error=str(error))

    def record(self, seconds: int, now_ns: int, wall_ns: int) -> GpuRecording:
        """Return the last *seconds* at 10 Hz. Raises RecordingError without samples."""
        if not 1 <= seconds <= SECONDS_MAX:
            raise RecordingError(f"{seconds} s: expected 1 to {SECONDS_MAX}")
        taken = [(at, cells) for at, cells in self._seconds if at > now_ns - seconds * SECOND_NS]
        if not taken:
            raise RecordingError("no second of this host was simulated in that time")
        values = np.concatenate(
            [self._samples(at, cells) for at, cells in taken], axis=2, dtype=np.float32
        )
        ends = np.array([at for at, _ in taken], np.int64)
        steps = np.arange(1 - SAMPLES_PER_SECOND, 1, dtype=np.int64) * PERIOD_NS
        times = np.maximum.accumulate((ends[:, None] + steps).ravel())
        first = int(np.searchsorted(times, now_ns - seconds * SECOND_NS))
        times, values = times[first:], values[:, :, first:]
        return GpuRecording(
            devices=self._devices,
            signals=HISTORY_SIGNALS,
            states=STATES,
            boottime_ns=int(times[0]),
            offsets_ns=array("q", (times - times[0]).tobytes()),
            values=array("f", values.tobytes()),
            host=self._host,
            boot_id=self._boot_id,
            reason="requested",
            wall_time_ns=max(0, wall_ns - now_ns + int(times[0])),
            simulated=True,
        )

    def _samples(self, end_ns: int, cells: Floats) -> Floats:
        """Return GPUs x HISTORY_SIGNALS x samples of the second that ends at *end_ns*."""
        watts, sm_active, tensor, bandwidth, *moved, clock = cells[: len(_MEANS)]
        shares = np.nan_to_num(cells[len(_MEANS) :])
        shares = shares / np.maximum(shares.sum(axis=0), 1e-9)
        edges = np.cumsum(shares, axis=0)
        times = end_ns + np.arange(1 - SAMPLES_PER_SECOND, 1) * PERIOD_NS
        phase = times / 1e9 % self._step_seconds / self._step_seconds
        state = np.minimum(
            (phase[None, None, :] >= edges[:, :, None]).sum(axis=0), len(STATES) - 1
        )  # GPUs x samples
        computes = state == 0
        share = np.maximum(shares[0], 0.05)[:, None]
        high = watts[:, None] / (share + WAIT_POWER_RATIO * (1 - share))
        power = np.where(computes, high, WAIT_POWER_RATIO * high)
        random = np.random.default_rng(end_ns // SECOND_NS)
        power = power * (1 + NOISE_RATIO * random.standard_normal(power.shape))
        flat = np.ones(SAMPLES_PER_SECOND)
        active = np.where(computes, np.minimum(sm_active[:, None] / share, 1.0), 0.0)
        return np.stack(
            [
                power,
                np.where(state < len(STATES) - 1, 1.0, 0.0),
                active,
                np.where(computes, np.minimum(tensor[:, None] / share, 1.0), 0.0),
                bandwidth[:, None] * flat,
                (moved[0] + moved[1])[:, None] * flat,
                (moved[2] + moved[3])[:, None] * flat,
                clock[:, None] * flat,
                state.astype(float),
            ],
            axis=1,
        )


def _columns(block: Block, indexes: Sequence[int]) -> Floats:
    """Return columns x rows of a block, NaN where missing."""
    shape = len(block.signal_ids), block.rows
    cells = np.frombuffer(bytes(block.cells), np.float64).reshape(shape)[indexes]
    valid = np.frombuffer(bytes(block.valid), np.uint8).reshape(shape)[indexes]
    return np.where(valid != 0, cells, np.nan)
