"""The injected faults with their expected result, and look-alikes that must not be named.

To add a fault: write a function that takes a host before its start and injects the
fault, and a row of KINDS.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.quality.injected_hosts import CLOCK_MEGAHERTZ, USER, InjectedHostFolder
from gangline.aggregator.model import HealthState, Reason
from tests.fake_nvml.scenario import Gpu, Steps
from tests.fake_nvml.sick import is_lost
from tests.processes import with_group

#: Actions on a host: prepare before its start, up to the first yield; then inject. Each yield is
#: the seconds to wait before the next action.
Act = Iterator[float]
Doing = Callable[[InjectedHostFolder], Act]

LINK = "sys/class/infiniband/{}/ports/1/{}"
FUNCTION = "sys/bus/pci/devices/{}/{}"
XIDS = {
    43: "pid=4711, name=python3, Ch 00000008",
    48: "pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 4, subpartition 1.",
    79: "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    119: "pid=4711, name=python3, Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20802068 0x4).",
}  # fmt: skip
#: Clock event reasons, as NVML flags.
POWER_CAP, HEAT = 0x4, 0x20 | 0x40

#: Values that the driver also reports as a field.
SAME_FIELDS = {
    "ecc_corrected_volatile": (3,),
    "ecc_uncorrected_volatile": (4,),
    "power": (185, 186),
}
U, S, D, W = HealthState.UNHEALTHY, HealthState.SUSPECT, HealthState.DEGRADED, HealthState.WATCH
LOG, NVML, SYSFS = "kernel log (FIFO)", "fake NVML", "fake sysfs"


@dataclass(frozen=True)
class InjectedKind:
    """One row. Without reasons it is a control: nothing may be named."""

    name: str
    boundary: str
    act: Doing
    states: tuple[HealthState, ...] = ()
    reasons: tuple[Reason, ...] = ()
    about: Callable[[InjectedHostFolder], tuple[str, ...]] = lambda host: ()  # names of its device
    is_lasting: bool = True  # until the end of watching

    @property
    def is_control(self) -> bool:
        return not self.reasons


def _gpu(host: InjectedHostFolder) -> tuple[str, ...]:
    return host.gpu.uuid, host.gpu.address


def _port(host: InjectedHostFolder) -> tuple[str, ...]:
    return (f"{host.rdma}/1",)


def _shows(**values: Steps) -> Doing:
    """Make the GPU show these values after the injection."""

    def act(host: InjectedHostFolder) -> Act:
        _change(host.gpu, values)
        yield 0.0
        host.step()

    return act


def _change(gpu: Gpu, values: dict[str, Steps]) -> None:
    """Set the next values of *gpu*, and of the NVML fields with the same content."""
    for name, then in values.items():
        later = [then] if isinstance(then, int | str) else list(then)
        before = gpu.values[name]
        assert isinstance(before, int | str)
        gpu.values[name] = [before, *later]
        for number in SAME_FIELDS.get(name, ()):
            kind, first = gpu.fields[number]
            assert isinstance(first, int | str)
            gpu.fields[number] = (kind, [first, *later])


def _repairs(errors: int, seconds: float, times: int) -> Doing:
    def act(host: InjectedHostFolder) -> Act:
        _change(host.gpu, {"ecc_corrected_volatile": [errors * (n + 1) for n in range(times)]})
        yield 0.0
        for _ in range(times):
            host.step()
            yield seconds

    return act


def _hangs(host: InjectedHostFolder) -> Act:
    call = host.source.choice(("nvmlDeviceGetFieldValues", "nvmlDeviceGetClockInfo", "nvmlDeviceGetUtilizationRates"))  # fmt: skip
    host.gpu.lines.append(f"block {call} at 1 file {host.folder / 'never'}")
    yield 0.0
    host.step()


def _falls_off(host: InjectedHostFolder) -> Act:
    is_lost(host.gpu)
    yield 0.0
    host.step()


def _narrows(host: InjectedHostFolder) -> Act:
    _change(host.gpu, {"pcie_width": 8})
    yield 0.0
    host.write(FUNCTION.format(host.gpu.address, "current_link_width"), "8")
    host.step()


def _goes_idle(host: InjectedHostFolder) -> Act:
    idle: dict[str, Steps] = {
        "utilization": 0, "memory_utilization": 0, "power": 69_850, "sm_clock": 345, "event_reasons": 0x1,
        "pcie_generation": 1, "performance_state": 8, "temperature": 41, "graphics_clock": 345,
    }  # fmt: skip
    for gpu in host.gpus:
        _change(gpu, idle)
    yield 0.0
    for gpu in host.gpus:
        host.write(FUNCTION.format(gpu.address, "current_link_speed"), "2.5 GT/s PCIe")
    host.step()


def _caps_power(host: InjectedHostFolder) -> Act:
    """A rack at its power limit: every GPU is a few percent slower and reports the reason."""
    for gpu in host.gpus:
        _change(gpu, {"power": 698_000, "event_reasons": POWER_CAP, "sm_clock": round(0.95 * CLOCK_MEGAHERTZ)})  # fmt: skip
    yield 0.0
    host.step()


def _log_xid(code: int, facility: int = 0) -> Doing:
    def act(host: InjectedHostFolder) -> Act:
        yield 0.0
        at = host.gpu.address.rpartition(".")[0]
        host.log.write(f"NVRM: Xid (PCI:{at}): {code}, {XIDS[code]}", facility)

    return act


def _counts(counter: str, each: int, seconds: float = 0.5, times: int = 40) -> Doing:
    def act(host: InjectedHostFolder) -> Act:
        yield 0.0
        file = LINK.format(host.rdma, counter)
        before = int((host.folder / file).read_text())
        for n in range(times):
            host.write(file, str(before + each * (n + 1)))
            yield seconds

    return act


def _port_down(host: InjectedHostFolder) -> Act:
    yield 0.0
    host.write(LINK.format(host.rdma, "phys_state"), "2: Polling")
    host.write(LINK.format(host.rdma, "state"), "1: DOWN")


def _carrier(up: bool, changes: int) -> Callable[[InjectedHostFolder], None]:
    def write(host: InjectedHostFolder) -> None:
        host.write("sys/class/net/eno1/carrier", str(int(up)))
        host.write("sys/class/net/eno1/carrier_changes", str(2 + changes))
        host.write("sys/class/net/eno1/operstate", "up" if up else "down")

    return write


def _loses_carrier(host: InjectedHostFolder) -> Act:
    yield 0.0
    _carrier(False, 1)(host)


def _flaps(host: InjectedHostFolder) -> Act:
    yield 0.0
    for change in range(1, 9):
        _carrier(change % 2 == 0, change)(host)
        yield 1.5


def _stopped(host: InjectedHostFolder) -> Act:
    yield 0.0
    with_group(host.agent.pid, signal.SIGSTOP)


def _cut(host: InjectedHostFolder) -> Act:
    host.lay_cable()
    yield 0.0
    assert host.cable
    host.cable.cut()
    yield 25.0
    host.cable.mend()


def _clock_off(host: InjectedHostFolder) -> Act:
    host.keep_clock()
    yield 0.0
    assert host.clock
    host.clock.set(clock_seconds=host.source.choice((-1, 1)) * host.source.uniform(5, 3600))


def _killed(host: InjectedHostFolder) -> Act:
    yield 0.0
    host.agent.kill()
    yield 1.0
    host.log.again()
    host.agent.start()


def _restarted(host: InjectedHostFolder) -> Act:
    yield 0.0
    host.agent.stop()
    host.log.again()
    host.agent.start()


def _rebooted(host: InjectedHostFolder) -> Act:
    yield 0.0
    host.agent.stop()
    yield 5.0
    host.boot()
    host.agent.start()


def _nothing(host: InjectedHostFolder) -> Act:
    yield 0.0


KINDS = (
    InjectedKind("XID 48, uncorrectable memory error", LOG, _log_xid(48), (U,), (Reason.ECC_TREND,), _gpu),
    InjectedKind("XID 79, off the bus", LOG, _log_xid(79), (U,), (Reason.XID_FATAL,), _gpu),
    InjectedKind("XID 119, GSP does not answer", LOG, _log_xid(119), (U,), (Reason.DRIVER_HUNG,), _gpu),
    InjectedKind("a GPU's calls do not return", NVML, _hangs, (U,), (Reason.DRIVER_HUNG,), _gpu),
    InjectedKind("every call says: GPU is lost", NVML, _falls_off, (U,), (Reason.GPU_UNUSABLE,), _gpu),
    InjectedKind("20 corrected bit errors a second", NVML, _repairs(10, 0.5, 40), (S, W), (Reason.ECC_TREND,), _gpu),
    InjectedKind("an uncorrected bit error, no XID", NVML, _shows(ecc_uncorrected_volatile=1), (S,), (Reason.ECC_TREND,), _gpu),
    InjectedKind("a row remap is pending", NVML, _shows(remap_pending=1, remapped_uncorrectable=1), (W,), (Reason.HBM_REMAP,), _gpu),
    InjectedKind("a row remap failed", NVML, _shows(remap_failed=1), (U,), (Reason.HBM_REMAP,), _gpu),
    InjectedKind("clock at 85 %, held by heat", NVML,
         _shows(sm_clock=round(0.85 * CLOCK_MEGAHERTZ), event_reasons=HEAT, temperature=88, margin=1),
         (D,), (Reason.THERMAL_THROTTLE,), _gpu),
    InjectedKind("PCIe link at 8 of 16 lanes, at work", f"{NVML}, {SYSFS}", _narrows, (D,), (Reason.PCIE,), _gpu),
    InjectedKind("RDMA link_downed counts once", SYSFS, _counts("counters/link_downed", 1, times=1), (S,), (Reason.RAIL_DOWN,), _port),
    InjectedKind("100 RDMA symbol errors a second", SYSFS, _counts("counters/symbol_error", 50), (S, W), (Reason.FABRIC,), _port),
    InjectedKind("100 RDMA retransmissions a second", SYSFS, _counts("hw_counters/packet_seq_err", 50), (S,), (Reason.FABRIC,), _port),
    InjectedKind("an RDMA port is down", SYSFS, _port_down, (U,), (Reason.RAIL_DOWN,), _port),
    InjectedKind("Ethernet loses its carrier", SYSFS, _loses_carrier, (W,), (Reason.RAIL_DOWN,), lambda host: ("eno1",)),
    InjectedKind("Ethernet carrier flaps, 8 changes", SYSFS, _flaps, (W,), (Reason.RAIL_DOWN,), lambda host: ("eno1",)),
    InjectedKind("agent stopped (SIGSTOP)", "process", _stopped, (HealthState.STALE,), (Reason.STALE_TELEMETRY,)),
    InjectedKind("network cut for 25 s, then backlog", "TCP relay", _cut, (HealthState.STALE,), (Reason.STALE_TELEMETRY,), is_lasting=False),
    InjectedKind("wall clock off by 5 s to an hour", "clock_gettime (LD_PRELOAD)", _clock_off, (W,), (Reason.CLOCK,)),
    InjectedKind("healthy, at work", "nothing", _nothing),
    InjectedKind("job ends: idle, PCIe links shrink", f"{NVML}, {SYSFS}", _goes_idle),
    InjectedKind("all GPUs at the power limit, 95 % clock", NVML, _caps_power),
    InjectedKind("XID 43, a program's own fault", LOG, _log_xid(43)),
    InjectedKind("a user writes an XID 79 into the log", LOG, _log_xid(79, USER)),
    InjectedKind("one corrected bit error each 5 s", NVML, _repairs(1, 5.0, 8)),
    InjectedKind("agent kill -9, started again", "process", _killed),
    InjectedKind("agent restarted", "process", _restarted),
    InjectedKind("planned reboot: stop, other boot id, start", "process", _rebooted),
)  # fmt: skip
