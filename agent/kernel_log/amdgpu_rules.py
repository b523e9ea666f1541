"""Rules for lines of the amdgpu driver: RAS errors, hung queues, resets and firmware.

Lines of amdgpu about RAS errors, hangs, resets, dead firmware, and GPUs off the bus. Formats of
drivers/gpu/drm/amd: amdgpu/amdgpu_ras.c (`N [new ]uncorrectable hardware errors detected in umc
block`), amdgpu_ras_eeprom.c (thresholds of bad pages), amdgpu_job.c (`ring R timeout`),
amdgpu_device.c (`GPU reset begin!`, `GPU reset(N) failed`, `GPU reset end with ret`), amdgpu_ib.c,
amdgpu_ring.c, amdgpu_reset.c, amdgpu_mes.c and mes_v1*.c, nbio_*.c;
amdkfd/kfd_device_queue_manager.c; pm/swsmu/smu_cmn.c; drm/drm_drv.c (`device wedged`).
"""

from __future__ import annotations

from .gpu_rules import MESSAGE, NOT_STARTED
from .record import BDF, LinePart, ParsedLine, rule

RAS_ERROR, HANG, RESET, OFF_BUS = "gpu.ras_error", "gpu.hang", "gpu.reset", "gpu.lost"
#: Codes of RAS_ERROR.
CORRECTED, UNCORRECTED, DEFERRED, REPLACE = range(4)
#: Codes of HANG: the queue recovered without a reset; firmware, a queue or an engine does not
#: recover by itself.
RECOVERED, DEAD = 1, 2

#: Code of a failed RESET.
FAILED = 1
_KINDS = {"correctable": CORRECTED, "uncorrectable": UNCORRECTED, "deferred": DEFERRED}
#: Forms of the driver's prefix: with the GPU's address; of KFD, and of DRM before Linux 6.9 and in
#: DKMS, without it. The number in braces is that of the RAS event.
_PREFIX = (
    rf"(?:amdgpu (?P<pci>{BDF}): |(?:kfd kfd: )?amdgpu: |\[drm:[\w.]{{1,96}} \[amdgpu\]\] |\[drm\] (?=\*ERROR\* ))"
    r"(?:amdgpu: )?(?:\[drm(?::[\w.]{1,96} \[amdgpu\])?\] )?(?:\*ERROR\* )?(?:\{\d{1,20}\})?"
)
#: KFD of Linux before 5.4 prints some lines without a prefix.
_KFD_PREFIX = rf"(?:(?:kfd: )?(?=(?:qcm fence wait|[Tt]he cp might))|{_PREFIX})"
#: Lines after which jobs on the GPU hang until a reset: common substring -> pattern.
_DEAD: dict[str, str] = {
    # the scheduler of queues: MES, HWS, HIQ, KIQ
    "MES": r"(?:MES(?:\(\d\))? failed to respon|MES might be in unrecoverable state"
    r"|(?:\w{1,32} )?failed to (?:add|remove|suspend|resume|map|unmap|reset) [^\n]{0,40}\b(?:from|to|by) MES)",
    "kiq": r"time(?:d )?out waiting for kiq fence",
    "KIQ": r"(?:KIQ [^\n]{0,40}\bfail|failed to \w{1,16} KIQ)",
    "KCQ": r"(?:KCQ|KGQ) (?:enable|disable) failed",
    "qcm fence": r"qcm fence wait loop timeout",
    "queues preemption": r"[Tt]he cp might be in an unrecoverable state",
    "HWS": r"HWS hang",
    "HIQ": r"HIQ MQD's queue_doorbell_id0 is not 0, Queue preemption time out",
    # KFD's queue manager
    "queue": r"Failed to (?:evict|restore|preempt|suspend|resume|unmap) (?:process )?queues?\b",
    "process pid": r"Failed to (?:suspend|evict|restore|resume) process pid",
    "KFD": r"(?:\w{1,48}: )?Failed to (?:quiesce|resume|suspend) KFD",
    # power management's firmware
    "SMU": r"(?:SMU: I'm not done with your|Failed to export SMU metrics table"
    r"|[^\n]{0,60}SMU may be not in the right state|SMU: (?:response:0x[fF]{8}|No response))",
    # engines
    "reset failed": r"Ring (?P<ring>[\w.]{1,32}) reset failed",
    "test failed": r"(?:IB test failed on (?P<engine>[\w.]{1,32}) |ib ring test failed |"
    r"ring (?P<tested_ring>[\w.]{1,32}) test failed )\(-\d{1,5}\)",
}


def _without_counts(parsed: ParsedLine) -> ParsedLine | None:
    """Return None for a line that reports no errors."""
    errors = parsed.attributes.get("errors", "")
    return None if errors.strip("0") == "" and errors else parsed


AMDGPU_RULES = (
    # Newer drivers also print the total since the driver loaded, which is not a new error.
    rule(
        RAS_ERROR,
        "hardware errors detected in",
        rf"{_PREFIX}(?:socket: (?P<socket>\d+),? ?(?:die: (?P<die>\d+),? )?)?(?P<errors>\d{{1,19}}) (?:new )?"
        r"(?P<kind>correctable|uncorrectable|deferred) hardware errors detected in (?!total)(?P<block>\w{1,32}) block",
        codes=("kind", _KINDS),
        scope="block",
        finish=_without_counts,
    ),
    rule(
        RAS_ERROR,
        "uncorrectable hardware error",
        rf"{_PREFIX}(?:RAS event of type (?P<event>\w{{1,64}}) detected|"
        r"uncorrectable hardware error\s?\((?P<source>\w{1,64})\) detected)",
        code=UNCORRECTED,
    ),
    rule(
        RAS_ERROR,
        "threshold",
        rf"{_PREFIX}(?:RAS records:(?P<records>\d{{1,9}}) exceed threshold:|"
        r"Saved bad pages ?\(?(?P<pages>\d{1,9})\)? reaches threshold)",
        code=REPLACE,
    ),
    rule(
        HANG,
        "timeout",
        rf"{_PREFIX}ring (?P<ring>[\w.]{{1,32}}) timeout, but soft recovered",
        code=RECOVERED,
        scope="ring",
    ),
    rule(
        HANG,
        "timeout",
        rf"{_PREFIX}ring (?P<ring>[\w.]{{1,32}}) timeout, signaled seq=",
        scope="ring",
        group="ring",
    ),
    rule(
        HANG,
        "rocess ",
        rf"{_PREFIX} ?Process (?:information: process )?(?P<comm>\S.{{0,63}}?) pid (?P<pid>[1-9]\d{{0,9}}) thread",
        part=LinePart.DETAIL,
        group="ring",
    ),
    *(rule(HANG, word, rf"{_KFD_PREFIX}{pattern}", code=DEAD) for word, pattern in _DEAD.items()),
    rule(
        RESET,
        "GPU ",
        rf"{_PREFIX}GPU (?:reset(?:\(\d{{1,9}}\) failed| end with ret = (?P<error>-\d{{1,5}}))"
        r"|Recovery Failed: (?P<recovery_error>-\d{1,5}))",
        code=FAILED,
    ),
    rule(RESET, "GPU ", rf"{_PREFIX}GPU reset begin!"),
    rule(RESET, "wedged", rf"{_PREFIX}device wedged, needs recovery", code=FAILED),
    rule(
        MESSAGE,
        "atal error during GPU init",
        rf"{_PREFIX}[Ff]atal error during GPU init",
        code=NOT_STARTED,
    ),
    rule(
        MESSAGE,
        "amdgpu",
        rf"amdgpu(?:: probe of)? (?P<pci>{BDF})(?:: probe with driver amdgpu)? failed with error",
        code=NOT_STARTED,
    ),
    rule(OFF_BUS, "device lost from bus", rf"{_PREFIX}device lost from bus"),
)
