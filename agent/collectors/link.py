"""The wire of each interface, by ethtool netlink: signal, speed, FEC and pause.

It enters the driver under the kernel's network lock, and from there firmware.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from ...fingerprints.block import Block
from ...fingerprints.catalogue import BY_NAME, Pace
from ..entering import Spares, entering
from ..hardware import ethtool
from ..hardware.ethtool import EthtoolNetlink
from ..hardware.files import device_key
from ..hardware.network import interfaces_with_device
from ..hardware.roots import Roots
from ..turn import Blind, NoData
from .columns import clear_row, put
from .ethtool import FOLDER_WORDS, REFUSED, Interface, Interfaces, refused_words
from .net import ABSENT, Choose

_MEGABIT_BYTES = 125_000


class LinkDetails(Spares):
    """Signal, speed, FEC and pause of the wire: four questions an interface and turn."""

    name = "link_10s"
    pace = Pace.TEN_SECONDS
    enters_driver = True

    def __init__(
        self,
        roots: Roots,
        choose: Choose = interfaces_with_device,
        open_socket: Callable[[], EthtoolNetlink] = EthtoolNetlink,
    ) -> None:
        self._roots, self._open = roots, open_socket
        self._interfaces = Interfaces(roots, choose)
        self._netlink: EthtoolNetlink | None = None
        self._blocks = (Block("link_10s", ()), Block("link_10s_changes", ()))
        self.blind_words = ""

    def collect(self) -> Sequence[Block]:
        """Return both blocks. Raises NoData without an interface or a kernel that can say (Linux 5.6),
        Blind when netlink is refused."""
        if not self._roots.is_this_machine:
            raise NoData(FOLDER_WORDS)
        if self._interfaces.renew():
            keys = [device_key(interface.name) for interface in self._interfaces.now]
            self._blocks = Block("link_10s", keys), Block("link_10s_changes", keys)
        if not self._interfaces.now:
            raise NoData(ABSENT)
        source = self._netlink = self._netlink or self._opened()
        refused = [
            device_key(interface.name)
            for row, interface in enumerate(self._interfaces.now)
            if self._fill(source, row, interface)
        ]
        self.blind_words = refused_words("link details", refused)
        return self._blocks

    def _opened(self) -> EthtoolNetlink:
        try:
            return self._open()
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise NoData(
                    "this kernel has no ethtool netlink (Linux 5.6 and later have)"
                ) from error
            if error.errno in (*REFUSED, errno.EAFNOSUPPORT):
                raise Blind(
                    "generic netlink is refused; allow it: RestrictAddressFamilies=AF_NETLINK in the "
                    "agent's unit"
                ) from error
            raise

    def _fill(self, source: EthtoolNetlink, row: int, interface: Interface) -> bool:
        """Fill a row, each question by itself; return whether one was refused."""
        for block in self._blocks:
            clear_row(block, row)
        if self.is_spared(interface.name) or self._interfaces.is_asleep(interface):
            return False
        refused = False
        for words, command, with_statistics, values_of in _QUESTIONS:
            try:
                with entering(interface.name, words):
                    reply = source.ask(command, interface.index, with_statistics=with_statistics)
            except OSError as error:  # what it cannot say is missing, and costs nothing else
                if error.errno == errno.ENODEV:
                    return False
                refused |= error.errno in REFUSED
                continue
            for signal, value in values_of(reply).items():
                self._put(signal, row, value)
        self._put("link.counter_epoch_count", row, interface.index)
        return refused

    def _put(self, signal: str, row: int, value: float | None) -> None:
        put(self._blocks[BY_NAME[signal].on_change], signal, row, value)


_Values = dict[str, float | None]


def _of_state(reply: bytes) -> _Values:
    state = ethtool.parse_link_state(reply)
    return {
        "link.detected_state": state.detected,
        "link.signal_quality_number": state.quality,
        "link.signal_quality_max_number": state.quality_max,
        "link.down_reason_code": state.reason,
        "link.down_detail_code": state.detail,
        "link.external_down_events": state.external_downs,
    }


def _of_modes(reply: bytes) -> _Values:
    modes = ethtool.parse_link_modes(reply)
    speed = modes.speed_megabits
    return {
        "link.autonegotiation_state": modes.autonegotiation,
        "link.speed_bytes_per_second": None if speed is None else speed * _MEGABIT_BYTES,
        "link.duplex_state": modes.duplex,
        "link.width_lanes": modes.lanes,
    }


def _of_fec(reply: bytes) -> _Values:
    fec = ethtool.parse_fec(reply)
    return {
        "link.fec_automatic_state": fec.automatic,
        "link.fec_active_code": fec.active,
        "link.fec_corrected_count": fec.corrected,
        "link.fec_uncorrectable_errors": fec.uncorrectable,
        "link.fec_corrected_bits_count": fec.corrected_bits,
    }


def _of_pause(reply: bytes) -> _Values:
    pause = ethtool.parse_pause(reply)
    return {
        "link.pause_autonegotiation_state": pause.autonegotiation,
        "link.pause_receive_state": pause.receive,
        "link.pause_transmit_state": pause.transmit,
        "link.received_pause_frames": pause.received_frames,
        "link.transmitted_pause_frames": pause.transmitted_frames,
    }


#: What is asked in words and as a command, whether its counts are asked for too, and how the reply is read.
_QUESTIONS: tuple[tuple[str, int, bool, Callable[[bytes], _Values]], ...] = (
    ("ETHTOOL_MSG_LINKSTATE_GET", ethtool.LINKSTATE_GET, False, _of_state),
    ("ETHTOOL_MSG_LINKMODES_GET", ethtool.LINKMODES_GET, False, _of_modes),
    ("ETHTOOL_MSG_FEC_GET", ethtool.FEC_GET, True, _of_fec),
    ("ETHTOOL_MSG_PAUSE_GET", ethtool.PAUSE_GET, True, _of_pause),
)
