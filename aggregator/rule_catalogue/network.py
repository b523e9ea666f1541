"""Rules of the network: RDMA ports, interfaces, lost PCIe transactions, and congestion."""

from ..model import HealthState, Reason
from ..rule_declaration import Rule
from .faults import BY_FUNCTION

#: Counter -> its name in messages. Each counts packets sent or requested again; a lost packet may
#: count in several (a sequence error, a NAK, a packet out of order), so they are never added up.
RETRANSMISSIONS = {
    "ack_timeout_errors": "acknowledgement timeouts",
    "packet_sequence_errors": "sequence errors",
    "out_of_sequence_packets": "packets out of order",
    "implied_nak_errors": "implied NAKs",
    "adaptive_retransmissions_packets": "adaptive retransmissions",
}
TRAFFIC_COLUMNS = ("received_bytes", "transmitted_bytes")
TRAFFIC = tuple(f"rdma.{column}" for column in TRAFFIC_COLUMNS)
RETRANSMITS = Rule(
    "rdma.retransmits", HealthState.SUSPECT, Reason.FABRIC, "each of its retransmission counters rises more slowly for 60 s",
    enter_seconds=8.0, hazard_factor=10.0, shared="network",
    reads=("rdma.link_layer_code",), counts=(*TRAFFIC, *(f"rdma.{counter}" for counter in RETRANSMISSIONS)),
)
PORT_DOWN = BY_FUNCTION["rdma.down"]
PORT_FLAPS = Rule(
    "rdma.flaps", HealthState.SUSPECT, Reason.RAIL_DOWN, "the link stays up for 10 minutes",
    leave_seconds=300.0, hazard_factor=20.0, counts=("rdma.link_downed_events",),
)
LINK_DOWN = Rule(
    "net.down", HealthState.WATCH, Reason.RAIL_DOWN, "the interface has a carrier for 60 s",
    enter_seconds=5.0, hazard_factor=3.0, reads=("net.carrier_state",),
)
LOST, CORRECTED = ("aer_nonfatal_errors", "aer_fatal_errors"), "aer_correctable_errors"
AER_LOST = Rule(
    "pcie.aer_uncorrectable", HealthState.SUSPECT, Reason.PCIE, "no transaction is lost for 10 minutes",
    leave_seconds=300.0, hazard_factor=30.0, counts=tuple(f"pcie.{column}" for column in LOST),
)
AER_CORRECTED = Rule(
    "pcie.aer_correctable", HealthState.WATCH, Reason.PCIE, "fewer corrected link errors for 5 minutes",
    enter_seconds=10.0, leave_seconds=300.0, hazard_factor=2.0, counts=(f"pcie.{CORRECTED}",),
)
CONGESTED = Rule(
    "network.congestion", HealthState.WATCH, Reason.FABRIC,
    "its job transfers as much data as before, or its ports wait no more than before, for two or three minutes",
    counts=(*TRAFFIC, "rdma.transmit_wait_count", "rdma.congestion_notifications_handled_packets"),
)
