"""When each GPU was last seen to be reset in this boot, and which driver asks for nothing any more."""

from __future__ import annotations

from ...fingerprints.catalogue import BY_NAME
from ..latest import Readings

_EPOCH = BY_NAME["gpu.counter_epoch_count"]
_ENERGY = BY_NAME["gpu.energy_joules"]
_RECOVERY = BY_NAME["gpu.recovery_action_state"]
#: GPUs remembered; a host has sixteen at the most.
GPUS_MAX = 256


class Resets:
    """A GPU was reset when its counters began anew (`counter_epoch_count` rose) or its energy fell.

    The epoch goes on from one sampler to the next and begins at 0 with each agent, so that only a rise counts;
    energy is kept over a restart of the agent. Times are boot time.
    """

    #: Of all that is read of it here.
    table = _EPOCH.table
    decided_by = (_EPOCH.name,)

    def __init__(self) -> None:
        self.at_ns: dict[str, int] = {}
        self.energy_joules: dict[str, float] = {}
        #: GPU -> boot time of the last reading by which its driver asked for no recovery.
        self.asks_for_nothing_ns: dict[str, int] = {}
        self._epochs: dict[str, float] = {}
        self.closely = False  # something stands that a reset would end

    @property
    def restless(self) -> bool:
        """Whether readings are to be looked at whose epochs are as before."""
        return self.closely or not self.energy_joules

    def look(self, readings: Readings) -> bool:
        """Take new readings; say whether a GPU was reset."""
        before = dict(self.at_ns)
        for gpu, epoch in readings.values(_EPOCH.signal_id):
            if epoch > self._epochs.get(gpu, epoch):
                self._was_reset(gpu, readings.boottime_ns)
            self._epochs[gpu] = epoch
        if self.restless:
            self._look_closely(readings)
        return self.at_ns != before

    def _look_closely(self, readings: Readings) -> None:
        for gpu, energy in readings.values(_ENERGY.signal_id):
            if energy < self.energy_joules.get(gpu, energy):
                self._was_reset(gpu, readings.boottime_ns)
            if gpu in self.energy_joules or len(self.energy_joules) < GPUS_MAX:
                self.energy_joules[gpu] = energy
        self.asks_for_nothing_ns = {
            gpu: readings.boottime_ns
            for gpu, action in readings.values(_RECOVERY.signal_id)
            if action == 0
        }

    def _was_reset(self, gpu: str, at_ns: int) -> None:
        if gpu in self.at_ns or len(self.at_ns) < GPUS_MAX:
            self.at_ns[gpu] = at_ns

    def of(self, device: str) -> int:
        """Return the boot time of the last reset of a GPU, -1: none was seen.

        Of anything else, as an NVSwitch, the time by which all GPUs of the host were.
        """
        if device in self._epochs or device in self.at_ns:
            return self.at_ns.get(device, -1)
        return min((self.at_ns.get(gpu, -1) for gpu in self._epochs), default=-1)
