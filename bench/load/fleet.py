"""Frames of the hosts of a load: those of a simulated world, reused by many hosts with other names.

The world steps TEMPLATES hosts once a second, and the agent's framer makes their frames. A host of
the load copies a template, with names of the same length and a new checksum.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import dataclass

from gangline.agent.frame_builder import FrameBuilder, signal_dictionary
from gangline.contract.frame import decode
from gangline.contract.wire import telemetry_pb2 as wire
from gangline.simulator.runner import LiveWorld
from gangline.simulator.world import World

TEMPLATES = 60
GPUS = 8
#: Placeholder of a host's own name in a template's bytes.
_MARK = b"zq!HOST!"
_NAME = "load-" + _MARK.decode()
_RUN, _BOOT = b"zq!run-of-host!!", b"zq!boot-of-host!"
_STAMP = struct.Struct("<16s16sQQQ")
_STAMP_AT, _CRC_FROM, _PAYLOAD_AT = 16, 8, 72
SECOND_NS = 1_000_000_000
#: Uptime of the hosts when the load begins.
UPTIME_NS = 3600 * SECOND_NS


@dataclass(frozen=True, slots=True)
class HostMessage:
    """The message of one template in one second."""

    head: bytes
    payload: bytes
    rows: int
    gpu_rows: int


class HostIdentity:
    """A host of the load by its number: its names, and its frames from its template's."""

    __slots__ = ("boot_id", "mark", "run_id")

    def __init__(self, number: int, seed: int) -> None:
        self.mark = b"%08x" % number
        digest = hashlib.sha256(b"%d %d" % (seed, number)).digest()
        self.run_id, self.boot_id = digest[:16], digest[16:]

    def frame(self, message: HostMessage, sequence: int, boottime_ns: int, wall_ns: int) -> bytes:
        """Return the plain frame, byte for byte like the agent's framer."""
        stamp = _STAMP.pack(self.run_id, self.boot_id, sequence, boottime_ns, wall_ns)
        payload = message.payload.replace(_MARK, self.mark)
        rest = message.head[_CRC_FROM:_STAMP_AT] + stamp
        crc = zlib.crc32(payload, zlib.crc32(rest))
        return b"%b%b%b%b" % (message.head[:4], crc.to_bytes(4, "little"), rest, payload)

    def registration(self, template: bytes, boottime_ns: int, wall_ns: int) -> bytes:
        made = template.replace(_MARK, self.mark).replace(_RUN, self.run_id)
        clocks = wire.RegisterNodeRequest(boottime_ns=boottime_ns, wall_time_ns=wall_ns)
        return made.replace(_BOOT, self.boot_id) + clocks.SerializeToString()


class Model:
    """The templates, stepped once a second."""

    def __init__(self, seed: int, templates: int = TEMPLATES) -> None:
        self._world = LiveWorld(World("calm", seed, hosts=templates))
        self._framers = [FrameBuilder(bytes(16), bytes(16)) for _ in range(templates)]
        self._renamed: set[int] = set()
        self._second = 0
        names = self._world.names
        self.registrations = [self._registration(name) for name in names]

    def _registration(self, name: str) -> bytes:
        keys = self._marks(name)
        devices = [
            wire.Device(
                kind=device.kind,
                key=_marked(device.key, keys),
                attributes={k: _marked(v, keys) for k, v in device.attributes.items()},
            )
            for device in self._world.devices(name)
        ]
        return wire.RegisterNodeRequest(
            protocol_version=1, node=_NAME, run_id=_RUN, boot_id=_BOOT, agent_version="load",
            signals=signal_dictionary(), devices=devices, labels={"simulated": "true"}, simulated=True,
        ).SerializeToString()  # fmt: skip

    def _marks(self, name: str) -> dict[str, str]:
        """Return GPU UUID -> UUID with the host's mark, which differs only in its last digit."""
        uuids = [d.key for d in self._world.devices(name) if d.kind == "gpu"]
        return {
            u: f"GPU-{_MARK.decode()}-0000-4000-8000-{index:012d}" for index, u in enumerate(uuids)
        }

    def second(self) -> list[HostMessage]:
        """Advance by a second and return each template's message."""
        at, self._second = self._second, self._second + 1
        readings = self._world.step(1.0)
        messages: list[HostMessage] = []
        for number, (name, blocks, _) in enumerate(readings):
            keys = self._marks(name) if any(id(b) not in self._renamed for b in blocks) else {}
            for block in blocks:
                if id(block) not in self._renamed:  # the world returns the same blocks again
                    self._renamed.add(id(block))
                    block.devices = tuple(_marked(device, keys) for device in block.devices)
            boottime_ns = UPTIME_NS + (at + number) * SECOND_NS
            frame = self._framers[number].build(1, boottime_ns, SECOND_NS, blocks)
            tables = decode(frame).blocks
            rows = sum(block.rows for block in tables)
            gpu_rows = sum(block.rows for block in tables if block.table == "gpu_1s")
            messages.append(HostMessage(frame[:_PAYLOAD_AT], frame[_PAYLOAD_AT:], rows, gpu_rows))
        return messages


def _marked(text: str, keys: dict[str, str]) -> str:
    for uuid, mark in keys.items():
        text = text.replace(uuid, mark)
    return text
