"""Power, clock, heat and counters of a set of hosts, from step to step of any length."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .. import parts
from ..levels import (
    BRAKED_CELSIUS,
    CLOCK_HERTZ,
    CLOCK_IDLE_HERTZ,
    CLOCK_STEP_HERTZ,
    OWN_ACTIVITY,
    OWN_BANDWIDTH,
    OWN_SM_ACTIVE,
    OWN_TENSOR,
    POWER_EXPONENT,
    POWER_NOISE,
    REASON_GPU_IDLE,
    REASON_HW_SLOWDOWN,
    REASON_POWER_BRAKE,
    REASON_SW_POWER_CAP,
    REASON_SW_THERMAL,
    WAIT_ACTIVITY,
    WAIT_SM_ACTIVE,
    Phase,
)
from ..ports import EXCHANGE_SHARE, OVERLAPPED_SHARE, RATE_BYTES_PER_SECOND
from .channels import Channels, Flags
from .gangs import Gangs, Shares
from .hardware import Hardware
from .noise import Floats, Noise

#: Dies and coolers follow their load with this time constant.
HEAT_SECONDS = 40.0
#: A power limit that is lowered stands this little above what is drawn at work.
AT_LIMIT = 1.01


@dataclass(slots=True)
class Now:
    """The gauges of one moment; arrays are (hosts, 8)."""

    shares: Shares
    channels: Channels
    watts: Floats  # of this very moment: computing or waiting
    mean_watts: Floats
    clock_hertz: Floats
    mean_clock_hertz: Floats
    limit_watts: Floats
    flags: np.typing.NDArray[np.int64]
    sm_active: Floats
    tensor_active: Floats
    bandwidth: Floats
    port_bytes_per_second: Floats
    narrow: Flags  # the link sleeps: nothing moves over it


@dataclass(slots=True)
class Counters:
    """What adds up since the boot, or for life. Arrays are (hosts, 8)."""

    shape: tuple[int, int]
    joules: Floats = field(init=False)
    moved: Floats = field(init=False)
    thermal_ns: Floats = field(init=False)
    power_ns: Floats = field(init=False)
    brake_ns: Floats = field(init=False)
    corrected: Floats = field(init=False)
    uncorrected: Floats = field(init=False)
    replays: Floats = field(init=False)
    crc: Floats = field(init=False)
    resent: Floats = field(init=False)
    symbols: Floats = field(init=False)
    marked: Floats = field(init=False)
    downed: Floats = field(init=False)

    def __post_init__(self) -> None:
        for name in COUNTERS:
            setattr(self, name, np.zeros(self.shape))

    def clear(self, hosts: Flags) -> None:
        """Begin anew on *hosts*, which have booted."""
        for name in COUNTERS:
            getattr(self, name)[hosts] = 0.0


COUNTERS = (
    "joules", "moved", "thermal_ns", "power_ns", "brake_ns", "corrected", "uncorrected", "replays",
    "crc", "resent", "symbols", "marked", "downed",
)  # fmt: skip


class Physics:
    """The state of a set of hosts that the next step needs."""

    def __init__(self, hardware: Hardware, hosts: np.typing.NDArray[np.int64]) -> None:
        """*hosts*: their indexes in the world."""
        self._part = {
            name: getattr(hardware, name)[hosts]
            for name in ("clock", "memory_bound", "idle_watts", "dynamic_watts", "resistance",
                         "ambient_celsius", "trickle", "resent")
        }  # fmt: skip
        self.shape = self._part["clock"].shape
        self.counters = Counters(self.shape)
        self.celsius: Floats = self._part["ambient_celsius"] + self._part["resistance"] * 420.0

    def speeds(self, gangs: Gangs, channels: Channels) -> tuple[Floats, Floats]:
        """Return each part's pace at the work of its job, and its clock over the nominal one."""
        clock = self._part["clock"] * channels.speed
        bound = self._part["memory_bound"] * channels.speed
        work = np.where(gangs.is_memory_bound[:, None], bound, clock) * channels.work
        return work, clock

    def now(
        self,
        gangs: Gangs,
        shares: Shares,
        span: Shares,
        channels: Channels,
        clock: Floats,
        noise: Noise,
        tick: int,
    ) -> Now:
        """Return what the gauges show; nothing changes but what `advance` does.

        *shares* say what is done at this very moment, *span* what means are of.
        """
        idle, dynamic = self._part["idle_watts"], self._part["dynamic_watts"] * gangs.power[:, None]
        slow = channels.speed**POWER_EXPONENT
        phase = shares.phase[:, None] * np.ones(parts.GPUS)
        at_work = shares.at_work[:, None] & ~channels.lost
        gap = at_work & (phase < shares.gap)
        computes = at_work & ~gap & (phase < shares.gap + shares.compute)
        sends = at_work & (phase >= 1 - shares.exchange)
        exchange, pause = OWN_ACTIVITY[Phase.COMMUNICATE], OWN_ACTIVITY[Phase.GAP]
        activity = np.select([gap, computes, sends], [pause, slow, exchange], WAIT_ACTIVITY)
        mean = span.compute * slow + span.exchange * exchange + span.gap * pause
        mean = mean + span.wait * WAIT_ACTIVITY
        stray = 1 + POWER_NOISE * noise.normal(tick, 3)
        watts = (idle + dynamic * np.where(at_work, activity, 0.0)) * stray
        mean_watts = (idle + dynamic * np.where(at_work, mean, 0.0)) * stray
        hertz = np.minimum(
            CLOCK_HERTZ * clock * (1 + 0.002 * noise.normal(tick, 4)), parts.SM_CLOCK_MAX_HERTZ
        )
        hertz = np.where(
            at_work, np.round(hertz / CLOCK_STEP_HERTZ) * CLOCK_STEP_HERTZ, CLOCK_IDLE_HERTZ
        )
        lowered = (idle + dynamic * slow) * AT_LIMIT
        overlapped = shares.exchange * OVERLAPPED_SHARE / (1 - OVERLAPPED_SHARE)
        moved = (span.exchange + overlapped) * EXCHANGE_SHARE * RATE_BYTES_PER_SECOND
        # A collective ties its ports together: in a step each moves as much as any other.
        moved = moved * shares.port[:, None] * at_work * ~channels.port_down
        return Now(
            shares=span,
            channels=channels,
            watts=watts,
            mean_watts=mean_watts,
            clock_hertz=hertz,
            mean_clock_hertz=np.where(at_work, CLOCK_HERTZ * clock, CLOCK_IDLE_HERTZ),
            limit_watts=np.where(channels.limit < 1, np.round(lowered), parts.POWER_LIMIT_WATTS),
            flags=self._flags(channels, computes, at_work, noise, tick),
            sm_active=mix(span, OWN_SM_ACTIVE, WAIT_SM_ACTIVE) * at_work,
            # Every rank does its share of work in the same wall time: one that does less in a cycle is busy for more.
            tensor_active=mix(span, OWN_TENSOR, 0.0) * channels.work * at_work,
            bandwidth=mix(span, OWN_BANDWIDTH, 0.0) * channels.work * at_work,
            port_bytes_per_second=moved,
            narrow=~at_work,
        )

    def _flags(
        self, channels: Channels, computes: Flags, at_work: Flags, noise: Noise, tick: int
    ) -> np.typing.NDArray[np.int64]:
        draw = noise.uniform(tick, 5)
        flags = np.where(at_work, 0, REASON_GPU_IDLE).astype(np.int64)
        flags |= np.where(at_work & (draw < channels.thermal), REASON_SW_THERMAL, 0)
        flags |= np.where(computes & (draw < channels.capped), REASON_SW_POWER_CAP, 0)
        held = at_work & (draw < channels.braked)
        return flags | np.where(held, REASON_POWER_BRAKE | REASON_HW_SLOWDOWN, 0)

    def advance(self, now: Now, seconds: float, noise: Noise, tick: int) -> None:
        """Let *seconds* pass as *now* has it: heat, energy, counters."""
        channels, counters = now.channels, self.counters
        aim = self._part["ambient_celsius"] + self._part["resistance"] * now.mean_watts
        hot = channels.heat * now.shares.at_work[:, None]
        aim = aim + hot * np.maximum(BRAKED_CELSIUS + 0.5 - aim, 0.0)
        # What an onset brings is there when the onset says so; only what is left follows the lag.
        fade = np.maximum(-np.expm1(-seconds / HEAT_SECONDS), hot)
        self.celsius = self.celsius + (aim - self.celsius) * fade
        working = now.shares.at_work[:, None] * np.ones(parts.GPUS)
        counters.joules += now.mean_watts * seconds
        counters.moved += now.port_bytes_per_second * seconds
        counters.thermal_ns += np.floor(channels.thermal * working * seconds * 1e9)
        counters.power_ns += np.floor(channels.capped * now.shares.compute * seconds * 1e9)
        counters.brake_ns += np.floor(channels.braked * working * seconds * 1e9)
        counters.uncorrected += channels.uncorrected
        counters.downed += channels.downed
        for number, (name, rate) in enumerate((
            ("corrected", channels.corrected + self._part["trickle"]),
            ("replays", channels.replays),
            ("crc", channels.crc),
            ("resent", channels.retransmits + self._part["resent"]),
            ("symbols", channels.symbols),
            ("marked", channels.marked),
        )):  # fmt: skip
            total = getattr(counters, name)
            total += _counted(rate * seconds, noise, tick, 10 + 2 * number)


def _counted(mean: Floats, noise: Noise, tick: int, channel: int) -> Floats:
    """Return a whole number for each mean, of that mean, and of about its square root as deviation."""
    spread = np.maximum(mean + np.sqrt(mean) * noise.normal(tick, channel) * (mean > 4), 0.0)
    return np.asarray(np.floor(spread + noise.uniform(tick, channel + 1)))


def mix(shares: Shares, own: dict[Phase, float], waiting: float) -> Floats:
    """Return the mean over the step of what each state shows."""
    return (
        shares.compute * own[Phase.COMPUTE]
        + shares.exchange * own[Phase.COMMUNICATE]
        + shares.gap * own[Phase.GAP]
        + shares.wait * waiting
    )
