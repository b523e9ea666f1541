"""Rules for all kernel log lines.

Rules for GPUs and network adapters are in `gpu_rules.py` and `network_rules.py`.
"""

from __future__ import annotations

import re
from itertools import groupby

from .gpu_rules import AMDGPU_RULES, NVIDIA_RULES
from .network_rules import NETWORK_RULES
from .record import (
    BDF,
    LINE_CHARACTERS_MAX,
    LinePart,
    LineRule,
    ParsedLine,
    rule,
)

# PCIe error reporting: AER, downstream port containment, hotplug (drivers/pci/pcie/aer.c, dpc.c,
# drivers/pci/hotplug/pciehp_ctrl.c). An error has several lines: the port names the sender (head),
# the device the error (body), and details follow. Kernels limit the rate of each, so any may be
# missing.

AER = "pcie.aer"

#: Names of severities, old and new.
_CODES = {
    "corrected": 0,
    "correctable": 0,
    "uncorrected (non-fatal)": 1,
    "uncorrectable (non-fatal)": 1,
    "uncorrected (fatal)": 2,
    "uncorrectable (fatal)": 2,
}
_SEVERITY = r"(?P<severity>(?:Unc|C)orrect(?:ed|able)(?: \((?:Non-)?Fatal\))?)"
#: Prefix of aer_printk and pci_info; kernels before 4.15 omit `AER: `.
_DEVICE_PREFIX = rf"\S+ (?P<pci>{BDF}): (?:AER: )?"

PCIE_RULES = (
    rule(
        AER,
        "rror",
        rf"\S+ (?P<port>{BDF}): (?:AER: )?(?:Multiple )?{_SEVERITY} error (?:message )?received"
        rf"(?: from)?:? (?P<pci>{BDF})",
        codes=("severity", _CODES),
        part=LinePart.HEAD,
        group="aer",
    ),
    rule(
        AER,
        "PCIe Bus Error",
        rf"{_DEVICE_PREFIX}PCIe Bus Error: severity={_SEVERITY}, type=(?P<layer>[^,\n]{{1,40}})"
        r"(?:, (?:id=\w+)?\((?P<agent>[^)]{1,40})\))?",
        codes=("severity", _CODES),
        part=LinePart.BODY,
        group="aer",
    ),
    rule(
        AER,
        "error status/mask",
        rf"{_DEVICE_PREFIX} +device \[[^]]*\] error status/mask=(?P<status>\w+)/(?P<mask>\w+)",
        part=LinePart.DETAIL,
        group="aer",
    ),
    rule(
        AER,
        "AER:",
        rf"{_DEVICE_PREFIX}(?:  +TLP Header: (?P<tlp_header>[0-9a-f ]+)"
        r"|device recovery (?P<recovery>(?!failed)\w+))",
        part=LinePart.DETAIL,
        group="aer",
    ),
    rule(
        AER,
        "AER:",
        rf"{_DEVICE_PREFIX}(?:device recovery (?P<recovery>failed)|can't recover(?P<cannot_recover>[^\n]*))",
        code=2,
        part=LinePart.OUTCOME,
        group="aer",
    ),
    rule(
        AER,
        "   [",
        rf"{_DEVICE_PREFIX} +\[ ?\d+\] (?P<error>\S+)",
        part=LinePart.DETAIL,
        group="aer",
    ),
    rule(
        AER,
        "DPC:",
        rf"\S+ (?P<pci>{BDF}): DPC: containment event, status:(?P<dpc_status>\w+)"
        r"(?: source:(?P<source>\w+))?",
        code=2,
        attributes={"severity": "downstream port contained"},
    ),
    # A card that was switched off first, and a link that recovers by itself, have other messages.
    rule(
        AER,
        "Slot(",
        rf"(?:pcieport|pciehp) (?P<pci>{BDF})(?::pcie\w{{1,8}})?: (?:pciehp: )?Slot\((?P<slot>[^)\n]{{1,32}})\): "
        r"(?P<severity>Link Down|Card not present)$",
        code=2,
    ),
)


# Filesystems and disks. Formats: fs/ext4/super.c and page-io.c, fs/jbd2, fs/xfs/xfs_message.c and
# xfs_fsops.c, fs/btrfs/messages.c, fs/nfs and net/sunrpc/clnt.c, lustre/ptlrpc (import.c,
# client.c), lnet/klnds, net/ceph, block/blk-core.c, fs/buffer.c, drivers/nvme/host/pci.c,
# drivers/ata/libata-eh.c, drivers/md.

FILES, DISK = "filesystem.error", "disk.error"
#: Codes: a server of FILES does not respond; the kernel gave up a DISK.
UNREACHABLE, REMOVED = 2, 1

#: Floppy and CD drives that the firmware lists, and devices backed by a file, memory or a network:
#: not disks of a host.
_NO_DISK = r"(?!fd\d|sr\d|loop\d|zram\d|ram\d|nbd\d)"


def _server(parsed: ParsedLine) -> ParsedLine:
    """Use the server named in the line as the device."""
    device = parsed.attributes.get("target") or parsed.attributes.get("server")
    return parsed._replace(device=device) if parsed.device == "host" and device else parsed


STORAGE_RULES = (
    rule(
        FILES,
        "ead-only",
        r"(?:EXT[234]|FAT|F2FS|NTFS)-fs \((?P<device>[^)\n]{1,64})\):[^\n]{0,80}"
        r"(?:[Rr]emounting filesystem|has been set) read-only",
        code=1,
    ),
    rule(
        FILES,
        "forced readonly",
        r"BTRFS \w+ \(device (?P<device>[^):\n]{1,64})(?:: state [^)]*)?\).{0,80}?forced readonly",
        code=1,
    ),
    rule(
        FILES,
        "-fs error",
        r"(?:EXT[234]|F2FS|FAT)-fs error \(device (?P<device>[^)\n]{1,64})\):? ?"
        r"(?P<where>[^\s:]{1,64})?(?:[^\n]{0,200}? comm (?P<comm>[^:\n]{1,15}):)?",
    ),
    rule(
        FILES,
        "-fs warning",
        r"EXT4-fs warning \(device (?P<device>[^)\n]{1,64})\): (?P<where>[^\s:]{1,64})(?::\d+)?: "
        r"[^\n]{0,120}?I/O error",
    ),
    rule(
        FILES,
        "EXT4-fs (",
        r"EXT4-fs \((?P<device>[^)\n]{1,64})\): (?:I/O error|failed to convert|previous I/O error)",
    ),
    rule(
        FILES,
        "XFS (",
        r"XFS \((?P<device>[^)\n]{1,64})\): (?:.{0,120}?(?:orruption|[Ss]hut ?down|[Ss]hutting down"
        r"|shut down|force_shutdown|I/O error|log error|writeback error))",
    ),
    rule(
        FILES,
        "BTRFS",
        r"BTRFS(?: (?:error|critical)|:? error) \(device (?P<device>[^)\n]{1,64}?)(?:: state [^)]*)?\)",
    ),
    rule(
        FILES,
        "ournal on device",
        r"(?:JBD2: )?Aborting journal on device (?P<device>[^\n]{1,64}?)\.?$",
    ),
    rule(
        FILES,
        "JBD2: ",
        r"JBD2: (?:Detected IO errors while flushing file data on|I/O error[^\n]{0,80}? on|Error -?\d+ "
        r"detected when updating journal superblock for) (?P<device>\S{1,64}?)\.?$",
    ),
    rule(
        FILES,
        "not responding",
        r"nfs: server (?P<device>\S{1,64}) not responding",
        code=UNREACHABLE,
        attributes={"filesystem": "nfs"},
    ),
    rule(
        FILES,
        "Lustre",
        r"LustreError: .{0,160}?(?:This client was evicted by (?P<device>[^\s;]{1,64})"
        r"|operation (?P<operation>\w{1,32}) to node (?P<server>\S{1,64}) failed: rc = (?P<error>-\d+))",
        code=UNREACHABLE,
        attributes={"filesystem": "lustre"},
        finish=_server,
    ),
    rule(
        FILES,
        "Lustre",
        r"Lustre: .{0,160}?(?:Connection to (?P<device>\S{1,64}) \(at (?P<server>[^)\n]{1,64})\) was lost"
        r"|Request sent has (?:timed out|failed due to network error)(?:.{0,300}?->(?P<target>[^@\s]{1,64})@)?)",
        code=UNREACHABLE,
        attributes={"filesystem": "lustre"},
        finish=_server,
    ),
    rule(
        FILES,
        "LNet",
        r"LNet(?:Error)?: .{0,160}?(?:Timed out (?:tx|rx|RDMA).{0,20}? (?:for|with)"
        r"|No (?:route|response) (?:to|from)|Lost connection to) (?P<device>[^\s:;,]{1,64})",
        code=UNREACHABLE,
        attributes={"filesystem": "lustre"},
    ),
    # An unused connection is closed in state OPEN, and reopened when needed.
    rule(
        FILES,
        "ceph: ",
        r"(?:lib)?ceph: (?:\[[^]]{1,80}\]: )?(?P<device>(?:mon|osd|mds)\d{1,6})\b.{0,80}?"
        r"(?:socket closed \(con state (?!OPEN)|socket error|session lost|connect(?:ion)? error|timed out"
        r"|wrong peer|hung|reconnect denied|closed our session|rejected session|caps (?:went )?stale)",
        code=UNREACHABLE,
        attributes={"filesystem": "ceph"},
    ),
    rule(
        FILES,
        "beegfs",
        r"beegfs: .{1,160}?(?:Communication error|SocketError|Retrying communication|Unable to connect"
        r"|Connect(?:ion)? (?:failed|timed out)|Receive timed out)(?:.{0,120}?[Nn]ode: (?P<device>\S{1,64}))?",
        code=UNREACHABLE,
        attributes={"filesystem": "beegfs"},
    ),
    rule(
        DISK,
        ", dev ",
        # A disk that rejects a discard, or is reserved by another host, is healthy.
        rf"(?:[\w ]+: )?(?P<error>I/O|critical \w+|(?!reservation)\w+(?: \w+)?) error, dev {_NO_DISK}"
        r"(?P<device>[^\s,]{1,64}), sector (?P<sector>\d+)(?! op \w+:\((?:DISCARD|WRITE_ZEROES))"
        r"(?: op \w+:\((?P<operation>\w+)\))?",
    ),
    rule(
        DISK,
        "Buffer I/O error",
        rf"Buffer I/O error on dev(?:ice)? {_NO_DISK}(?P<device>[^\s,]{{1,64}})",
    ),
    rule(
        DISK,
        "nvme nvme",
        r"nvme (?P<device>nvme\d+): (?:Removing after probe failure|Disabling device after reset failure)"
        r"(?:(?: status)?: (?P<error>-\d+))?",
        code=REMOVED,
    ),
    rule(
        DISK,
        "nvme nvme",
        r"nvme (?P<device>nvme\d+): (?:I/O (?:tag )?\d+ .{0,80}?timeout|controller is down|Abort status"
        r"|Device not ready|Identify Controller failed|resetting controller|frozen state error"
        r"|.{0,80}?media error)",
    ),
    rule(
        DISK,
        "ata",
        r"(?P<device>ata\d+(?:\.\d+)?): (?:failed command|exception Emask|hard resetting link"
        r"|COMRESET failed)",
    ),
    # Newer kernels print the second form.
    rule(DISK, "ata", r"(?P<device>ata\d+(?:\.\d+)?): (?:disabled|disable device)$", code=REMOVED),
    # SCSI error handling gave up the disk (drivers/scsi/scsi_error.c).
    rule(
        DISK,
        "offlined",
        r"(?:sd|scsi) (?P<device>\d+:\d+:\d+:\d+): (?:\[\w{1,32}\] )?Device offlined\b",
        code=REMOVED,
    ),
    rule(
        DISK,
        "FAILED Result",
        r"sd \S+ \[(?P<device>\w{1,32})\].{0,40}?FAILED Result",
    ),
    rule(
        DISK,
        "Disk failure",
        r"md/\S+ ?Disk failure on (?P<device>[^\s,]{1,32}), disabling",
    ),
)


# Tasks and the kernel: killed for memory, hung, stuck CPUs, kernel faults. Formats: mm/oom_kill.c,
# kernel/hung_task.c, kernel/watchdog.c, kernel/rcu/tree_stall.h, arch/*/mm/fault.c, kernel/panic.c.

OUT_OF_MEMORY, HUNG, LOCKUP = "host.out_of_memory", "host.hung_task", "host.lockup"
FAULT = "host.kernel_fault"
#: BUGs after which a task or memory is lost. Debugging kernels and unusual machines print others at
#: every boot.
_BUGS = (
    r"kernel NULL pointer|unable to handle|Bad page|Bad rss-counter|stack guard page|TASK stack|"
    r"scheduling while atomic|spinlock |KASAN|KFENCE"
)

#: Times after which a stuck core or a blocked task does not recover by itself (assumed). Codes of
#: LOCKUP, HUNG.
STUCK_SECONDS_MIN, BLOCKED_SECONDS_MIN = 120, 600
STUCK, BLOCKED = 3, 1


def _stuck(parsed: ParsedLine) -> ParsedLine:
    lasts = int(parsed.attributes["stuck_seconds"][:10]) >= STUCK_SECONDS_MIN
    return parsed._replace(code=STUCK) if lasts else parsed


def _blocked(parsed: ParsedLine) -> ParsedLine:
    lasts = int(parsed.attributes["blocked_seconds"][:10]) >= BLOCKED_SECONDS_MIN
    return parsed._replace(code=BLOCKED) if lasts else parsed


TASKS_RULES = (
    rule(
        OUT_OF_MEMORY,
        "oom-kill:",
        r"oom-kill:constraint=(?P<constraint>\w+),.{0,1500}?task_memcg=(?P<cgroup>[^,\n]*),"
        r"task=(?P<comm>.{0,64}?),pid=(?P<pid>\d+),uid=(?P<uid>\d+)",
        scope="cgroup",
        part=LinePart.HEAD,
        group="oom",
    ),
    rule(
        OUT_OF_MEMORY,
        "illed process ",
        r"(?:(?:Memory cgroup out|Out) of memory[^:]{0,40}: )?Killed process (?P<pid>\d+),? "
        r"\((?P<comm>.{1,64}?)\)(?:,? (?:UID \d+, )?total-vm:(?P<total_vm>\w+)|$)"
        r"(?:.{0,10}anon-rss:(?P<anonymous>\w+))?(?:.{0,200}?UID:(?P<uid>\d+))?",
        part=LinePart.BODY,
        group="oom",
    ),
    rule(
        HUNG,
        " blocked ",
        r"INFO: task (?P<comm>.{1,64}?):(?P<pid>\d+) is blocked on (?P<blocked_on>[^\n]+)",
        part=LinePart.DETAIL,
        group="hung",
    ),
    rule(
        HUNG,
        " blocked ",
        r"INFO: task (?P<comm>.{1,64}?):(?P<pid>\d+) blocked [^\n]{0,40}?for more than "
        r"(?P<blocked_seconds>\d+) seconds",
        group="hung",
        finish=_blocked,
    ),
    # Removal of the interface's namespace waits for it, and blocks further removals.
    rule(
        HUNG,
        "unregister_netdevice",
        r"unregister_netdevice: waiting for (?P<interface>\S{1,32}) to become free",
    ),
    rule(
        LOCKUP,
        "soft lockup",
        r"(?:\S+ ?\S*: )?BUG: soft lockup - CPU#(?P<cpu>\d+) stuck for (?P<stuck_seconds>\d+)s! "
        r"\[(?P<comm>.{1,64}?):(?P<pid>\d+)\]",
        finish=_stuck,
    ),
    rule(
        LOCKUP,
        "LOCKUP",
        r"(?:[\w ]+: ){0,2}(?:CPU(?P<cpu>\d+): )?Watchdog detected hard LOCKUP(?: on cpu (?P<on_cpu>\d+))?",
        code=1,
    ),
    rule(
        LOCKUP,
        " stall",
        r"(?:rcu: )?INFO: (?P<flavour>rcu\w+) (?:self-)?detected (?:expedited )?stalls? on CPU",
        code=2,
    ),
    rule(
        FAULT,
        " [#",  # format of `die` in every architecture
        r"(?P<fault>[A-Za-z][^\n]{2,160}?: [0-9a-f]{4,16}) \[#\d+\]",
        part=LinePart.BODY,
        group="fault",
    ),
    rule(
        FAULT,
        "SError Interrupt",  # arm64: a hardware error without an instruction
        r"(?P<fault>SError Interrupt) on CPU(?P<cpu>\d+), code (?P<esr>0x[0-9a-f]+)",
        part=LinePart.HEAD,
        group="fault",
    ),
    rule(
        FAULT,
        "panic - ",
        r"Kernel panic - (?P<fault>[^\n]{1,200})",
        attributes={"panic": "yes"},
    ),
    rule(
        FAULT,
        "BUG",
        rf"(?:kernel BUG at |BUG: (?={_BUGS}))(?P<fault>[^\n]{{1,200}})",
        part=LinePart.HEAD,
        group="fault",
    ),
    rule(
        FAULT,
        "Unable to handle",
        r"(?P<fault>Unable to handle kernel [^\n]{1,120}) at virtual address",
        part=LinePart.HEAD,
        group="fault",
    ),
    rule(
        FAULT,
        " Comm: ",
        r"CPU: (?P<cpu>\d+) (?:UID: \d+ )?PID: (?P<pid>\d+) Comm: (?P<comm>.{1,15}?) "
        r"(?:Tainted|Not tainted|Kdump)",
        part=LinePart.DETAIL,
        group="fault",
    ),
)


# The machine: firmware reports (GHES, BERT), machine checks, memory (EDAC). Formats:
# drivers/firmware/efi/cper.c, drivers/acpi/apei/ghes.c and bert.c, arch/x86/kernel/cpu/mce/core.c,
# drivers/edac/mce_amd.c, drivers/edac/edac_mc.c, mm/memory-failure.c.

FIRMWARE, CHECK, MEMORY_ERROR = "host.hardware_error", "host.machine_check", "host.memory_error"

_SEVERITIES = {"recoverable": 0, "fatal": 1, "corrected": 2, "info": 3}
_ERROR = r"\[Hardware Error\]:"
#: Bit 61 of IA32_MCi_STATUS (Intel SDM volume 3, machine-check architecture; AMD's is the same):
#: not corrected.
_UNCORRECTED = 1 << 61
#: Bit 44 of AMD's MCA_STATUS (AMD64 APM volume 2): lost data that has not been read yet.
_DEFERRED = 1 << 44


def _machine_check(parsed: ParsedLine) -> ParsedLine:
    """Set the code from the bank's status: 1 if data was lost."""
    uncorrected = int(parsed.attributes["status"], 16) & _UNCORRECTED
    return parsed._replace(code=1 if uncorrected else 0)


def _machine_check_of_amd(parsed: ParsedLine) -> ParsedLine:
    lost = int(parsed.attributes["status"], 16) & (_UNCORRECTED | _DEFERRED)
    return parsed._replace(code=1 if lost else 0)


def _firmware(parsed: ParsedLine) -> ParsedLine:
    """Mark a record without a number, which the firmware kept from the previous boot (BERT)."""
    if "record" in parsed.attributes:
        return parsed
    attributes = {**parsed.attributes, "previous_boot": "yes"}
    return parsed._replace(scope="previous boot", attributes=attributes)


MACHINE_RULES = (
    rule(
        FIRMWARE,
        "event severity",
        rf"(?:\{{(?P<record>\d+)\}})?{_ERROR} event severity: (?P<severity>\w+)",
        codes=("severity", _SEVERITIES),
        group="ghes",
        finish=_firmware,
    ),
    rule(
        FIRMWARE,
        "[Hardware Error]",
        rf"(?:\{{\d+\}})?{_ERROR} +(?:section[_ ]type: (?P<section>[^\n]+)|section length: |fru_text: "
        r"(?P<fru>[^\n]+)|error_type: (?P<error>[^\n]+)|physical_address: (?P<physical_address>\w+)"
        r"|device_id: (?P<pci_address>[0-9a-f:.]+)|DIMM location: (?P<dimm>[^\n]+)"
        r"|node: ?(?P<memory_node>\d+))",
        part=LinePart.DETAIL,
        group="ghes",
    ),
    rule(
        CHECK,
        "Machine check events",
        rf"mce: {_ERROR} Machine check events logged",
        part=LinePart.HEAD,
        group="mce",
    ),
    rule(
        CHECK,
        "Machine Check",
        rf"mce: {_ERROR} CPU (?P<cpu>\d+): Machine Check(?: Exception)?: (?P<mcg_status>[0-9a-f]+) "
        r"Bank (?P<bank>\d+): (?P<status>[0-9a-f]{1,16})\b",
        part=LinePart.BODY,
        group="mce",
        finish=_machine_check,
    ),
    rule(
        CHECK,
        "_STATUS[",
        rf"(?:.{{0,40}}?){_ERROR} CPU:(?P<cpu>\d+) \([^)]*\) MC(?P<bank>\d+)_STATUS"
        r"\[(?P<flags>[^]]*)\]: 0x(?P<status>[0-9a-f]{1,16})\b",
        part=LinePart.BODY,
        group="mce",
        finish=_machine_check_of_amd,
    ),
    rule(
        CHECK,
        "Machine check: ",
        rf"mce: {_ERROR} Machine check: (?P<reason>[^\n]+)",
        code=1,
        group="mce",
    ),
    rule(
        CHECK,
        "[Hardware Error]",
        rf"mce: {_ERROR} (?:TSC \w+ (?:ADDR (?P<address>[0-9a-f]+))?(?: ?MISC (?P<misc>[0-9a-f]+))?"
        r"|PROCESSOR \S+ TIME \d+ SOCKET (?P<socket>\d+))",
        part=LinePart.DETAIL,
        group="mce",
    ),
    rule(
        MEMORY_ERROR,
        "EDAC ",
        r"EDAC (?P<controller>\w+): (?P<count>\d+) (?P<kind>CE|UE) (?P<error>[^\n]{0,200}?) ?\bon "
        r"(?P<device>[^\n]{1,160}?) \(",
        codes=("kind", {"ce": 0, "ue": 1}),
    ),
    rule(
        MEMORY_ERROR,
        "Memory failure: ",
        r"(?:MCE|Memory failure): 0x(?P<page>[0-9a-f]+): (?:(?:Sending SIGBUS to|Killing) "
        r"(?P<comm>[^\n]{1,64}?):(?P<pid>\d+) due|recovery action for (?P<recovery>[^\n]+))",
        code=1,
        attributes={"kind": "UE"},
    ),
)


#: Every kind of line that becomes an event, in the order of evaluation.
RULES: tuple[LineRule, ...] = (
    *NVIDIA_RULES,
    *AMDGPU_RULES,
    *PCIE_RULES,
    *MACHINE_RULES,
    *NETWORK_RULES,
    *TASKS_RULES,
    *STORAGE_RULES,
)

#: Rules by their substring: most lines contain none and are skipped quickly.
_BY_SUBSTRING: tuple[tuple[str, tuple[LineRule, ...]], ...] = tuple(
    (word, tuple(rules)) for word, rules in groupby(RULES, lambda rule: rule.substring)
)


#: Lines that begin with a process's name (at most 15 characters, TASK_COMM_LEN), often followed by
#: a file's. A user chooses both, and could imitate a driver's line.
_OF_A_PROCESS = re.compile(
    r".{1,15}(?:\[\d{1,10}\]:? | \(\d{1,10}\)[: ]| invoked oom-killer: |: page allocation |: vmalloc )",
    re.DOTALL,
)


def classify(text: str) -> ParsedLine | None:
    """Return the parsed line of the first matching rule; None for most lines. Never raises.

    Only the first LINE_CHARACTERS_MAX characters are examined.
    """
    text = text[:LINE_CHARACTERS_MAX]
    for substring, rules in _BY_SUBSTRING:
        if substring in text:
            for line_rule in rules:
                if (parsed := line_rule.read(text)) is not None:
                    return None if _OF_A_PROCESS.match(text) else parsed
    return None


def why_ignored(text: str) -> str:
    """Return why `classify` ignores a line, for an operator."""
    text = text[:LINE_CHARACTERS_MAX]
    near = [word.strip() for word, _ in _BY_SUBSTRING if word in text]
    if _OF_A_PROCESS.match(text) and near:
        return "it begins with the name of a process, which a user chooses, so that a user could have written the rest too"
    if near:
        return f"rules exist for lines with {near[0]!r}, and none for these words: they are not known to tell of a fault"
    return "no rule is about such lines: they are not known to tell of a fault of the host"
