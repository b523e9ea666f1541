"""A stand-in GPU that follows a real process (`follow`) and equals the kernel's data of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fake_nvml.parts_scenario import FollowedPower, following, with_gpm
from tests.fake_nvml.scenario import Scenario, gpus

POWER = FollowedPower(idle_watts=70.0, wait_watts=200.0, compute_watts=650.0)
#: A program that follows itself: it reads, computes, reads again, and prints its own data of the
#: time between.
PROGRAM = """
import json, os, struct, sys, time
from pathlib import Path
from tests.fake_nvml.parts_scenario import following, with_gpm
from tests.fake_nvml.scenario import Scenario, gpus
import pynvml as nv

work = Path(sys.argv[1] + ".work")
def count(done): work.write_bytes(struct.pack("Q", done))
def account():
    ran, waited, _ = map(int, Path("/proc/self/schedstat").read_text().split())
    return time.clock_gettime(time.CLOCK_BOOTTIME), (ran + waited) / 1e9

count(0)
gpu = following(with_gpm(gpus(1)[0]), os.getpid(), work, units_per_second_max=1e6, wait_share=0.1)
Scenario(Path(sys.argv[1]), [gpu])
nv.nvmlInit()
handle = nv.nvmlDeviceGetHandleByIndex(0)
samples = [nv.nvmlGpmSampleAlloc() for _ in range(2)]

def look(sample):
    before = account()
    joules = nv.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
    nv.nvmlGpmSampleGet(handle, sample)
    return before, joules, account()

first = look(samples[0])
end = time.thread_time() + 0.2
while time.thread_time() < end:
    pass
count(1000)
second = look(samples[1])
asked = nv.c_nvmlGpmMetricsGet_t()
asked.version, asked.numMetrics = nv.NVML_GPM_METRICS_GET_VERSION, 2
asked.sample1, asked.sample2 = samples
asked.metrics[0].metricId = nv.NVML_GPM_METRIC_SM_UTIL
asked.metrics[1].metricId = nv.NVML_GPM_METRIC_ANY_TENSOR_UTIL
nv.nvmlGpmMetricsGet(asked)
print(json.dumps({
    "first": first, "second": second, "sm": asked.metrics[0].value, "tensor": asked.metrics[1].value,
    "used": nv.nvmlDeviceGetUtilizationRates(handle).gpu, "watts": nv.nvmlDeviceGetPowerUsage(handle) / 1000,
    "pids": [one.pid for one in nv.nvmlDeviceGetComputeRunningProcesses(handle)], "pid": os.getpid(),
}))
"""
#: The kernel updates the time of a running process at ticks of at most 10 ms.
TICK_SECONDS = 0.011

ENDED = """
import json
import pynvml as nv
nv.nvmlInit()
handle = nv.nvmlDeviceGetHandleByIndex(0)
print(json.dumps([nv.nvmlDeviceGetUtilizationRates(handle).gpu, nv.nvmlDeviceGetPowerUsage(handle) / 1000,
                  nv.nvmlDeviceGetTotalEnergyConsumption(handle)]))
"""


def told(program: str, scenario: Path, library: str) -> Any:
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(Path(library).parent),
        "GANGLINE_FAKE_NVML": str(scenario),
    }
    command = [sys.executable, "-c", program, str(scenario)]
    out = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(out.stdout)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="no /proc/PID/schedstat")
def test_energy_occupancy_and_work_are_those_of_the_process(tmp_path: Path, library: str) -> None:
    """A stand-in that invented the process' behavior would judge itself."""
    result = told(PROGRAM, tmp_path / "scenario", library)
    (outer, begin_joules, inner), (inner_end, end_joules, outer_end) = (
        result["first"],
        result["second"],
    )
    joules = end_joules - begin_joules
    computing = POWER.compute_watts - POWER.wait_watts
    seconds_min, seconds_max = inner_end[0] - inner[0], outer_end[0] - outer[0]
    busy_min = inner_end[1] - inner[1] - TICK_SECONDS
    busy_max = outer_end[1] - outer[1] + TICK_SECONDS
    minimum = POWER.wait_watts * seconds_min + computing * busy_min
    maximum = POWER.wait_watts * seconds_max + computing * busy_max
    assert minimum <= joules <= maximum
    duty_min, duty_max = busy_min / seconds_max, min(1.0, busy_max / seconds_min)
    assert 10.0 + 90.0 * duty_min <= result["sm"] + 1e-6
    assert result["sm"] <= 10.0 + 90.0 * duty_max + 1e-6
    rates = (100.0 * 1000 / seconds / 1e6 for seconds in (seconds_max, seconds_min))
    minimum, maximum = rates
    assert minimum - 1e-9 <= result["tensor"] <= maximum + 1e-9
    assert result["used"] == 100 and result["pids"] == [result["pid"]]
    assert POWER.wait_watts < result["watts"] <= POWER.compute_watts


def test_a_gpu_whose_process_ended_is_idle(tmp_path: Path, library: str) -> None:
    """An ended process computes nothing, even if its number was reused."""
    child = subprocess.Popen(["true"])
    child.wait()
    gpu = following(
        with_gpm(gpus(1)[0]), child.pid, tmp_path / "none", units_per_second_max=1.0, power=POWER
    )
    Scenario(tmp_path / "scenario", [gpu])
    used, watts, energy = told(ENDED, tmp_path / "scenario", library)
    assert (used, watts) == (0, POWER.idle_watts) and energy > 0
