"""Lines about file systems and disks.

Formats: fs/ext4/super.c, fs/jbd2, fs/xfs/xfs_message.c and xfs_fsops.c, fs/btrfs/messages.c, fs/nfs and
net/sunrpc/clnt.c, lustre/ptlrpc/import.c, block/blk-core.c, fs/buffer.c, drivers/nvme/host/pci.c, drivers/ata/libata-eh.c, drivers/md.
"""

from __future__ import annotations

from .notice import rule

FILES, DISK = "filesystem.error", "disk.error"

#: Diskettes and CD drives that a machine's firmware says it has, and devices made of files, of memory or
#: of a network by whoever may: no disk of a host.
_NO_DISK = r"(?!fd\d|sr\d|loop\d|zram\d|ram\d|nbd\d)"

RULES = (
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
        attributes={"filesystem": "nfs"},
    ),
    rule(
        FILES,
        "Lustre",
        r"LustreError: .{0,160}?This client was evicted by (?P<device>[^\s;]{1,64})",
        attributes={"filesystem": "lustre"},
    ),
    rule(
        FILES,
        "Lustre",
        r"Lustre: .{0,160}?Connection to (?P<device>\S{1,64}) \(at (?P<server>[^)\n]{1,64})\) was lost",
        attributes={"filesystem": "lustre"},
    ),
    rule(
        DISK,
        ", dev ",
        # A disk that does not take a discard, and one that another host has reserved, are well.
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
        r"nvme (?P<device>nvme\d+): (?:I/O (?:tag )?\d+ .{0,80}?timeout|controller is down|Abort status"
        r"|Removing after probe failure|Device not ready|Identify Controller failed|resetting controller"
        r"|Disabling device after reset failure|frozen state error|.{0,80}?media error)",
    ),
    rule(
        DISK,
        "ata",
        r"(?P<device>ata\d+(?:\.\d+)?): (?:failed command|exception Emask|hard resetting link"
        r"|disabled$|COMRESET failed)",
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
