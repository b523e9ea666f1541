"""Rules for lines about tasks and the kernel: killed for memory, hung, stuck CPUs, faults of the kernel.

Formats: mm/oom_kill.c, kernel/hung_task.c, kernel/watchdog.c, kernel/rcu/tree_stall.h, arch/*/mm/fault.c, kernel/panic.c.
"""

from __future__ import annotations

from .record import LinePart, ParsedLine, rule

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
    rule(FAULT, "panic - ", r"Kernel panic - (?P<fault>[^\n]{1,200})", attributes={"panic": "yes"}),
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
