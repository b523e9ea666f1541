"""Network interfaces with a device of their own. Device: the interface's name."""

from .signal import Kind, Pace, Signal

SIGNALS = (
    Signal(500, "net.carrier_state", Kind.STATE, Pace.SECOND, "class/net/*/carrier (no-data when down)", "1 with a link"),
    Signal(501, "net.carrier_changes_count", Kind.COUNTER, Pace.SECOND, "class/net/*/carrier_changes", "times the link came or went", width_bits=32, on_change=True),
    Signal(502, "net.speed_bytes_per_second", Kind.GAUGE, Pace.TEN_SECONDS, "class/net/*/speed (Mbit/s; no-data when -1)", "agreed rate"),
    Signal(503, "net.received_bytes", Kind.COUNTER, Pace.SECOND, "statistics/rx_bytes", "bytes received"),
    Signal(504, "net.transmitted_bytes", Kind.COUNTER, Pace.SECOND, "statistics/tx_bytes", "bytes sent"),
    Signal(505, "net.received_packets", Kind.COUNTER, Pace.SECOND, "statistics/rx_packets", "packets received"),
    Signal(506, "net.transmitted_packets", Kind.COUNTER, Pace.SECOND, "statistics/tx_packets", "packets sent"),
    Signal(507, "net.receive_errors", Kind.COUNTER, Pace.SECOND, "statistics/rx_errors", "packets received broken", on_change=True),
    Signal(508, "net.transmit_errors", Kind.COUNTER, Pace.SECOND, "statistics/tx_errors", "packets that could not be sent", on_change=True),
    Signal(509, "net.receive_dropped_packets", Kind.COUNTER, Pace.SECOND, "statistics/rx_dropped", "packets thrown away on arrival", on_change=True),
    Signal(510, "net.receive_crc_errors", Kind.COUNTER, Pace.SECOND, "statistics/rx_crc_errors", "bad checksum: a cable or a module", on_change=True),
    Signal(511, "net.mtu_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "class/net/*/mtu", "largest packet; one odd MTU in a fabric costs everyone"),
)
