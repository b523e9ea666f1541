"""Incidents: 800,000 lines of one fault are one event, and two faults are never merged."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.kernel_log.incidents import (
    ALL_OPEN_MAX,
    OPEN_MAX,
    PROCESSES_MAX,
    QUIET_NS,
    REPORT_INTERVALS_NS,
    REVISION_SKIP,
    IncidentTracker,
    LogLine,
)
from gangline.agent.kernel_log.record import (
    TEMPLATES_COUNTED_MAX,
    TEMPLATES_MAX,
    LinePart,
    MessageTemplates,
    ParsedLine,
    template_of,
)
from gangline.agent.kernel_log.rules import classify
from gangline.contract.wire.telemetry_pb2 import HealthEvent

SECOND = 1_000_000_000
XID = "NVRM: Xid (PCI:0000:9b:00): 95, pid={}, name=python, Uncontained: {}"

NOTICES = st.builds(
    ParsedLine,
    name=st.sampled_from(["gpu.xid", "pcie.aer"]),
    code=st.integers(0, 2),
    device=st.sampled_from(["a", "b"]),
    scope=st.sampled_from(["", "s"]),
    part=st.sampled_from(LinePart),
    group=st.sampled_from(["", "g", "h"]),
    occurrences=st.integers(0, 3),
    process_id=st.integers(0, 3),
    attributes=st.dictionaries(st.sampled_from("xyz"), st.sampled_from(["1", "2"])),
)


class Log:
    """Takes lines with their time, and records the events. Ids are given by line."""

    def __init__(self) -> None:
        self.incidents = IncidentTracker()
        self.now_ns = 1000 * SECOND
        self.told: list[HealthEvent] = []
        self.lines = 0

    def say(self, text: str, after_ns: int = 0) -> None:
        notice = classify(text)
        assert notice is not None
        self.note(notice, text, after_ns)

    def note(self, notice: ParsedLine, text: str = "message", after_ns: int = 0) -> None:
        self.now_ns += after_ns
        self.lines += 1
        line = LogLine(notice, text, self.now_ns, self.now_ns + 7, f"line-{self.lines}")
        self.told += self.incidents.add(line, self.now_ns)

    def wait(self, ns: int) -> None:
        self.now_ns += ns
        self.told += self.incidents.due(self.now_ns, self.now_ns)

    def last(self) -> dict[str, HealthEvent]:
        """Return the aggregator's final events: of each the highest revision."""
        kept: dict[str, HealthEvent] = {}
        for event in self.told:
            before = kept.get(event.event_id)
            assert before is None or before.revision < event.revision
            kept[event.event_id] = event
        return kept


@pytest.fixture
def log() -> Log:
    return Log()


def test_the_first_line_is_told_at_once_and_whole(log: Log) -> None:
    """An XID 79 must not wait for a second one."""
    log.say("NVRM: Xid (PCI:0000:9b:00): 79, pid=88, name=python, GPU has fallen off the bus.")
    [event] = log.told
    assert event == HealthEvent(
        event_id="line-1", device_kind="gpu", device="0000:9b:00.0", name="gpu.xid", code=79,
        message="NVRM: Xid (PCI:0000:9b:00): 79, pid=88, name=python, GPU has fallen off the bus.",
        boottime_ns=log.now_ns, wall_time_ns=log.now_ns + 7, revision=0, count=1,
        last_boottime_ns=log.now_ns, forms_count=1, process_id=88, process_name="python",
        forms=["NVRM: Xid (PCI:#:#:#): #, pid=#, name=python, GPU has fallen off the bus."],
    )  # fmt: skip
    log.wait(10 * QUIET_NS)
    assert len(log.told) == 1 and len(log.incidents) == 0


def storm(lines: int) -> Iterator[str]:
    for number in range(lines):
        yield XID.format(4000 + number % 8, f"{'x' * (number % 29)}y unit {number}")


def test_a_storm_is_one_event_with_its_count_and_its_forms(log: Log) -> None:
    """One incident of uncontained ECC errors wrote 800,000 lines, of which 29 were distinct."""
    for text in storm(20_000):
        log.say(text, 5_000_000)  # 200 lines a second, for 100 s
        log.wait(0)
    log.wait(QUIET_NS + 1)
    [event] = log.last().values()
    assert (event.count, event.forms_count, len(event.forms)) == (20_000, 29, 29)
    assert [t.count for t in log.told[:2]] == [1, 201]
    assert len(log.told) == 5  # at once, after 1 s, 10 s, 60 s, and its end
    assert event.boottime_ns == log.told[0].boottime_ns < event.last_boottime_ns
    assert event.attributes["processes"].count("python[") == PROCESSES_MAX
    assert len(log.incidents) == 0


def test_it_is_told_again_at_a_bounded_pace(log: Log) -> None:
    """A storm of a day is reported 1,440 times, not 80 million."""
    log.say(XID.format(1, "a"))
    begin = log.now_ns
    at = []
    for _ in range(3600):
        before = len(log.told)
        log.say(XID.format(1, "a"), SECOND // 10)
        log.wait(0)
        at += [(log.now_ns - begin) // SECOND] * (len(log.told) - before)
    assert at == [1, 11, 71, 131, 191, 251, 311]
    assert sum(REPORT_INTERVALS_NS) == 71 * SECOND


def test_another_code_device_or_recovery_is_another_event(log: Log) -> None:
    """XID 48 and its companion 95 a millisecond later decide together what is done."""
    for line in (
        "NVRM: Xid (PCI:0000:9b:00): 48, DBE",
        "NVRM: Xid (PCI:0000:9b:00): 95, Uncontained",
        "NVRM: Xid (PCI:0000:9c:00): 95, Uncontained",
        "NVRM: Xid (PCI:0000:9b:00): 95, Uncontained",
        "mlx5_core 0000:98:00.0 eth0: Link down",
        "mlx5_core 0000:98:00.0 eth0: Link up",
    ):
        log.say(line, 1_000_000)
    assert [(e.name, e.code, e.device) for e in log.told] == [
        ("gpu.xid", 48, "0000:9b:00.0"),
        ("gpu.xid", 95, "0000:9b:00.0"),
        ("gpu.xid", 95, "0000:9c:00.0"),
        ("net.link_message", 0, "eth0"),
        ("net.link_message", 1, "eth0"),
    ]


def test_after_a_minute_of_silence_it_is_another_incident(log: Log) -> None:
    """The same GPU hangs again after lunch: that is a second event, with an id of its own."""
    log.say(XID.format(1, "a"))
    log.say(XID.format(1, "a"), QUIET_NS)
    log.say(XID.format(1, "a"), QUIET_NS + 1)
    assert [(e.event_id, e.revision, e.count) for e in log.told] == [
        ("line-1", 0, 1),
        ("line-1", 1, 2),  # its end, before the next begins
        ("line-3", 0, 1),
    ]


def test_one_pcie_error_counts_once_however_many_lines_it_has(log: Log) -> None:
    """The port has one part, the device the other; either may be missing."""
    head = "pcieport 0000:80:01.1: AER: Corrected error message received from 0000:81:00.0"
    body = "nvidia 0000:81:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"
    details = (
        "nvidia 0000:81:00.0:   device [10de:2330] error status/mask=00000001/0000a000",
        "nvidia 0000:81:00.0:    [ 0] RxErr                  (First)",
    )
    for line in (head, body, *details, head, body, *details, body, head, head, body):
        log.say(line, 1000)
    log.wait(SECOND)
    [event] = log.last().values()
    assert event.count == 5
    assert event.attributes["error"] == "RxErr" and event.attributes["port"] == "0000:80:01.1"
    assert event.attributes["layer"] == "Physical Layer"


def test_a_recovery_that_failed_is_an_incident_where_its_error_was_not_printed(log: Log) -> None:
    """The error's own lines were rate-limited; the failed recovery came alone, and was dropped."""
    log.say("nvidia 0000:01:00.0: AER: can't recover (no error_detected callback)")
    log.wait(QUIET_NS + 1)
    [alone] = log.last().values()
    assert (alone.name, alone.code, alone.device, alone.count) == ("pcie.aer", 2, "0000:01:00.0", 1)


@pytest.mark.parametrize(
    ("severity", "codes"),
    [("Uncorrected (Fatal)", [2]), ("Uncorrected (Non-Fatal)", [1]), ("Corrected", [0, 2])],
)
def test_a_failed_recovery_is_of_its_error(log: Log, severity: str, codes: list[int]) -> None:
    """It must neither count twice, nor be hidden by a corrected error of the device."""
    log.say(f"pcieport 0000:80:01.1: AER: {severity} error message received from 0000:81:00.0")
    log.say("nvidia 0000:81:00.0: AER: can't recover (no error_detected callback)", 1000)
    log.wait(QUIET_NS + 1)
    assert [e.code for e in log.last().values()] == codes
    assert [e.count for e in log.last().values()] == [1] * len(codes)


def test_an_uncorrected_machine_check_does_not_hide_behind_its_announcement(log: Log) -> None:
    """`events logged` does not describe the events."""
    log.say("mce: [Hardware Error]: Machine check events logged")
    log.say("mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 5: bea0000000000108")
    assert [(e.name, e.code) for e in log.told] == [
        ("host.machine_check", 0),
        ("host.machine_check", 1),
    ]


def test_an_out_of_memory_kill_is_one_and_names_whose_it_was(log: Log) -> None:
    """Only the first of its two lines names the cgroup, and so the job."""
    for job, process in (("job_1", 11), ("job_2", 22)):
        log.say(
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,"
            f"task_memcg=/slurm/{job},task=python,pid={process},uid=1000"
        )
        log.say(
            f"Memory cgroup out of memory: Killed process {process} (python) total-vm:1kB, anon-rss:1kB"
        )
    log.wait(SECOND)
    assert [(e.attributes["cgroup"], e.process_id, e.count) for e in log.last().values()] == [
        ("/slurm/job_1", 11, 1),
        ("/slurm/job_2", 22, 1),
    ]


def test_storms_of_very_many_devices_are_folded(log: Log) -> None:
    """A thousand interfaces of a container host flap in turn: bounded memory, and few events."""
    for number in range(100_000):
        log.note(ParsedLine("net.link_message", device=f"veth{number % 1000}"), after_ns=100_000)
    assert len(log.told) == OPEN_MAX + 1
    assert len(log.incidents) == OPEN_MAX + 1
    log.wait(QUIET_NS + 1)
    last = list(log.last().values())
    assert sum(event.count for event in last) == 100_000
    assert last[-1].device == "host" and "folded" in last[-1].attributes


def test_a_thousand_xids_hide_no_fatal_one(log: Log) -> None:
    """One GPU off the bus was in a row "more at once", without its GPU."""
    for number in range(2_000):
        log.note(
            ParsedLine("gpu.xid", device=f"0000:{number % 250:02x}:00.0", code=13 + number % 7)
        )
    log.note(ParsedLine("gpu.xid", device="0000:9b:00.0", code=79))
    assert [e.code for e in log.last().values() if e.device == "0000:9b:00.0" and e.code == 79]
    for number in range(20_000):  # bounded, even if all are fatal
        log.note(ParsedLine("gpu.xid", device=f"{number:04x}:00:00.0", code=79))
    assert len(log.incidents) <= ALL_OPEN_MAX + 1


def test_flapping_interfaces_hide_no_xid(log: Log) -> None:
    """A container host's veth storm had filled the table when a GPU fell off the bus."""
    for number in range(1000):
        log.note(ParsedLine("net.link_message", device=f"veth{number}"), after_ns=100_000)
    log.say("NVRM: Xid (PCI:0000:9b:00): 79, pid=88, name=python, GPU has fallen off the bus.")
    assert (log.told[-1].code, log.told[-1].device) == (79, "0000:9b:00.0")


def test_many_links_hide_no_gpu(log: Log) -> None:
    """72 GPUs' links went down at once; the XID 79 that caused it must remain visible."""
    for number in range(2000):
        device = f"0000:{number % 4:02x}:00.0"
        log.note(ParsedLine("gpu.xid", 149, device, scope=f"fatal {number}"), after_ns=100_000)
    assert {(e.device, e.code) for e in log.told} == {(f"0000:{n:02x}:00.0", 149) for n in range(4)}
    assert len(log.incidents) == OPEN_MAX // 2 + 4
    log.say("NVRM: Xid (PCI:0000:9b:00): 79, pid=88, name=python, GPU has fallen off the bus.")
    assert (log.told[-1].code, log.told[-1].device) == (79, "0000:9b:00.0")
    log.wait(QUIET_NS + 1)
    assert sum(event.count for event in log.last().values()) == 2001


def test_no_more_than_all_are_ever_open(log: Log) -> None:
    """Every kind of trouble at once, each on a thousand devices."""
    for number in range(20_000):
        name, scope = f"kind{number % 20}.x", "s" * (number % 3)
        log.note(ParsedLine(name, device=f"d{number % 997}", scope=scope), after_ns=1000)
    assert OPEN_MAX < len(log.incidents) <= ALL_OPEN_MAX
    log.wait(QUIET_NS + 1)
    assert sum(event.count for event in log.last().values()) == 20_000


def test_what_explains_a_new_code_is_told_while_it_counts() -> None:
    """XID 94 was reported once a minute; without it the new 48 drained the host."""
    contained = "NVRM: Xid (PCI:0000:9b:00): 94, pid=1, name=python, Contained: SM (0x1)"
    double = "NVRM: Xid (PCI:0000:9b:00): 48, pid=1, name=python, An uncorrectable error"
    for contained_first in (True, False):
        log = Log()
        log.say(contained)
        for _ in range(10):
            log.say(contained, 30 * SECOND)
            log.wait(0)
        log.wait(20 * SECOND)
        log.told.clear()
        for line in (contained, double) if contained_first else (double, contained):
            log.say(line, SECOND // 10)
        log.wait(0)
        assert {e.code for e in log.told} == {48, 94}


def test_what_explains_a_code_that_comes_again_is_told_while_it_counts(log: Log) -> None:
    """48 is reported at once; the 94 that came with it was reported a minute later."""
    contained = "NVRM: Xid (PCI:0000:9b:00): 94, pid=1, name=python, Contained: SM (0x1)"
    double = "NVRM: Xid (PCI:0000:9b:00): 48, pid=1, name=python, An uncorrectable error"
    log.say(double)
    for after_seconds in (0, 2, 12):  # 94 stays at its last interval, a minute
        log.say(contained, after_seconds * SECOND)
        log.wait(0)
    log.told.clear()
    log.say(double, 20 * SECOND)
    log.say(contained, SECOND // 10)
    log.wait(SECOND)
    assert {event.code for event in log.told} == {48, 94}


def test_what_was_long_ago_is_not_told_as_if_it_explained(log: Log) -> None:
    """The 94 half a minute before the 48 belongs to another fault: 48 is alone."""
    log.say(XID.format(1, "a"))
    log.wait(2 * SECOND)
    log.say(XID.format(1, "a"))
    log.wait(0)
    log.say(XID.format(1, "a"), SECOND)  # counted, and due in nine seconds
    log.told.clear()
    log.say("NVRM: Xid (PCI:0000:9b:00): 48, pid=1, name=python, An error", 6 * SECOND)
    log.wait(0)
    assert [e.code for e in log.told] == [48]


def test_new_codes_do_not_speed_up_a_storm(log: Log) -> None:
    """A hundred codes in turn on one GPU: each is reported at most once a second."""
    for number in range(3000):
        log.note(ParsedLine("gpu.xid", number % 100, "0000:9b:00.0"), after_ns=SECOND // 1000)
        log.wait(0)
    assert len(log.told) <= 100 * 4


@pytest.mark.slow
def test_memory_is_bounded_whatever_the_lines_say(log: Log) -> None:
    """The reader of a storm must not become a fault itself."""
    tracemalloc.start()
    for number in range(30_000):
        text = f"w{number:x}".translate(str.maketrans("0123456789", "ghijklmnop"))
        notice = ParsedLine(
            "pcie.aer", device=f"d{number % 2000}", group=f"aer d{number % 2000}",
            process_id=number + 1, process_name=text, attributes={text: text},
        )  # fmt: skip
        log.note(notice, f"{text} " * 200, 1_000_000)
        log.told.clear()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 24 << 20
    for incident in log.incidents:
        assert len(incident.templates.texts) <= TEMPLATES_MAX
        assert len(incident.refresh().attributes) <= 32


def test_an_incident_goes_on_over_a_restart() -> None:
    """The agent was updated during a storm: it stays one event, and its revisions rise."""
    before = Log()
    before.say(XID.format(1, "a"))
    before.say(XID.format(2, "bb"), SECOND)
    before.wait(0)
    [kept] = before.incidents
    after = Log()
    after.now_ns = before.now_ns
    after.incidents.restore(kept.key, kept.refresh(), after.now_ns)
    after.say(XID.format(3, "ccc"), 2 * SECOND)
    assert after.told == []
    after.wait(SECOND)
    [event] = after.told
    assert (event.event_id, event.count, event.forms_count) == ("line-1", 3, 3)
    assert event.revision == 1 + REVISION_SKIP + 1


def test_forms_leave_numbers_out_and_stay_few() -> None:
    """`GPC 3, TPC 6` and `GPC 4, TPC 1` have one form; two units have two."""
    assert template_of("Ch 0000000a, GPC2 at 0x2b57_b3000000: 12 ms") == "Ch #, GPC# at #_#: # ms"
    assert template_of("face dead beef") == "face dead beef"
    forms = MessageTemplates()
    for number in range(1000):
        forms.add("x" * number)
    assert (len(forms.texts), forms.count) == (TEMPLATES_MAX, 121)  # cut to 120 characters
    many = MessageTemplates()
    for number in range(1000):
        many.add("".join("gh"[bit == "1"] for bit in f"{number:010b}"))
    assert many.count == TEMPLATES_COUNTED_MAX


@given(
    st.lists(
        st.tuples(NOTICES, st.integers(0, 90 * SECOND), st.booleans()), min_size=1, max_size=60
    )
)
def test_no_order_of_lines_loses_or_doubles_one(steps: list[tuple[ParsedLine, int, bool]]) -> None:
    """In any order: every complete line counts once, revisions rise, ended incidents are closed."""
    log = Log()
    whole: Counter[tuple[str, str, int]] = Counter()
    for notice, after_ns, look in steps:
        log.note(notice, "message", after_ns)
        if notice.part in (LinePart.WHOLE, LinePart.HEAD):
            whole[notice.name, notice.device, notice.code] += notice.occurrences
        if look:
            log.wait(0)
    log.wait(QUIET_NS + 1)
    assert len(log.incidents) == 0 and log.incidents.next_ns() is None
    counted: Counter[tuple[str, str, int]] = Counter()
    for event in log.last().values():
        counted[event.name, event.device, event.code] += event.count
    for key, count in whole.items():
        assert counted[key] >= count
    bodies = sum(n.occurrences for n, _, _ in steps if n.part in (LinePart.BODY, LinePart.OUTCOME))
    assert counted.total() <= whole.total() + bodies


@given(st.lists(st.tuples(st.integers(0, 90 * SECOND), st.booleans()), max_size=40))
def test_whoever_waits_until_next_ns_misses_nothing(steps: list[tuple[int, bool]]) -> None:
    """The thread sleeps until then: no incident may be due earlier."""
    log = Log()
    for after_ns, same in steps:
        end = log.now_ns + after_ns
        while (due := log.incidents.next_ns()) is not None and due <= end:
            log.wait(max(due - log.now_ns, 0))
            following = log.incidents.next_ns()
            assert following is None or following > due
        log.now_ns = max(log.now_ns, end)
        log.say(XID.format(1, "a") if same else "mlx5_core 0000:98:00.0 eth0: Link down")
