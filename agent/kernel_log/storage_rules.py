"""Rules for lines about file systems and disks.

Formats: fs/ext4/super.c and page-io.c, fs/jbd2, fs/xfs/xfs_message.c and xfs_fsops.c, fs/btrfs/messages.c, fs/nfs and
net/sunrpc/clnt.c, lustre/ptlrpc (import.c, client.c), lnet/klnds, net/ceph, block/blk-core.c, fs/buffer.c,
drivers/nvme/host/pci.c, drivers/ata/libata-eh.c, drivers/md.
"""

from __future__ import annotations

from .record import ParsedLine, rule

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
    rule(DISK, "FAILED Result", r"sd \S+ \[(?P<device>\w{1,32})\].{0,40}?FAILED Result"),
    rule(DISK, "Disk failure", r"md/\S+ ?Disk failure on (?P<device>[^\s,]{1,32}), disabling"),
)
