"""Releasing GPUs: on command, by the driver's own signs, for a time; and quarantined GPUs."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.driver_unbind import UNBIND_NS_MAX, DriverUnbindTracker, is_unbind
from gangline.agent.gpu_release import (
    CALLBACKS_MAX,
    HANDLE_POLL_NS,
    RELEASE_NS_MAX,
    RELEASE_SECONDS_DEFAULT,
    UNBIND_REASON,
    CallbackQueue,
    GpuReleaser,
    UnreleasedHandle,
)
from gangline.agent.hardware.files import Roots
from gangline.agent.kernel_log.rules import classify
from gangline.agent.release_state import ReleasedGpu, ReleaseStateFile
from gangline.agent.xid_quarantine import (
    FRESH_NS_MAX,
    HANGING_XIDS,
    REPEAT_NS_MIN,
    XidQuarantine,
    address_of,
)
from gangline.contract.wire.telemetry_pb2 import HealthEvent
from tests.agent.fakes import HandedClock

SECOND_NS = 1_000_000_000
A, B = "0000:1b:00.0", "0000:9b:00.0"
WAITS = f"NVRM: Attempting to remove device {A} with non-zero usage count!"


class State(IntEnum):
    WELL = 0
    HUNG = 1
    ABANDONED = 2


@dataclass
class Stuck:
    device: str = B
    group: str = "gpu"
    state: State = State.ABANDONED
    call: str = "nvmlDeviceGetFieldValues"
    hung_seconds: float = 45.0
    abandoned_count: int = 1
    next_try_ns: int = 0


@dataclass
class Samplers:
    """Releases GPUs; `holding` represents processes that have not ended yet."""

    clock: HandedClock
    holding: bool = False
    holds: str | None = None  # only this GPU
    abandoned_count: int = 0
    until_ns: dict[str | None, int] = field(default_factory=dict)
    alone: list[tuple[str, str]] = field(default_factory=list)
    stuck: list[Stuck] = field(default_factory=list)

    def release(self, devices: frozenset[str] | None, seconds: float) -> None:
        for device in [None] if devices is None else devices:
            self.until_ns[device] = self.clock.now_ns + int(seconds * 1e9)

    def resume(self, devices: frozenset[str] | None) -> None:
        for device in list(self.until_ns) if devices is None else devices:
            self.until_ns.pop(device, None)

    def released(self) -> dict[str | None, int]:
        return {d: ns for d, ns in self.until_ns.items() if ns > self.clock.now_ns}

    def may_hold(self, devices: frozenset[str] | None) -> bool:
        return self.holding and (devices is None or self.holds is None or self.holds in devices)

    def quarantine_gpu(self, device: str, reason: str) -> None:
        self.alone.append((device, reason))

    def states(self) -> Sequence[Stuck]:
        return self.stuck


@dataclass
class ReleaseHost:
    """A host with two GPUs bound to the driver, and the agent's releaser."""

    root: Path

    def __post_init__(self) -> None:
        self.clock = HandedClock()
        self.samplers = Samplers(self.clock)
        self.told: list[HealthEvent] = []
        self.answers: list[Sequence[UnreleasedHandle]] = []
        self.drivers = self.root / "sys/bus/pci/drivers/nvidia"
        self.drivers.mkdir(parents=True)
        (self.drivers / "new_id").touch()
        for minor, address in enumerate((A, B)):
            (self.drivers / address).touch()
            folder = self.root / "proc/driver/nvidia/gpus" / address
            folder.mkdir(parents=True)
            (folder / "information").write_text(
                f"Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-{minor:08x}-0000-0000-0000-000000000000\n"
                f"Device Minor: \t {minor}\n"
            )
        self.mailbox = CallbackQueue()
        self.roots = Roots(self.root / "sys", self.root / "proc", dev=self.root / "dev")
        self.inventories: list[str] = []
        self.way = self.begin()

    def begin(self, roots: Roots | None = None) -> GpuReleaser:
        """Start a releaser like an agent: releases of an earlier agent stay in force."""
        file = ReleaseStateFile(self.root, b"boot")
        before = file.read(self.clock.now_ns)
        self.samplers.until_ns = {released.address: released.until_ns for released in before}
        nodes = {"nvidia0": A, "nvidia1": B}
        return GpuReleaser(
            cast(Any, self.samplers),
            self.mailbox,
            self.clock,
            roots or self.roots,
            cast(Any, self),
            file,
            lambda: nodes,
        )

    def publish(self, event: HealthEvent) -> None:
        self.told.append(event)

    def request_inventory(self, reason: str) -> None:
        self.inventories.append(reason)

    def release(self, *devices: str, seconds: float = 600.0) -> None:
        self.way.release(frozenset(devices) or None, seconds, "reset", self.answers.append)

    def observe(self, event: HealthEvent) -> None:
        self.way.observe(event)
        self.way.tick()

    def later(self, seconds: float) -> int | None:
        self.clock.now_ns += int(seconds * SECOND_NS)
        return self.way.tick()

    def message(self) -> list[tuple[str, int, str]]:
        return [(event.device, event.code, event.message) for event in self.told]


@pytest.fixture
def host(tmp_path: Path) -> ReleaseHost:
    return ReleaseHost(tmp_path)


def test_a_release_is_answered_once_nobody_holds_it(host: ReleaseHost) -> None:
    host.samplers.holding = True
    host.release(A)
    assert not host.answers
    soon_ns = host.later(0.02)
    assert not host.answers and soon_ns == host.clock.now_ns + HANDLE_POLL_NS
    host.samplers.holding = False
    assert host.later(0.02) is None, "nobody waits: no wake-ups"
    assert host.answers == [[]]
    assert host.message() == [(A, 0, f"released: {A} (reset)")]


def test_a_sampler_stuck_in_the_driver_is_named_with_its_call(host: ReleaseHost) -> None:
    """The operator at three in the morning must not read that everything is free."""
    host.samplers.holding, host.samplers.stuck = True, [Stuck(), Stuck("x", state=State.WELL)]
    host.release()
    host.later(RELEASE_NS_MAX / SECOND_NS)
    message = f"nvmlDeviceGetFieldValues on {B} has not returned for 45 s"
    assert host.answers == [[UnreleasedHandle("", 0, message)]]
    assert host.samplers.released() != {}, "it stays let go of"


def test_the_kernels_word_counts_more_than_the_samplers(host: ReleaseHost) -> None:
    """A descriptor kept after the shutdown would defeat the reset, whatever the agent reports."""
    proc = host.root / "proc"
    (proc / "4711/fd").mkdir(parents=True)
    (proc / "4711/task/4711").mkdir(parents=True)
    (proc / "4711/task/4711/children").write_text("4712 ")
    (proc / "4712/fd").mkdir(parents=True)
    (proc / "self").symlink_to("4711")
    left = proc / "4712/fd/9"
    left.symlink_to(host.root / "dev/nvidia1")
    host.release(A)
    assert host.answers == [[]], "it is another GPU's"
    host.release(B)
    assert len(host.answers) == 1
    left.unlink()
    host.later(0.02)
    assert host.answers == [[], []]
    left.symlink_to("/dev/nvidiactl")
    host.release()
    host.later(RELEASE_NS_MAX / SECOND_NS)
    assert host.answers[2] == [UnreleasedHandle("", 4712, "")], "an unload is defeated by any node"


def test_it_is_taken_back_at_its_expiry_and_told(host: ReleaseHost) -> None:
    host.release(A, seconds=600)
    host.later(599)
    assert [released.address for released in host.way.released()] == [A]
    host.later(2)
    assert host.way.released() == []
    assert host.message()[-1] == (A, 1, f"resumed: {A} (its release expired)")
    assert len(host.told) == 2
    assert len(host.inventories) == 1, "it may be another GPU by now"


def test_all_gpus_are_told_of_each(host: ReleaseHost) -> None:
    host.release()
    assert host.samplers.released().keys() == {None}
    assert host.way.resume(None) == [None]
    assert [event.device for event in host.told] == [A, B, A, B]


def test_the_drivers_line_names_its_gpu() -> None:
    notice = classify(WAITS)
    assert notice and (notice.name, notice.device) == ("gpu.driver_message", A)
    event = HealthEvent(name=notice.name, device=notice.device, message=WAITS)
    assert is_unbind(event) and address_of(event) == A


def test_resume_takes_back_only_what_is_named(host: ReleaseHost) -> None:
    host.release(A, B)
    assert host.way.resume(frozenset((B, "0000:ff:00.0"))) == [B]
    assert [released.address for released in host.way.released()] == [A]
    assert host.way.resume(frozenset((B,))) == []


def test_a_gpu_is_not_held_because_another_one_is(host: ReleaseHost) -> None:
    """GPU B was stuck for days, and each release of A, which no process had open, failed for it."""
    host.samplers.holding, host.samplers.holds, host.samplers.stuck = True, B, [Stuck()]
    host.release(B)
    assert host.answers == []
    host.release(A)
    assert host.answers == [[]]


def test_the_longer_of_two_times_stands(host: ReleaseHost) -> None:
    """Two hours were requested for a repair; another script shortened them to a minute."""
    host.release(A, seconds=7200)
    host.release(A, B, seconds=60)
    host.later(61)
    assert [released.address for released in host.way.released()] == [A]
    host.release(seconds=7200)
    host.release(seconds=60)
    host.later(61)
    assert None in [released.address for released in host.way.released()]
    assert host.way.resume(None) and not host.way.released()


def test_the_next_agent_does_not_take_back_what_this_one_let_go_of(host: ReleaseHost) -> None:
    """kill -9 in the middle of a reset: five seconds later the next agent had the GPU open."""
    host.release(A, seconds=600)
    host.clock.now_ns += 5 * SECOND_NS
    host.way = host.begin()
    assert host.way.released() == [ReleasedGpu(A, host.clock.now_ns + 595 * SECOND_NS, "reset")]
    host.later(594)
    assert host.samplers.released().keys() == {A}
    host.later(2)
    assert host.message()[-1] == (A, 1, f"resumed: {A} (its release expired)")
    assert host.begin().released() == [], "what was taken back is"


def test_the_next_agent_resumes_an_unbound_gpu_once_it_is_bound(host: ReleaseHost) -> None:
    host.observe(binding("unbind"))
    (host.drivers / A).unlink()
    host.way = host.begin()
    host.later(1)
    assert host.samplers.released().keys() == {A}
    (host.drivers / A).touch()
    host.later(1)
    assert host.samplers.released() == {}


def test_nobody_is_to_touch_what_was_let_go_of_or_is_not_well(host: ReleaseHost) -> None:
    """The inventory's child opened a lost GPU, and one that was being reset."""
    assert host.way.avoided == frozenset()
    host.release(A)
    assert host.way.avoided == {A}
    host.samplers.stuck = [Stuck(B), Stuck("nvme0n1", "host"), Stuck("x", state=State.WELL)]
    host.later(1)
    assert host.way.avoided == {A, B}
    host.samplers.stuck = [Stuck("")]
    host.later(1)
    assert host.way.avoided is None, "the driver as a whole"
    host.samplers.stuck = [Stuck(B, state=State.HUNG)]
    host.later(1)
    assert host.way.avoided == {A}, "it is slow to open, as each is without persistence mode"
    assert len(host.inventories) == 1
    host.samplers.stuck = []
    host.later(1)
    assert len(host.inventories) == 1
    host.way.resume(None)
    assert len(host.inventories) == 2
    assert host.way.avoided == frozenset()
    host.release()
    assert host.way.avoided is None


def test_a_gpu_that_hangs_is_touched_by_nobody_until_it_answers(host: ReleaseHost) -> None:
    """The hang was not checked: the inventory's child joined the sampler in the driver."""
    host.later(1)
    host.samplers.stuck = [Stuck(B)]
    host.later(1)
    assert host.way.avoided == frozenset((B,))
    host.samplers.stuck = []
    host.later(1)
    assert host.way.avoided == frozenset() and len(host.inventories) == 1


def test_the_driver_waits_and_we_let_go_of_that_gpu_only(host: ReleaseHost) -> None:
    """An unbind hung for hours while monitoring had the GPU open."""
    event = HealthEvent(name="gpu.driver_message", device=A, message=WAITS)
    thread = threading.Thread(target=host.way.observe, args=(event,))
    thread.start()
    thread.join()
    (host.drivers / A).unlink()
    host.way.tick()
    assert host.samplers.released().keys() == {A}
    host.observe(event)
    assert host.message() == [(A, 0, f"released: {A} ({UNBIND_REASON})")], "once"


def binding(state: str, address: str = A) -> HealthEvent:
    return HealthEvent(
        name="gpu.driver_binding",
        device="GPU-1",
        attributes={"pci_address": address, "state": state},
    )


def test_nvmls_own_word_for_it_is_heeded(host: ReleaseHost) -> None:
    host.observe(binding("unbind"))
    assert host.samplers.released().keys() == {A}
    host.observe(binding("bind"))
    assert host.samplers.released() == {}


def test_a_driver_that_stays_is_taken_at_its_word(host: ReleaseHost) -> None:
    """A user's line in the log, a cancelled unbind: not a quarter of an hour without readings."""
    host.observe(HealthEvent(name="gpu.driver_message", device=A, message=WAITS))
    assert host.samplers.released().keys() == {A}
    for _ in range(11):
        host.later(1)
    assert host.samplers.released() == {}


def test_where_sysfs_shows_no_driver_at_all_the_time_runs_out(tmp_path: Path) -> None:
    """A container without /sys/bus: a GPU never seen as bound must not stay released forever."""
    host = ReleaseHost(tmp_path)
    for name in list(host.drivers.iterdir()):
        name.unlink()
    roots = Roots(tmp_path / "none", tmp_path / "proc", dev=tmp_path / "dev")
    host.way = host.begin(roots)
    host.observe(binding("unbind"))
    assert host.samplers.released().keys() == {A}
    host.later(RELEASE_SECONDS_DEFAULT - 1)
    host.later(2)
    assert host.samplers.released() == {}


def test_an_unbind_while_all_are_released_changes_nothing(host: ReleaseHost) -> None:
    host.release()
    host.observe(binding("unbind"))
    host.observe(binding("bind"))
    assert host.samplers.released().keys() == {None}


def test_sysfs_shows_an_unbind_too_and_the_end_of_it(host: ReleaseHost) -> None:
    """Without access to the kernel's log, and with a driver too old for NVML's system events."""
    host.later(1)
    (host.drivers / A).unlink()
    host.later(1)
    assert host.samplers.released().keys() == {A}
    (host.drivers / A).touch()
    host.later(1)
    assert host.samplers.released() == {}
    assert [code for _, code, _ in host.message()] == [0, 1]


def test_a_gpu_without_a_driver_is_not_tried_when_its_time_is_over(host: ReleaseHost) -> None:
    """Its removal may still wait for another process: the agent's handle would prolong that."""
    (host.drivers / A).unlink()
    for _ in range(int(3 * RELEASE_SECONDS_DEFAULT)):
        host.later(1)
        assert host.samplers.released().keys() == {A}
    assert len(host.told) == 1


def test_what_an_operator_released_is_not_taken_back_by_a_bind(host: ReleaseHost) -> None:
    host.release(A)
    (host.drivers / A).unlink()
    host.later(1)
    (host.drivers / A).touch()
    host.later(1)
    assert host.samplers.released().keys() == {A}


def test_a_driver_that_goes_as_a_whole_is_no_surprise(host: ReleaseHost) -> None:
    """The module was unloaded: the folder itself disappears, and reappears after an update."""
    names = [host.drivers / name for name in (A, B, "new_id")]
    for name in names:
        name.unlink()
    host.drivers.rmdir()
    host.later(1)
    assert host.samplers.released().keys() == {A, B}
    host.drivers.mkdir()
    for name in names:
        name.touch()
    host.later(1)
    assert host.samplers.released() == {}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["on", "off", "says off", "says on", "wait"]), st.sampled_from([A, B])
        )
    )
)
def test_a_gpu_with_a_driver_is_not_released_for_long(steps: list[tuple[str, str]]) -> None:
    """Three signs in any order: with a driver for STAYS_NS a GPU is sampled, else released."""
    bound, now_ns = {A, B}, 0
    unbinding, off = DriverUnbindTracker(frozenset(bound)), set[str]()
    for what, address in steps:
        now_ns += SECOND_NS
        if what == "says off":
            off |= unbinding.unbind_started((address,), now_ns)
        elif what == "says on":
            off -= unbinding.bound_again((address,))
        elif what == "on":
            bound.add(address)
        elif what == "off":
            bound.discard(address)
        else:
            now_ns += UNBIND_NS_MAX
        gone, back = unbinding.update(frozenset(bound), now_ns)
        assert not gone & back
        off = (off | gone) - back
        if what == "wait":
            assert not off & bound
        if what == "off":
            assert off >= {address} - bound


def xid(code: int, device: str = A, at_ns: int = 1000 * SECOND_NS, **more: str) -> HealthEvent:
    return HealthEvent(
        name="gpu.xid", code=code, device=device, boottime_ns=at_ns, attributes=dict(more)
    )


@pytest.mark.parametrize("code", HANGING_XIDS)
def test_a_gpu_that_answers_nobody_is_left_alone(host: ReleaseHost, code: int) -> None:
    host.way.observe(xid(code))
    assert host.samplers.alone == [], "only in the daemon's own thread"
    host.way.tick()
    assert host.samplers.alone == [(A, HANGING_XIDS[code])]


@pytest.mark.parametrize(
    "event",
    [
        xid(31),
        xid(95),
        xid(154),  # asks for a reset, which others do and announce
        xid(79, device="host"),
        xid(79, at_ns=1000 * SECOND_NS - FRESH_NS_MAX - 1),
        xid(79, previous_boot="yes"),
        HealthEvent(name="gpu.driver_message", device=A, message="NVRM: GPU0 GSP RPC buffer"),
    ],
)
def test_a_gpu_is_not_left_alone_for_less(host: ReleaseHost, event: HealthEvent) -> None:
    """Nor for an old event that is read again at a start."""
    host.observe(event)
    assert host.samplers.alone == []


def test_nvml_names_the_address_in_an_attribute(host: ReleaseHost) -> None:
    host.observe(xid(119, device="GPU-1", pci_address=B))
    assert host.samplers.alone == [(B, HANGING_XIDS[119])]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 90), st.sampled_from([31, *HANGING_XIDS]), st.sampled_from([A, B, "x"])
        )
    )
)
def test_in_a_storm_each_quarantine_begins_once(steps: list[tuple[int, int, str]]) -> None:
    """One incident wrote 800,000 lines. Quarantines are at least AGAIN_NS_MIN apart."""
    rests, now_ns = XidQuarantine(), 1000 * SECOND_NS
    began: dict[str, int] = {}
    for seconds, code, device in steps:
        now_ns += seconds * SECOND_NS
        result = rests.check(xid(code, device, now_ns), now_ns)
        wanted = code in HANGING_XIDS and device != "x"
        since_ns = now_ns - began.get(device, -REPEAT_NS_MIN)
        assert (result is not None) == (wanted and since_ns >= REPEAT_NS_MIN)
        if result:
            assert result == (device, HANGING_XIDS[code])
            began[device] = now_ns


def test_what_fails_in_the_mailbox_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    mailbox, done = CallbackQueue(), []
    mailbox.post(lambda: done.append(1 // 0))
    mailbox.post(lambda: done.append(2))
    mailbox.run()
    assert done == [2] and "a request to the daemon failed" in caplog.text
    mailbox.close()
    mailbox.post(print)  # by a thread that does not know of the end


def test_a_mailbox_that_nobody_empties_is_full() -> None:
    mailbox = CallbackQueue()
    assert all(mailbox.post(print) for _ in range(CALLBACKS_MAX))
    assert not mailbox.post(print)
    assert os.eventfd_read(mailbox.descriptor) == CALLBACKS_MAX
    mailbox.close()
    mailbox.close()


def test_a_letter_put_in_by_a_letter_waits_for_the_next_time() -> None:
    """A callback that posts itself again would block the daemon forever."""
    mailbox, done = CallbackQueue(), []

    def again() -> None:
        done.append(1)
        mailbox.post(again)

    mailbox.post(again)
    mailbox.run()
    assert done == [1]
    mailbox.close()
