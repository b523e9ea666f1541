"""The wire of each interface, by ethtool netlink: signal, speed, FEC and pause."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from ...contract.block import Block
from ...contract.signal import Pace
from ...contract.signals import BY_NAME
from ..collector import AccessDenied, ExcludingCollector, NoData, driver_call
from ..hardware import ethtool_netlink
from ..hardware.ethtool_netlink import EthtoolNetlink
from ..hardware.files import Roots, device_key
from ..hardware.network import interfaces_with_device
from . import nic_statistics
from .block_writer import clear_row, put
from .net import _MEGABIT_BYTES


class LinkDetails(ExcludingCollector):
    """Signal, speed, FEC and pause of each link, by four ethtool netlink requests per turn.

    A request enters the driver, and possibly its firmware, under the kernel's network lock.
    """

    name = "link_10s"
    pace = Pace.TEN_SECONDS
    enters_driver = True

    def __init__(
        self,
        roots: Roots,
        list_interfaces: nic_statistics.InterfaceLister = interfaces_with_device,
        open_socket: Callable[[], EthtoolNetlink] = EthtoolNetlink,
    ) -> None:
        self._roots, self._open = roots, open_socket
        self._interfaces = nic_statistics.EthtoolInterfaces(roots, list_interfaces)
        self._netlink: EthtoolNetlink | None = None
        self._blocks = (Block("link_10s", ()), Block("link_10s_changes", ()))
        self.access_error = ""

    def collect(self) -> Sequence[Block]:
        """Return both blocks.

        Raises NoData without an interface or with a kernel before Linux 5.6, AccessDenied when
        netlink is refused.
        """
        if not self._roots.is_this_machine:
            raise NoData(nic_statistics.FOLDER_REASON)
        if self._interfaces.refresh():
            keys = [device_key(interface.name) for interface in self._interfaces.current]
            self._blocks = Block("link_10s", keys), Block("link_10s_changes", keys)
        if not self._interfaces.current:
            raise NoData(nic_statistics.NO_INTERFACE)
        source = self._netlink = self._netlink or self._open_netlink()
        refused = [
            device_key(interface.name)
            for row, interface in enumerate(self._interfaces.current)
            if self._fill(source, row, interface)
        ]
        self.access_error = nic_statistics.refusal_message("link details", refused)
        return self._blocks

    def _open_netlink(self) -> EthtoolNetlink:
        try:
            return self._open()
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise NoData(
                    "this kernel has no ethtool netlink (Linux 5.6 and later have)"
                ) from error
            if error.errno in (*nic_statistics.REFUSED, errno.EAFNOSUPPORT):
                raise AccessDenied(
                    "generic netlink is blocked; allow it: RestrictAddressFamilies=AF_NETLINK in "
                    "the agent's unit"
                ) from error
            raise

    def _fill(self, source: EthtoolNetlink, row: int, interface: nic_statistics.Interface) -> bool:
        """Fill a row, each request by itself; return whether a request was refused."""
        for block in self._blocks:
            clear_row(block, row)
        if self.is_excluded(interface.name) or self._interfaces.is_asleep(interface):
            return False
        refused = False
        for request_name, command, with_statistics, values_of in _REQUESTS:
            try:
                with driver_call(interface.name, request_name):
                    reply = source.request(
                        command, interface.index, with_statistics=with_statistics
                    )
            except OSError as error:  # its values are missing, others are not affected
                if error.errno == errno.ENODEV:
                    return False
                refused |= error.errno in nic_statistics.REFUSED
                continue
            for signal, value in values_of(reply).items():
                self._put(signal, row, value)
        self._put("link.counter_epoch_count", row, interface.index)
        return refused

    def _put(self, signal: str, row: int, value: float | None) -> None:
        put(self._blocks[BY_NAME[signal].on_change], signal, row, value)


_Values = dict[str, float | None]


def _of_state(reply: bytes) -> _Values:
    state = ethtool_netlink.parse_link_state(reply)
    return {
        "link.detected_state": state.detected,
        "link.signal_quality_number": state.quality,
        "link.signal_quality_max_number": state.quality_max,
        "link.down_reason_code": state.reason,
        "link.down_detail_code": state.detail,
        "link.external_down_events": state.external_downs,
    }


def _of_modes(reply: bytes) -> _Values:
    modes = ethtool_netlink.parse_link_modes(reply)
    speed = modes.speed_megabits
    return {
        "link.autonegotiation_state": modes.autonegotiation,
        "link.speed_bytes_per_second": None if speed is None else speed * _MEGABIT_BYTES,
        "link.duplex_state": modes.duplex,
        "link.width_lanes": modes.lanes,
    }


def _of_fec(reply: bytes) -> _Values:
    fec = ethtool_netlink.parse_fec(reply)
    return {
        "link.fec_automatic_state": fec.automatic,
        "link.fec_active_code": fec.active,
        "link.fec_corrected_count": fec.corrected,
        "link.fec_uncorrectable_errors": fec.uncorrectable,
        "link.fec_corrected_bits_count": fec.corrected_bits,
    }


def _of_pause(reply: bytes) -> _Values:
    pause = ethtool_netlink.parse_pause(reply)
    return {
        "link.pause_autonegotiation_state": pause.autonegotiation,
        "link.pause_receive_state": pause.receive,
        "link.pause_transmit_state": pause.transmit,
        "link.received_pause_frames": pause.received_frames,
        "link.transmitted_pause_frames": pause.transmitted_frames,
    }


#: Name of the request, its command, whether it requests counts, and the parser of the reply.
_REQUESTS: tuple[tuple[str, int, bool, Callable[[bytes], _Values]], ...] = (
    ("ETHTOOL_MSG_LINKSTATE_GET", ethtool_netlink.LINKSTATE_GET, False, _of_state),
    ("ETHTOOL_MSG_LINKMODES_GET", ethtool_netlink.LINKMODES_GET, False, _of_modes),
    ("ETHTOOL_MSG_FEC_GET", ethtool_netlink.FEC_GET, True, _of_fec),
    ("ETHTOOL_MSG_PAUSE_GET", ethtool_netlink.PAUSE_GET, True, _of_pause),
)
