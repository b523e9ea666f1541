"""NICs, bonds and RDMA ports of host folders: names, widths, refusals, replacements."""

from __future__ import annotations

import errno
import os
import shutil
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.clock import SystemClock
from gangline.agent.collector import CollectOutcome, NoData, run_collector
from gangline.agent.collectors import net, rdma
from gangline.agent.collectors.link_details import LinkDetails
from gangline.agent.collectors.nic_statistics import NicStatistics
from gangline.agent.collectors.rdma import ALTERNATIVE_FILES, QUEUE_COUNTERS, is_counter
from gangline.agent.hardware import ethtool_netlink, network, nic_statistics
from gangline.agent.hardware.files import Roots
from gangline.agent.inventory import links
from gangline.contract.signal import Kind
from gangline.contract.signals import BY_NAME, TABLES
from tests.agent.test_netlink import attribute, fec_reply
from tests.hosts.reading import rows_of

Values = dict[str, float | int | None]

PFC = b"rx_prio3_pause"


def a_port(sys: Path, device: str = "mlx5_0", **files: str) -> Path:
    """Create a port with these files; `counters__link_downed` is counters/link_downed."""
    port = sys / "class/infiniband" / device / "ports/1"
    port.mkdir(parents=True, exist_ok=True)
    usual = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "link_layer": "InfiniBand"}
    usual["rate"] = "400 Gb/sec (4X NDR)"
    for name, text in (usual | files).items():
        place = port / name.replace("__", "/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text + "\n")
    return port


def read_port(roots: Roots, port: str = "mlx5_0/1") -> Values:
    values: Values = {}
    for make in (rdma.rdma_1s, rdma.rdma_10s):
        for block in make(roots).collect():
            values |= dict(rows_of(block))[port] or {}
    return values


def test_every_name_of_a_counter_is_a_signal_of_the_catalogue() -> None:
    """Only the first host of that vendor would reveal a misspelled name."""
    sources = set(rdma.FIELDS) | set(rdma.ALTERNATIVE_FIELDS)
    created = {"rdma.counter_epoch_count", "rdma.unnamed_counters_count"}
    assert sources | created == {name for name in BY_NAME if name.startswith("rdma.")} - {
        name for name, signal in BY_NAME.items() if signal.kind is Kind.EVENT
    }
    files = [file for names in ALTERNATIVE_FILES.values() for file in names]
    assert len(files) == len(set(files))
    picked = {signal for names in nic_statistics.SIGNALS_OF.values() for signal in names.values()}
    assert picked == {s.name for s in TABLES["nic_10s_changes"]}


def test_widths_are_those_of_the_kernel() -> None:
    """A full counter of 8 bits (255) is blind; declared wider, it would always look quiet."""
    widths = {
        "symbol_error": 16, "link_error_recovery": 8, "link_downed": 8, "port_rcv_errors": 16,
        "port_rcv_remote_physical_errors": 16, "port_rcv_switch_relay_errors": 16,
        "port_xmit_discards": 16, "port_xmit_constraint_errors": 8, "port_rcv_constraint_errors": 8,
        "local_link_integrity_errors": 4, "excessive_buffer_overrun_errors": 4, "VL15_dropped": 16,
        "port_xmit_wait": 32,
    }  # fmt: skip
    by_file = {source.file: BY_NAME[name] for name, source in rdma.FIELDS.items()}
    for file, width in widths.items():
        signal = by_file[f"counters/{file}"]
        assert (signal.width_bits, signal.sticks) == (width, True), file
    for file in ("out_of_buffer", "packet_seq_err", "rx_write_requests"):
        signal = by_file[f"hw_counters/{file}"]
        assert (signal.width_bits, signal.sticks) == (32, False), file
    assert by_file["hw_counters/np_cnp_sent"].width_bits == 64


def test_ports_of_other_vendors_speak_of_the_same_things(tmp_path: Path) -> None:
    """Broadcom, Intel and Amazon use other names: one signal, so that one rule finds it."""
    a_port(tmp_path, "bnxt_re0", hw_counters__seq_err_naks_rcvd="3", hw_counters__tx_cnp_pkts="4",
           hw_counters__active_qps="9", hw_counters__res_cq_load_err="5")  # fmt: skip
    port = a_port(tmp_path, "irdma0", hw_counters__cnpSent="6")
    (port / "hw_counters/Nak Sequence Error").write_text("7\n")
    a_port(tmp_path, "efa_0", link_layer="Ethernet", hw_counters__rx_bytes="1000",
           hw_counters__rx_drops="8", hw_counters__lifespan="12")  # fmt: skip
    device = tmp_path / "class/infiniband/efa_0/hw_counters"
    device.mkdir()
    (device / "cmds_err").write_text("2\n")
    (device / "submitted_cmds").write_text("99\n")
    roots = Roots(tmp_path, tmp_path)
    broadcom, intel, amazon = (read_port(roots, f"{d}/1") for d in ("bnxt_re0", "irdma0", "efa_0"))
    assert broadcom["packet_sequence_errors"] == 3
    assert broadcom["congestion_notifications_sent_packets"] == 4
    assert broadcom["responder_completion_queue_load_errors"] == 5
    assert broadcom["unnamed_counters_count"] == 0  # the number of queue pairs is not a counter
    assert (intel["packet_sequence_errors"], intel["unnamed_counters_count"]) == (7, 0)
    assert intel["congestion_notifications_sent_packets"] == 6
    assert (amazon["received_bytes"], amazon["receive_dropped_packets"]) == (1000, 8)
    assert (amazon["command_errors"], amazon["link_layer_code"]) == (2, 2)
    assert amazon["unnamed_counters_count"] == 1  # submitted_cmds


@pytest.mark.parametrize(
    ("device", "files", "signals"),
    [
        ("ionic_0", {
            "tx_rdma_ack_timeout": 2, "req_rx_pkt_seq_err": 3, "resp_rx_dup_request": 4, "req_tx_retry_excd_err": 1,
            "rx_rdma_ecn_pkts": 6, "tx_rdma_cnp_pkts": 8, "tx_rdma_ucast_bytes": 55,
        }, {
            "ack_timeout_errors": 2, "packet_sequence_errors": 3, "duplicate_requests_packets": 4,
            "transport_retries_exceeded_events": 1, "congestion_marked_packets": 6,
            "congestion_notifications_sent_packets": 8, "transmitted_bytes": 55,
        }),
        ("mana_0", {
            "requester_timeout": 45, "requester_oos_nak": 2, "responder_oos": 3, "requester_retries_exceeded": 5,
            "total_fatal_error": 6, "received_cnps": 7, "tx_pkt": 8, "current_rate": 100_000,
        }, {
            "ack_timeout_errors": 45, "packet_sequence_errors": 2, "out_of_sequence_packets": 3,
            "transport_retries_exceeded_events": 5, "unrecoverable_errors": 6,
            "congestion_notifications_handled_packets": 7, "transmitted_packets": 8,
        }),
        ("hns_0", {"rx_err_pkt": 2, "rx_cnp_pkt": 3, "tx_cnp_pkt": 4, "rx_pkt": 5}, {
            "receive_roce_errors": 2, "congestion_notifications_handled_packets": 3,
            "congestion_notifications_sent_packets": 4, "received_packets": 5,
        }),
        ("erdma_0", {"tx_bytes_cnt": 2, "rx_packets_cnt": 3, "rx_bps_limit_drop_cnt": 4}, {
            "transmitted_bytes": 2, "received_packets": 3, "receive_dropped_packets": 4,
        }),
    ],
)  # fmt: skip
def test_adapters_of_clouds_are_read_as_the_others(
    tmp_path: Path, device: str, files: dict[str, int], signals: dict[str, int]
) -> None:
    """AMD's Pollara has counters of retransmissions and timeouts; all seven were unnamed."""
    a_port(
        tmp_path, device, **{f"hw_counters__{name}": str(value) for name, value in files.items()}
    )
    values = read_port(Roots(tmp_path, tmp_path), f"{device}/1")
    assert {name: values[name] for name in signals} == signals
    assert values["unnamed_counters_count"] == 0


def test_omni_path_counts_under_names_of_its_own(tmp_path: Path) -> None:
    """An hfi1 port retransmitted all day, and only its traffic was read."""
    ours = {"RcTimeOut": 1, "SeqNak": 2, "RcSeqNak": 3, "RnrNak": 4, "RdmaSeq": 5, "RcDupRew": 6,
            "PktDrop": 7, "RcResend": 8}  # fmt: skip
    device = {"RcvOverflow": 11, "RxICrcErr": 12, "DcUnctblErr": 13, "DcRcvFcn": 14, "DcRcvBcn": 15,
              "DcTotCrc": 16, "DcTxReplay": 17, "DcRxReplay": 18, "SDMAErrCt": 19}  # fmt: skip
    port = a_port(tmp_path, "hfi1_0", counters__link_downed="1",
                  **{f"hw_counters__{name}": str(value) for name, value in ours.items()})  # fmt: skip
    folder = port.parents[1] / "hw_counters"
    folder.mkdir()
    for name, value in device.items():
        (folder / name).write_text(f"{value}\n")
    result = read_port(Roots(tmp_path, tmp_path), "hfi1_0/1")
    of_port = (
        "ack_timeout_errors", "packet_sequence_errors", "out_of_sequence_packets",
        "receiver_not_ready_errors", "implied_nak_errors", "duplicate_requests_packets",
        "receive_dropped_packets", "retransmitted_packets",
    )  # fmt: skip
    of_device = (
        "out_of_buffer_packets", "receive_icrc_errors", "unrecoverable_errors",
        "congestion_marked_packets", "congestion_notifications_handled_packets",
        "link_crc_errors", "link_transmit_replays_count", "link_receive_replays_count",
    )  # fmt: skip
    assert [result[name] for name in of_port] == list(ours.values())
    assert [result[name] for name in of_device] == list(device.values())[:-1]
    assert result["unnamed_counters_count"] == 1  # SDMAErrCt


def test_a_counter_that_no_signal_stands_for_is_counted_and_named(tmp_path: Path) -> None:
    """A new firmware had an important counter, which was not read, without a message."""
    a_port(tmp_path, hw_counters__packet_seq_err="1", hw_counters__rx_new_trouble="5",
           hw_counters__lifespan="10", counters__odd_thing="1")  # fmt: skip
    assert read_port(Roots(tmp_path, tmp_path))["unnamed_counters_count"] == 2
    (device,) = links.rdma(Roots(tmp_path, tmp_path))
    assert device.attributes["unnamed_counters"] == "counters/odd_thing hw_counters/rx_new_trouble"
    assert [is_counter(name) for name in ("lifespan", "active_qps", "cnpSent")] == [
        False,
        False,
        True,
    ]
    assert set(QUEUE_COUNTERS.values()) <= set(BY_NAME)


def test_words_that_are_no_numbers_are_missing(tmp_path: Path) -> None:
    """`N/A (no PMA)` was read as zero errors; all ones as four times four billion bytes."""
    a_port(tmp_path, counters__symbol_error="N/A (no PMA)", counters__port_rcv_data="4294967295",
           counters__port_xmit_data="3", counters__link_downed="255", link_layer="Unknown")  # fmt: skip
    values = read_port(Roots(tmp_path, tmp_path))
    assert values["symbol_errors"] is None and values["received_bytes"] is None
    assert values["transmitted_bytes"] == 12
    # unchanged: the counter algebra treats it as saturated
    assert values["link_downed_events"] == 255
    assert values["link_layer_code"] is None


def test_a_restricted_port_is_blind_by_name_and_left_alone(tmp_path: Path) -> None:
    """Counters of a restricted function: each read put a line into the kernel log, 40 a second."""
    a_port(tmp_path, counters__link_downed="0", hw_counters__packet_seq_err="1")
    port = a_port(tmp_path, "mlx5_7", hw_counters__packet_seq_err="1")
    for name in ("link_downed", "symbol_error", "port_rcv_data"):
        (port / "counters" / name).mkdir(parents=True)  # a folder refuses to be read, like EPERM
    collector = rdma.rdma_1s(Roots(tmp_path, tmp_path))
    for _ in range(300):
        turn = run_collector(collector, SystemClock())
        assert turn.outcome is CollectOutcome.BLIND
        assert "mlx5_7/1 refuse counters (EISDIR)" in turn.message and "mlx5_0" not in turn.message
        assert "mlxprivhost" in turn.message or "physical function" in turn.message
        rows = dict(rows_of(turn.blocks[1]))
        assert rows["mlx5_7/1"] and rows["mlx5_7/1"]["packet_sequence_errors"] == 1
        assert rows["mlx5_0/1"] and rows["mlx5_0/1"]["link_downed_events"] == 0
    assert collector._files is not None and collector._files.read_errors < 15


@pytest.mark.parametrize(
    ("error", "said"),
    [(errno.EPERM, "restricted function"), (errno.EIO, "restricted function"),
     (errno.EACCES, "CAP_DAC_READ_SEARCH"), (errno.EOPNOTSUPP, None), (errno.ENOSYS, None)],
)  # fmt: skip
def test_what_would_open_a_port(error: int, said: str | None) -> None:
    """Only hidden counters mean blindness; a port without such counters hides nothing."""
    path = "/sys/class/infiniband/mlx5_2/ports/1/counters/symbol_error"
    other = path.replace("mlx5_2", "mlx5_10")
    message = rdma.access_error([(path, error), (other, error)])
    assert bool(message) == (said is not None)
    if said:
        assert message.startswith("mlx5_10/1, mlx5_2/1 refuse") and said in message
        assert len(message) <= 240


def test_a_port_that_was_made_again_starts_over(tmp_path: Path) -> None:
    """The driver was reloaded within a second: same name, counters from zero or from anywhere."""
    a_port(tmp_path, counters__port_rcv_data="1000")
    collector = rdma.rdma_1s(Roots(tmp_path, tmp_path))

    def epoch_and_bytes() -> tuple[object, object]:
        row = dict(rows_of(collector.collect()[0]))["mlx5_0/1"]
        assert row is not None
        return row["counter_epoch_count"], row["received_bytes"]

    assert [epoch_and_bytes() for _ in range(3)] == [(0, 4000)] * 3
    kept = tmp_path / "class/infiniband/mlx5_0"
    kept.rename(tmp_path / "held")  # so that the new folder cannot get the old one's inode
    a_port(tmp_path, counters__port_rcv_data="9000")
    assert [epoch_and_bytes() for _ in range(3)] == [(1, 36000)] * 3


def test_a_replaced_interface_is_told_in_the_same_block(tmp_path: Path) -> None:
    """Values of the new interface under the number of the old one would be subtracted."""
    folder = tmp_path / "class/net/eth0"
    for name in ("device", "statistics"):
        (folder / name).mkdir(parents=True)
    for name, text in {"ifindex": "4", "operstate": "up", "statistics/rx_bytes": "5"}.items():
        (folder / name).write_text(text + "\n")
    row = dict(rows_of(net.net_1s(Roots(tmp_path, tmp_path)).collect()[0]))["eth0"]
    assert row is not None
    assert (row["counter_epoch_count"], row["operational_state"], row["received_bytes"]) == (
        4,
        6,
        5,
    )


def a_bond(sys: Path, **slaves: str) -> Path:
    folder = sys / "class/net/bond0/bonding"
    folder.mkdir(parents=True)
    (folder / "mode").write_text("active-backup 1\n")
    (folder / "mii_status").write_text("up\n")
    (folder / "slaves").write_text(" ".join(slaves) + "\n")
    (folder / "active_slave").write_text(next(iter(slaves), "") + "\n")
    for number, (name, status) in enumerate(slaves.items()):
        own = sys / "class/net" / name / "bonding_slave"
        own.mkdir(parents=True)
        (own.parent / "ifindex").write_text(f"{number + 2}\n")
        (own / "mii_status").write_text(status + "\n")
        (own / "link_failure_count").write_text("3\n")
    return folder


def test_a_bond_with_half_its_slaves(tmp_path: Path) -> None:
    """One of two ports of a RoCE bond was down for weeks: the bond was up, at half its rate."""
    a_bond(tmp_path, eth0="up", eth1="down", eth2="going back")
    collector = net.Bonds(Roots(tmp_path, tmp_path))
    row = dict(rows_of(collector.collect()[0]))["bond0"]
    assert row == {
        "slaves_count": 3.0, "slaves_up_count": 1.0, "link_state": 1, "active_slave_number": 2,
        "slave_failures_events": 9,
    }  # fmt: skip
    shutil.rmtree(tmp_path / "class/net/eth1")
    row = dict(rows_of(collector.collect()[0]))["bond0"]
    assert row and row["slaves_up_count"] is None and row["slave_failures_events"] is None
    shutil.rmtree(tmp_path / "class/net/bond0")
    with pytest.raises(NoData, match="no bond"):
        collector.collect()


@given(st.text(max_size=20))
def test_states_of_a_bond_are_those_of_its_driver(text: str) -> None:
    """A state of another driver is not `down`."""
    known = {"up": True, "going down": True, "down": False, "going back": False}
    assert network.parse_mii_status(text) is known.get(text)


@given(st.text(max_size=45))
def test_a_gid_is_whole_and_set(text: str) -> None:
    """Half a GID, all zeroes, digits of another script: no address."""
    gid = network.parse_gid(text)
    assert gid is None or (len(gid) == 39 and gid.isascii())


def test_gids_and_interfaces_of_a_roce_bond(tmp_path: Path) -> None:
    """mlx5_bond_0 has no interface below its PCI function: its GIDs name the bond."""
    port = a_port(tmp_path, "mlx5_bond_0", link_layer="Ethernet", lid="0x0")
    for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (port / folder).mkdir(parents=True)
    zero = "0000:0000:0000:0000:0000:0000:0000:0000"
    local = "fe80:0000:0000:0000:0000:0000:0000:0000"
    table = {0: "fe80:0000:0000:0000:0ac0:ebff:fe12:3456", 1: local, 2: zero, 3: "::1",
             10: "0000:0000:0000:0000:0000:ffff:0a00:0001"}  # fmt: skip
    for index, gid in table.items():
        (port / f"gids/{index}").write_text(gid + "\n")
    (port / "gids/odd").write_text(table[0])
    for index in (0, 10):
        (port / f"gid_attrs/types/{index}").write_text("RoCE v2\n")
        (port / f"gid_attrs/ndevs/{index}").write_text("bond0\n")
    (device,) = links.rdma(Roots(tmp_path, tmp_path))
    assert device.key == "mlx5_bond_0/1"
    assert device.attributes["interfaces"] == "bond0"
    assert device.attributes["gids"] == f"0={table[0]} RoCE v2 bond0, 10={table[10]} RoCE v2 bond0"
    assert device.attributes["gids_count"] == "2"
    assert device.attributes["link_layer"] == "Ethernet"


def test_bonds_and_vlans_in_the_inventory(tmp_path: Path) -> None:
    """The technician first asks which slave failed how often."""
    folder = a_bond(tmp_path, eth0="up", eth1="down")
    (folder.parent / "uevent").write_text("DEVTYPE=bond\n")
    (folder / "xmit_hash_policy").write_text("layer3+4 1\n")
    vlan = tmp_path / "class/net/bond0.100"
    vlan.mkdir()
    (vlan / "uevent").write_text("DEVTYPE=vlan\n")
    config = tmp_path / "proc/net/vlan/config"
    config.parent.mkdir(parents=True)
    config.write_text(
        "VLAN Dev name    | VLAN ID\nName-Type: VLAN_NAME_TYPE_RAW_PLUS_VID_NO_PAD\n"
        "bond0.100      | 100  | bond0\n"
    )
    result = {d.key: d.attributes for d in links.interfaces(Roots(tmp_path, tmp_path / "proc"))}
    assert set(result) == {"bond0", "bond0.100"}
    assert result["bond0"]["slaves"] == "eth0=up/3 eth1=down/3"
    assert (result["bond0"]["mode"], result["bond0"]["active_slave"]) == ("active-backup 1", "eth0")
    assert (result["bond0"]["state"], result["bond0"]["transmit_hash"]) == ("up", "layer3+4 1")
    assert (result["bond0.100"]["vlan"], result["bond0.100"]["below"]) == ("100", "bond0")


@given(st.binary(max_size=200))
def test_no_bytes_make_the_vlans_raise(data: bytes) -> None:
    """Names of any bytes, lines cut off: nothing, or a valid VLAN number."""
    for name, number, below in links.parse_vlans(data + b"\n a | 12 | b"):
        assert name.encode() and 0 <= number <= 9999
        below.encode()


@given(
    st.lists(st.sampled_from([PFC, b"rx_discards_phy", b"\xff\xfe", b"", b"tx_bytes"]), max_size=9)
)
def test_statistics_are_picked_by_name_and_never_in_doubt(names: list[bytes]) -> None:
    """Two statistics of one name, a name that is not text: the others are unaffected."""
    picked = nic_statistics.select_statistics(b"mlx5_core", names)
    for signal, place in picked.items():
        assert nic_statistics.SIGNALS_OF[b"mlx5_core"][names[place]] == signal
        assert names.count(names[place]) == 1
    assert ("nic.priority_3_received_pause_frames" in picked) == (names.count(PFC) == 1)
    assert nic_statistics.select_statistics(b"veth", names) == {}


class Statistics:
    """A driver with invented statistics; `values` by name, which may change between turns."""

    def __init__(self, driver: bytes, values: dict[bytes, int], refuses: int = 0) -> None:
        self.of, self.values, self.refuses = driver, values, refuses
        self.asked_names = 0

    def driver(self, interface: str) -> tuple[bytes, bytes, bytes, bytes]:
        return self.of, b"", b"", b""

    def names(self, interface: str) -> list[bytes]:
        self.asked_names += 1
        if self.refuses and interface == "eth1":
            raise OSError(self.refuses, os.strerror(self.refuses))
        return list(self.values)

    def read(self, interface: str, picks: array[int], values: array[int], expected: int) -> int:
        if len(self.values) == expected:
            values[:] = array("Q", [list(self.values.values())[place] for place in picks])
        return len(self.values)


def two_interfaces(folder: Path) -> dict[str, Path]:
    for name in ("eth0", "eth1"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "ifindex").write_text(f"{int(name[3]) + 2}\n")
    return {name: folder / name for name in ("eth0", "eth1")}


def test_pfc_of_a_port_and_a_neighbour_that_refuses(tmp_path: Path) -> None:
    """The names are read once, and again after a ring was added; EPERM is blind."""
    driver = Statistics(
        b"mlx5_core", {b"rx0_packets": 1, PFC: 5, b"tx_discards_phy": 7}, errno.EPERM
    )
    collector = NicStatistics(Roots(), lambda _: two_interfaces(tmp_path), lambda: driver)  # type: ignore[arg-type, return-value]
    turn = [run_collector(collector, SystemClock()) for _ in range(4)][-1]
    assert (turn.outcome, turn.message) == (
        CollectOutcome.BLIND, "eth1 refuse statistics: give the agent CAP_NET_ADMIN",
    )  # fmt: skip
    rows = dict(rows_of(turn.blocks[1]))
    assert rows["eth1"] is None and rows["eth0"] is not None
    assert rows["eth0"]["priority_3_received_pause_frames"] == 5
    assert rows["eth0"]["transmit_discards_packets"] == 7
    assert driver.asked_names == 1 + 4  # eth0 once, eth1 without success each turn
    driver.values = {b"rx0_packets": 1, b"rx1_packets": 2, PFC: 6, b"tx_discards_phy": 8}
    row = dict(rows_of(collector.collect()[1]))["eth0"]
    assert row and row["priority_3_received_pause_frames"] == 6
    assert dict(rows_of(collector.collect()[0]))["eth0"] == {
        "statistics_count": 4.0, "counter_epoch_count": 2,
    }  # fmt: skip


class Wire:
    """Answers requests of ethtool netlink with prepared replies; one interface is faulty."""

    def request(self, command: int, index: int, *, with_statistics: bool = False) -> bytes:
        if index == 3:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        assert with_statistics == (command in (ethtool_netlink.FEC_GET, ethtool_netlink.PAUSE_GET))
        lanes = b"".join(n.to_bytes(8, "little") for n in (90, 40, 50))
        return {
            ethtool_netlink.LINKSTATE_GET: attribute(2, b"\0") + attribute(5, b"\4"),
            ethtool_netlink.LINKMODES_GET: attribute(5, (400_000).to_bytes(4, "little")),
            ethtool_netlink.FEC_GET: fec_reply(50, lanes, bytes(8)),
            ethtool_netlink.PAUSE_GET: b"\1",
        }[command]


def test_the_wire_of_a_port_and_a_neighbour_that_cannot_say(tmp_path: Path) -> None:
    """FEC counts of all lanes, the reason of a missing link; a silent driver affects no other."""
    collector = LinkDetails(Roots(), lambda _: two_interfaces(tmp_path), lambda: Wire())  # type: ignore[arg-type, return-value]
    turn = run_collector(collector, SystemClock())
    assert (turn.outcome, turn.message) == (CollectOutcome.OK, "")
    state, counts = (dict(rows_of(block)) for block in turn.blocks)
    eth0, eth1, fec = state["eth0"], state["eth1"], counts["eth0"]
    assert eth0 and eth1 and fec and counts["eth1"] is None
    assert (eth0["down_reason_code"], eth0["fec_active_code"]) == (4, 50)
    assert eth0["speed_bytes_per_second"] == 5e10 and eth0["pause_receive_state"] is None
    assert (fec["fec_corrected_count"], fec["fec_uncorrectable_errors"]) == (90, 0)
    assert {name: v for name, v in eth1.items() if v is not None} == {"counter_epoch_count": 3}
