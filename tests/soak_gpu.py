"""`make soak-gpu`: the real agent on a host with eight stand-in GPUs, one of which hangs for 45 s; who was sampled on time.

    python -m tests.soak_gpu --seconds 3600 --hang 45 --seed 1

The seed chooses the GPU, the call and the second. Counted is what the agent's frames say: of each second, whether there
is a sample of each GPU and of the host within half a period of it.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from gangline.contract.block import Block
from gangline.contract.signals import BY_NAME
from tests.agent.sampler.real_agent import RealAgent, is_sampled
from tests.fake_nvml.scenario import gpus
from tests.processes import until

SECOND = 1_000_000_000
BAR_CHARACTERS = 40
#: Minimum share of the other GPUs' samples that are on time.
ON_TIME_MIN = 0.999
#: Calls that each second makes of each GPU.
CALLS = ("nvmlDeviceGetFieldValues", "nvmlDeviceGetClockInfo", "nvmlDeviceGetUtilizationRates")
#: The first seconds open the GPUs; the last frame may not have left.
MARGIN_SECONDS = 3


@dataclass(frozen=True)
class Soaked:
    """The result."""

    sick: str
    call: str
    on_time: dict[str, float]  # of each GPU, and of `host`
    after: int  # samples of the sick GPU after it answered again
    recovered_seconds: float  # from its answer to the first of them
    named_seconds: float  # from the call's begin to the first frame that names it
    processes: float  # at the most
    log: str

    @property
    def others(self) -> float:
        """Return the minimum over the healthy GPUs."""
        return min(share for name, share in self.on_time.items() if name != self.sick)


class Ground:
    """The host, its GPUs, and an agent on it."""

    def __init__(self, folder: Path, source: random.Random) -> None:
        devices = gpus(8)
        self.sick, self.call = source.choice(devices), source.choice(CALLS)
        self._answer = folder / "answer"
        self._answer.touch()
        self.sick.lines.append(f"block {self.call} file {self._answer}")
        self.uuids = [gpu.uuid for gpu in devices]
        self.agent = RealAgent(folder, devices)

    def hang(self) -> None:
        """Make the call wait for its answer, at most a minute."""
        self._answer.unlink()

    def answer(self) -> None:
        self._answer.touch()


def soak(
    folder: Path, seconds: int, hang_seconds: float, seed: int, *, quiet: bool = False
) -> Soaked:
    """Run the agent for *seconds*, with a GPU that hangs for *hang_seconds* after about a third of them."""
    source = random.Random(seed)
    os.environ["GANGLINE_FAKE_NVML"] = str(folder / "scenario")
    ground = Ground(folder, source)
    begins = seconds * source.uniform(0.3, 0.4)
    with ground.agent as agent:
        temperatures = "gangline_gpu_temperature_celsius", "uuid"
        until(lambda: len(agent.series(*temperatures)) == len(ground.uuids), "all GPUs read")
        began = time.clock_gettime(time.CLOCK_BOOTTIME)
        acts = [(begins, ground.hang), (begins + hang_seconds, ground.answer)]
        while (passed := time.clock_gettime(time.CLOCK_BOOTTIME) - began) < seconds:
            while acts and passed >= acts[0][0]:
                acts.pop(0)[1]()
            if not quiet:
                _bar(passed, seconds, ground, hanging=len(acts) == 1)
            time.sleep(min(0.5, max(0.0, acts[0][0] - passed)) if acts else 0.5)
        agent.stop()
        log = agent.said()
    first = int(began) + MARGIN_SECONDS
    return _count(ground, range(first, int(began) + seconds - 1), began + begins, hang_seconds, log)


def _count(ground: Ground, grid: range, hung_at: float, hang_seconds: float, log: str) -> Soaked:
    sampled: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    named, processes = 0.0, 0.0
    for frame in ground.agent.frames():
        for block in frame.blocks:
            at_ns = frame.stamp.boottime_ns + block.offset_ns
            for row, device in enumerate(block.devices):
                if is_sampled(block, row):
                    sampled[block.table, device].add(round(at_ns / SECOND))
            if block.table == "gpu_1s_probe" and not named:
                named = frame.stamp.boottime_ns / SECOND - hung_at
            if block.table == "agent_10s":
                processes = max(processes, _value(block, "agent.processes_count"))
    shares = {
        name: sum(second in sampled[table, name] for second in grid) / len(grid)
        for table, name in [*(("gpu_1s", uuid) for uuid in ground.uuids), ("host_1s", "host")]
    }
    after = {s for s in sampled["gpu_1s", ground.sick.uuid] if s > hung_at + hang_seconds}
    answered_at = hung_at + hang_seconds
    recovered = min(after, default=answered_at) - answered_at
    return Soaked(
        ground.sick.uuid, ground.call, shares, len(after), recovered, named, processes, log
    )


def _value(block: Block, name: str) -> float:
    return float(dict(block.values(0)).get(BY_NAME[name].signal_id) or 0.0)


def _bar(passed: float, seconds: int, ground: Ground, *, hanging: bool) -> None:
    filled = int(BAR_CHARACTERS * passed / seconds)
    state = f"GPU {ground.sick.address} hangs in {ground.call}" if hanging else "all answer"
    bar = f"[{'#' * filled}{'.' * (BAR_CHARACTERS - filled)}]"
    print(f"\r{bar} {passed:.0f} of {seconds} s: {state:<60}", end="", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make soak-gpu", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--hang", type=float, default=45.0, help="seconds that one GPU hangs")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gangline-soak-") as folder:
        result = soak(Path(folder), options.seconds, options.hang, options.seed)
    print(
        f"\n{result.sick} hung in {result.call} for {options.hang} s of {options.seconds} s (seed {options.seed})"
    )
    for name, share in result.on_time.items():
        print(f"  {name:<45} {share:.4f}{'  the one that hung' if name == result.sick else ''}")
    print(f"named {result.named_seconds:.1f} s after its call began; sampled again {result.after} times, "
          f"{result.recovered_seconds:.1f} s after it answered; at most {result.processes:.0f} processes")  # fmt: skip
    wanted = min(ON_TIME_MIN, 1.0 - 3.0 / options.seconds)
    good = result.others >= wanted and 0.0 < result.named_seconds <= 2.5 and result.after > 0
    print(
        f"the others' samples on time: {result.others:.4f}, wanted {wanted:.4f}: {'good' if good else 'NOT GOOD'}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
