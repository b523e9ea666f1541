"""Rules for log lines of network adapters, and the filter of those that become events.

Formats: drivers/net/ethernet/mellanox/mlx5/core (health.c, cmd.c, events.c, en/reporter_rx.c),
drivers/infiniband/hw/efa/efa_com.c, net/sched/sch_generic.c (dev_watchdog), netdev_printk and
ibdev_printk (`driver address name: text`), drivers/net/bonding/bond_main.c; for others see the comment of
`_ADAPTERS`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..hardware.network import was_up
from .record import BDF, LineRule, ParsedLine, rule

RDMA, FAILED, LINK = "rdma.driver_error", "rdma.adapter_failed", "net.link_message"
#: `state` of a failed adapter that answers again.
BACK = "back"
#: Code of RDMA: the slot supplies less power than the adapter requests. Some machines log it at
#: every boot and work.
LOW_POWER = 1

_UP_DOWN = ("state", {"down": 0, "up": 1})
_STATE = r"(?:is )?(?P<state>[Uu]p|[Dd]own|UP|DOWN)\b"

#: Lines of mlx5_core about the device, not about a caller's request.
_MLX5 = (
    r"[Hh]ealth issue observed",
    r"firmware (?:internal )?error",
    r"[Ff]atal (?:error|state)",
    r"assert_(?:var|exit_ptr|callra)",
    r"Port module event\[error\]",
    r"Port module event: module \d+, Cable unplugged",
    r"[Hh]igh [Tt]emperature",
    r"poll_health.{0,80}(?:miss|fail|error)",
    r"NIC (?:sw|SW) reset",
    r"(?<!firmware: )[Ff]ailed (?:to )?(?:recover|load)",
    r"TX timeout (?:detected|on queue)",
    r"RX timeout on channel",
)
#: Lines of mlx5_core about dead firmware, or a device that the driver has given up.
_MLX5_DEAD = (
    r"health compromised",
    r"health recovery (?:failed|flow aborted)",
    r"unrecoverable",
    r"timeout\. Will cause a leak",
    r"No done completion",
    r"enter(?:ing)? error state",
    r"mlx5_enter_error_state",
    r"PCI slot is unavailable",
    r"device is in error|device in error state",
    r"mlx5_(?:init|load)_one failed",
    r"initializing state, aborting",
)
#: After each of the first three the driver stops the admin queue and accepts no command.
_EFA_DEAD = (
    r"The device didn't send any completion for admin cmd",
    r"The device sent a completion but the driver didn't receive any MSI-X interrupt for admin cmd",
    r"Wait for completion \(polling\) timeout",
    r"Admin queue is closed",
    r"Device isn't ready",
    r"Reset indication didn't turn o(?:n|ff)",
)
#: Drivers of RDMA adapters in the kernel's line about a stuck transmit queue.
_DRIVERS = "mlx5_core|mlx4_en|bnxt_en|ice|ionic|qede|mana|hns3"
#: The control queue of an RDMA device, for several drivers.
_QUEUE_DEAD = (
    r"(?:QPLIB: )?cmdq\[[^]]{1,16}\]=\w{1,10} timed ?out",
    r"cmdq? (?:time ?out|timed out)",
)

#: Adapters remembered as failed, and as linked; beyond this number "back" is reported without a
#: check.
FAILED_MAX = 256


def _recovered(parsed: ParsedLine) -> ParsedLine:
    """Make it an incident of its own, apart from failures before and after it."""
    return parsed._replace(scope=BACK, attributes={**parsed.attributes, "state": BACK})


class _Formats(NamedTuple):
    """Patterns of a driver's lines: dead firmware, device trouble, recovered firmware."""

    dead: tuple[str, ...]
    trouble: tuple[str, ...]
    back: tuple[str, ...]


#: Formats: drivers/net/ethernet/broadcom/bnxt (bnxt.c, bnxt_hwrm.c) and infiniband/hw/bnxt_re;
#: pensando/ionic (dev.c, main.c, lif.c); intel/ice (ice_main.c) with irdma; microsoft/mana
#: (hw_channel.c, gdma_main.c); hisilicon/hns3 with hns_roce.
_ADAPTERS: dict[str, _Formats] = {
    "bnxt_en": _Formats(
        (
            *_QUEUE_DEAD,
            r"Error \(timeout: \d{1,12}\) msg",
            r"(?:Fatal firmware|[Ff]irmware fatal) (?:reset event|condition)",
            r"Firmware reset aborted",
            r"Firmware (?:is )?not responding",
            r"FW (?:is )?not responding",
        ),
        (
            r"TX timeout detected",
            r"[Nn]on-fatal (?:firmware )?reset event",
            r"(?:Couldn't|Failed to) \w{4,8} (?:HW )?QP\b",
        ),
        (r"Firmware reset completed", r"Broadcom [^\n]{1,80} found at mem"),
    ),
    "ionic": _Formats(
        (
            r"FW heartbeat stalled",
            r"FW stopped",
            r"FW Down: Stopping LIFs",
            r"FW Up: LIFs restart failed",
            r"DEVCMD [^\n]{1,48} timeout after \d{1,6} secs",
        ),
        (r"tx timeout", r"ADMINQ [^\n]{0,48}time ?out"),
        (r"FW Up: LIFs restarted",),
    ),
    "ice": _Formats(
        (
            r"Rebuild failed, unload and reload driver",
            r"(?<!PTP )[Rr]eset failed",
            r"PF VSI rebuild failed",
            r"[Ff]irmware recovery mode",
            r"tx_timeout recovery unsuccessful",
            r"(?:[Cc]ontrol|Admin) ?[Qq]ueue?s? [^\n]{0,40}(?:timed out|timeout)",
        ),
        (
            r"tx_timeout: VSI_num",
            r"Malicious Driver Detection",
            r"HMC Error",
            r"(?i:i?rdma)[^\n]{0,40} request\w* a reset",
        ),
        (r"The DDP package was successfully loaded",),
    ),
    "mana": _Formats(
        (
            r"HWC: Request timed out",
            r"Command 0x\w{1,8} timed out",
            r"Failed to send mana message: -110",
            r"HWC: Failed to init",
            r"Failed to establish HWC",
        ),
        (r"Failed to [^\n]{1,48}: -110\b", r"HWC: Failed hw_channel req"),
        (r"Microsoft Azure Network Adapter protocol version",),
    ),
    "hns3": _Formats(
        (
            *_QUEUE_DEAD,
            r"[Rr]eset fail(?:ed)?\b",
            r"(?:mailbox|CMDQ|cmd) [^\n]{0,40}time ?out",
            r"failed to (?:reset|re-?init)[^\n]{0,40}",
        ),
        (r"tx_timeout count", r"\[error status=0x[0-9a-f]*[1-9a-f]", r"unrecoverable error"),
        (r"HCLGE driver initialization finished", r"[Rr]eset (?:done|finished|successful)"),
    ),
}


def _adapter_rules() -> Iterator[LineRule]:
    """Yield the rules of `_ADAPTERS`. Lines have the function, maybe interface or RDMA device."""
    for driver, patterns in _ADAPTERS.items():
        prefix = rf"{driver} (?P<pci>{BDF})(?: (?P<interface>[^\s:]{{1,32}}))?: .{{0,160}}?"
        substring = "ice 0000:" if driver == "ice" else f"{driver} "  # "device " is in many lines
        yield rule(FAILED, substring)(rf"{prefix}(?:{'|'.join(patterns.dead)})")
        yield rule(FAILED, substring, finish=_recovered)(rf"{prefix}(?:{'|'.join(patterns.back)})")
        yield rule(RDMA, substring)(rf"{prefix}(?:{'|'.join(patterns.trouble)})")


NETWORK_RULES = (
    rule(FAILED, "mlx5_core ")(
        rf"mlx5_core (?P<pci>{BDF})(?: (?P<interface>[^\s:]+))?: .{{0,400}}?(?:{'|'.join(_MLX5_DEAD)})"
    ),
    # A driver that loads reads the firmware's version first; a failure is logged after it.
    rule(FAILED, "mlx5_core ", finish=_recovered)(
        rf"mlx5_core (?P<pci>{BDF}): (?:\S{{1,64}}: ?)?(?:\(pid \d+\): )?"
        r"(?:health recovery succeeded|firmware version: \d)"
    ),
    rule(RDMA, "mlx5_core ", code=LOW_POWER)(
        rf"mlx5_core (?P<pci>{BDF}): .{{0,80}}?Detected insufficient power on the PCIe slot"
        r"(?: \((?P<slot_power>\w+)\))?"
    ),
    rule(RDMA, "mlx5_core ")(
        rf"mlx5_core (?P<pci>{BDF})(?: (?P<interface>[^\s:]+))?: .{{0,400}}?(?:{'|'.join(_MLX5)})"
        r"(?:.{0,20}?module (?P<module>\d+), (?P<cable>[^\n]{1,80}))?"
    ),
    rule(FAILED, "efa ")(
        rf"efa (?P<pci>{BDF})(?: (?P<rdma_device>[^\n:]{{1,32}}))?: (?:{'|'.join(_EFA_DEAD)})"
    ),
    *_adapter_rules(),
    # From ibdev_err for a device without a parent, and from drivers outside the kernel.
    rule(FAILED, "infiniband ")(
        rf"infiniband (?P<device>[^\s:]{{1,32}}): .{{0,80}}?(?:{'|'.join((*_EFA_DEAD, *_QUEUE_DEAD))})"
    ),
    rule(RDMA, "infiniband ")(
        r"infiniband (?P<device>[^\s:]{1,32}): .{0,80}?(?:Couldn't|Failed to) \w{4,8} (?:HW )?QP\b"
    ),
    rule(RDMA, "NETDEV WATCHDOG")(
        rf"(?:{_DRIVERS}) (?P<pci>{BDF}) (?P<interface>[^\s:]{{1,32}}): NETDEV WATCHDOG: (?:CPU: \d+: )?"
        r"transmit queue (?P<queue>\d+) timed out(?: (?P<timeout_milliseconds>\d+) ms)?"
    ),
    rule(RDMA, "NETDEV WATCHDOG")(
        rf"NETDEV WATCHDOG: (?:CPU: \d+: )?(?P<device>[^\s:]{{1,32}}) \((?:{_DRIVERS})\): "
        r"transmit queue (?P<queue>\d+) timed out(?: (?P<timeout_milliseconds>\d+) ms)?"
    ),
    rule(FAILED, "failed with error")(
        rf"mlx5_core(?:: probe of)? (?P<pci>{BDF})(?:: probe with driver \S{{1,32}})? failed with error"
    ),
    rule(LINK, "ink ", codes=_UP_DOWN)(
        rf"\S+ (?P<pci>{BDF}) (?P<device>[^\s:]{{1,32}})(?: \([^)]*\))?: (?:\S{{1,32}}: )?"
        rf"(?:\S{{1,32}} )?(?:NIC )?[Ll]ink {_STATE}"
    ),
    rule(LINK, "NIC Link ", codes=_UP_DOWN)(
        rf"\w+: (?P<device>[^\s:]{{1,32}}):? NIC Link {_STATE}"
    ),
    rule(LINK, "link status ", codes=_UP_DOWN)(
        r"(?P<bond>\S{1,32}): \(slave (?P<device>[^\s)]{1,32})\): link status definitely "
        r"(?P<state>up|down)\b"
    ),
    rule(LINK, "link status ", codes=_UP_DOWN)(
        r"(?:bonding: )?(?P<bond>[^\s:]{1,32}): link status definitely (?P<state>up|down) for "
        r"interface (?P<device>[^\s,]{1,32})"
    ),
)


def reported_when(parsed: ParsedLine, text: str) -> str:
    """Return, for an operator, the condition of `AdapterFilter` or `StuckTimes`; "": none."""
    if parsed.name == FAILED and parsed.attributes.get("state") == BACK:
        return "it ends the event of an adapter that failed before, and is ignored of all others"
    if parsed.code and not {"stuck_seconds", "blocked_seconds"}.isdisjoint(parsed.attributes):
        return (
            "it counts as lasting only if an earlier line reported the same core or task with a shorter time: a virtual "
            "machine that was suspended resumes with a single line"
        )
    if parsed.name == RDMA and "Cable unplugged" in text:
        return "it counts only for a port that had a link since the host booted"
    return ""


class AdapterFilter:
    """Selects lines for events.

    `resumed`: the log is read from its middle, so earlier failures are unknown.
    """

    def __init__(self, sys: Path) -> None:
        self.resumed = False
        self._sys = sys
        self._failed: set[str] = set()
        self._linked: set[str] = set()

    def is_wanted(self, parsed: ParsedLine, text: str) -> bool:
        """Return whether the line becomes an event. Never raises.

        A recovery does not count without an earlier failure: every driver prints that line when it
        loads. An unplugged cable does not count if the port had no known link in this boot: drivers
        report empty cages at each boot.
        """
        if parsed.name == LINK and parsed.code == 1 and len(self._linked) < FAILED_MAX:
            self._linked.add(parsed.attributes.get("pci_address", ""))
        if parsed.name == FAILED:
            if parsed.attributes.get("state") != BACK:
                if len(self._failed) < FAILED_MAX:
                    self._failed.add(parsed.device)
                return True
            known = parsed.device in self._failed or self.resumed
            self._failed.discard(parsed.device)
            return known or len(self._failed) >= FAILED_MAX
        if parsed.name == RDMA and "Cable unplugged" in text:
            return parsed.device in self._linked or was_up(self._sys, parsed.device)
        return True
