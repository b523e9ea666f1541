"""Lines written without looking at the rules: faults that must alarm, and look-alikes that must
not.

Their forms come from the kernel's sources and from public reports of its drivers; names and
addresses are invented.
"""

from __future__ import annotations

import pytest

from gangline.agent.commands.xid import main
from gangline.agent.kernel_log.rules import classify
from gangline.agent.kernel_log.stuck_times import StuckTimes
from gangline.aggregator.model import HealthState
from gangline.aggregator.rule_catalogue.faults import EVENT_KINDS

#: A host with such a line is SUSPECT.
SUSPECT = (
    "watchdog: BUG: soft lockup - CPU#17 stuck for 134s! [kworker/u256:3:88123]",
    "watchdog: CPU12: Watchdog detected hard LOCKUP on cpu 13",
    "INFO: task python3:4711 blocked in I/O wait for more than 1208 seconds.",
    "nvme nvme2: Removing after probe failure status: -19",
    "nvme nvme2: Disabling device after reset failure: -19",
    "ata7.00: disable device",
    "sd 6:0:0:0: Device offlined - not ready after error recovery",
    "scsi 0:0:1:0: Device offlined - not ready after error recovery",
    "bnxt_en 0000:81:00.0 eth0: Error (timeout: 500015) msg {0x41 0x1b7} len:0",
    "bnxt_en 0000:81:00.0 eth0: Firmware reset aborted, bnxt_fw_reset_task, rc -110",
    "ionic 0000:b5:00.0: DEVCMD CMD_IDENTIFY (1) timeout after 10 secs",
    "ice 0000:31:00.0: Rebuild failed, unload and reload driver",
    "ice 0000:31:00.0 ens1f0: tx_timeout recovery unsuccessful, device is in unrecoverable state.",
    "mana 7870:00:00.0: HWC: Request timed out!",
    "mana 7870:00:00.0: Failed to establish HWC: -110",
    "hns3 0000:7d:00.0: reset failed because of reset command send failed",
    "efa 0000:00:1e.0: The device didn't send any completion for admin cmd ALLOC_PD (12) status 0 (ctx 0x6e2ddc6b, sq producer: 5)",
    "infiniband rdmap0s30: Wait for completion (polling) timeout",
    "mlx5_core 0000:5e:00.0: mlx5_health_try_recover:340:(pid 9): health recovery flow aborted, PCI reads still not working",
    "mlx5_core 0000:5e:00.0: wait_func:1195:(pid 4100): CREATE_MKEY(0x200) timeout. Will cause a leak of a command resource",
    "EDAC MC1: 1 UE memory read error on CPU_SrcID#1_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0x0 offset:0x0 grain:32)",
    "pcieport 0000:15:01.0: DPC: containment event, status:0x1f01 source:0x0000",
    "pcieport 0000:15:01.0: pciehp: Slot(21): Card not present",
)  # fmt: skip
#: Faults that end by themselves, or that others caused: the host is WATCH, not SUSPECT.
WATCH = (
    "watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [migration/0:15]",
    "rcu: INFO: rcu_sched self-detected stall on CPU",
    "INFO: task jbd2/vda1-8:412 blocked for more than 122 seconds.",
    "nvme nvme0: I/O tag 511 (11ff) opcode 0x1 (I/O Cmd) QID 7 timeout, completion polled",
    "nvme nvme1: Abort status: 0x0",
    "nvme nvme0: resetting controller",
    "nvme nvme2: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff",
    "ata3: hard resetting link",
    "ata1.00: exception Emask 0x10 SAct 0x0 SErr 0x4040000 action 0xe frozen",
    "sd 6:0:0:0: [sdc] tag#17 FAILED Result: hostbyte=DID_OK driverbyte=DRIVER_OK cmd_age=0s",
    "Lustre: 4087:0:(client.c:2289:ptlrpc_expire_one_request()) @@@ Request sent has timed out for slow reply: [sent 1699999999/real 1699999999]",
    "LustreError: 167-0: scratch-MDT0000-mdc-ffff8b: This client was evicted by scratch-MDT0000; in progress operations using this service will fail.",
    "LNet: 2711:0:(o2iblnd_cb.c:3455:kiblnd_check_conns()) Timed out tx for 10.0.0.8@o2ib: 4 seconds",
    "nfs: server nas1 not responding, still trying",
    "libceph: osd12 (1)10.0.0.4:6801 socket error on write",
    "mlx5_core 0000:5e:00.0: temp_warn:182:(pid 0): High temperature on sensors with bit set 0 1",
    "infiniband bnxt_re0: Couldn't create HW QP",
    "md/raid1:md0: Disk failure on nvme1n1p1, disabling device.",
    "XFS (nvme1n1p1): Filesystem has been shut down due to log error (0x2).",
)  # fmt: skip
#: Lines that become an event, which changes no state.
HARMLESS = (
    "pcieport 0000:00:1c.5: AER: Corrected error message received from 0000:03:00.0",
    "pcieport 0000:40:01.1: AER: Multiple Corrected error received: 0000:41:00.0",
    "bnxt_en 0000:81:00.0 eth0: NIC Link is Down",
    "mlx5_core 0000:5e:00.0 ens1f0np0: Link down",
    "ionic 0000:b5:00.0 enp181s0: Link up - 100 Gbps",
    "bond0: (slave ens1f1): link status definitely down, disabling slave",
)  # fmt: skip
#: Lines that become no event.
IGNORED = (
    "nvme nvme0: 16/0/0 default/read/poll queues",
    "nvme nvme0: Shutdown timeout set to 8 seconds",
    "nvme nvme0: restart after slot reset",
    'nvme nvme0: Removing ctrl: NQN "nqn.2014-08.org.nvmexpress.discovery"',
    "nvme nvme3: failed to connect socket: -111",
    "nvme nvme3: Successfully reconnected (1 attempts)",
    "nvme2n1: detected capacity change from 7501476528 to 0",
    "ata1: SATA link up 6.0 Gbps (SStatus 133 SControl 300)",
    "ata2: SATA link down (SStatus 0 SControl 300)",
    "ata5: link is slow to respond, please be patient (ready=0)",
    "sd 0:0:0:0: [sda] Synchronizing SCSI cache",
    "sd 9:0:0:0: rejecting I/O to offline device",
    "Lustre: scratch-OST0003-osc-ffff8f: Connection restored to 10.0.0.8@o2ib (at 10.0.0.8@o2ib)",
    "Lustre: Mounted scratch-client",
    "LNet: Added LNI 10.0.1.5@o2ib [8/256/0/180]",
    "nfs: server nas1 OK",
    "libceph: mon0 (1)10.0.0.3:6789 socket closed (con state OPEN)",
    "ceph: mds0 caps renewed",
    "beegfs: mount(3412): BeeGFS mount ready.",
    "pcieport 0000:00:1c.0: pciehp: Slot(12): Attention button pressed",
    "mlx5_core 0000:5e:00.0: Port module event: module 0, Cable plugged",
    "mlx5_core 0000:5e:00.0: Shutdown was called",
    "mlx5_core 0000:5e:00.0: wait_func_handle_exec_timeout:1062:(pid 812): cmd[0]: CREATE_EQ(0x301) recovered after timeout",
    "mlx5_core 0000:5e:00.1: mlx5_cmd_out_err:808:(pid 4242): ACCESS_REG(0x805) op_mod(0x1) failed, status bad parameter(0x3), syndrome (0x15c356), err(-22)",
    "bnxt_en 0000:81:00.0 eth0: FEC autoneg off encoding: RS544_1XN",
    "bnxt_en 0000:81:00.0 eth0: Firmware reset event received, max wait time 2000 msec",
    "ionic 0000:b5:00.0: FW has recovered from the hang",
    "ice 0000:31:00.0: PTP reset successful",
    "ice 0000:31:00.0: PTP reset failed -5",
    "ice 0000:31:00.0 ens1f1: A parallel fault was detected.",
    "ice 0000:31:00.0: Get PHY capabilities failed, status: -5, timeout",
    "mana 7870:00:00.0 eth1: Configured vPort 0 PD 18 DB 16",
    "hns3 0000:7d:00.0: FLR reset",
    "efa 0000:00:1e.0: Setup irq:22 name:efa-mgmnt@pci:0000:00:1e.0",
    "infiniband mlx5_0: reg_mr_callback:123:(pid 0): async reg mr failed. status -12",
    "XFS (dm-5): Ending clean mount",
    "EXT4-fs (sda1): mounted filesystem with ordered data mode. Opts: errors=remount-ro",
    "blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0",
    "clocksource: timekeeping watchdog on CPU3: Marking clocksource 'tsc' as unstable because the skew is too large:",
    "NMI watchdog: Enabled. Permanently consumes one hw-PMU counter.",
)  # fmt: skip

EXPECTED = {
    **dict.fromkeys(SUSPECT, HealthState.SUSPECT), **dict.fromkeys(WATCH, HealthState.WATCH),
    **dict.fromkeys(HARMLESS, HealthState.HEALTHY), **dict.fromkeys(IGNORED, None),
}  # fmt: skip
SOFT = "watchdog: BUG: soft lockup - CPU#3 stuck for {}s! [{}]"
HUNG = "INFO: task jbd2/vda1-8:412 blocked for more than {} seconds."
#: Seconds since the boot and reported seconds of lines about one core or task -> codes.
STORIES: dict[str, tuple[str, list[tuple[float, int]], list[int]]] = {
    "a virtual machine was suspended": (SOFT, [(9000.0, 3208)], [0]),
    "and long before it was busy": (SOFT, [(100.0, 22), (90_000.0, 3208)], [0, 0]),
    "it was suspended twice": (SOFT, [(9000.0, 3208), (20_000.0, 4000)], [0, 0]),
    "a core is stuck": (SOFT, [(100.0 + s, 22 + s) for s in range(0, 140, 22)], [0] * 5 + [3, 3]),
    "its first report was lost": (SOFT, [(500.0, 134), (522.0, 156)], [0, 3]),
    "a task of a suspended machine": (HUNG, [(9000.0, 1228)], [0]),
    "a task hangs": (HUNG, [(200.0 + s, 122 + s) for s in range(0, 600, 121)], [0] * 4 + [1]),
    "a limit of ten minutes": (HUNG, [(700.0, 604), (1304.0, 1208)], [0, 1]),
}  # fmt: skip


def state_of(line: str) -> HealthState | None:
    """Return the state of a host with *line*; None if the line becomes no event."""
    parsed = classify(line)
    if parsed is None:
        return None
    kind = EVENT_KINDS.get((parsed.name, parsed.code))
    return kind.rule.state if kind else HealthState.HEALTHY


@pytest.mark.parametrize("line", EXPECTED)
def test_held_out_lines(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A false alarm drains a healthy host; a missed one makes another job fail there."""
    assert state_of(line) is EXPECTED[line]
    assert main([line]) == (4 if EXPECTED[line] is None else 0)
    assert ("The agent ignores this line" in capsys.readouterr().out) == (EXPECTED[line] is None)


@pytest.mark.parametrize("name", STORIES)
def test_a_resumed_virtual_machine_is_not_stuck(name: str) -> None:
    """After a live migration, "stuck for 3208s" on each core made the host SUSPECT for an hour."""
    form, reports, codes = STORIES[name]
    times, result = StuckTimes(), []
    for at, seconds in reports:
        parsed = classify(form.format(seconds, "swapper/3:0"))
        assert parsed is not None
        result.append(times.confirm(parsed, at).code)
    assert result == codes
