"""The table of hosts as text, at any width and with any name."""

from __future__ import annotations

import argparse
import io
import math
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gangline.aggregator.commands.explain import command, explanation_text, query_command, value
from gangline.aggregator.commands.host_table import (
    FoldedHosts,
    caption,
    fitting,
    fold_causes,
    folded,
    host_of,
    render,
)
from gangline.aggregator.commands.hosts import FoldMode, as_dict, document, hosts_text
from gangline.contract.client.score_client import ExpectedSlowdowns, ScoreListing
from gangline.contract.client.terminal import wants_colour
from gangline.contract.wire import score_pb2


def score(name: str, **fields: object) -> score_pb2.NodeScore:
    host_score = score_pb2.NodeScore(node=f"nodes/{name}", relative_speed=math.nan)
    for field, content in {"state": score_pb2.HEALTHY, **fields}.items():
        setattr(host_score, field, content)
    return host_score


def test_simulated_hosts_are_marked() -> None:
    """Nobody must mistake a simulated fault for a real one."""
    text = render([score("a", simulated=True), score("b")], 120)
    b, a = text.splitlines()[1:]
    assert a.startswith("a (sim)  ") and "(sim)" not in b


def test_what_moved_nothing_is_not_shown_as_the_reason() -> None:
    """A counter that had been stuck for years was the reason shown for a healthy host, between two broken hosts."""
    stuck = score("a", reason=score_pb2.REASON_BLIND, reason_message="a counter is stuck")
    frozen = score("b", reason=score_pb2.REASON_STALE_TELEMETRY, reason_message="silent for 40 s")
    lines = render([stuck, frozen, score("c")], 120).splitlines()
    assert lines[1].endswith("nothing wrong")
    assert lines[2].endswith("silent for 40 s")
    assert lines[3].endswith("nothing wrong (a note)")


def test_a_narrow_terminal_keeps_room_for_the_reason() -> None:
    """80 columns: hazard a day goes, the reason stays readable."""
    host_score = score("gpu-node-017", reason_message="x" * 99, state=score_pb2.SUSPECT)
    narrow, wide = render([host_score], 80), render([host_score], 100)
    assert "HAZARD/DAY" not in narrow and "HAZARD/DAY" in wide
    assert narrow.count("x") > 24


@pytest.mark.parametrize("width", [80, 160])
def test_the_caption_counts_states_and_says_what_a_score_is(width: int) -> None:
    """1,000 hosts on a screen of 24 lines: the caption counts the states, with the worst last as in the table."""
    hosts = [score("a", state=score_pb2.UNHEALTHY), score("b"), score("c")]
    for host in hosts:
        host.horizon.seconds = 8 * 3600
    heading = caption(ScoreListing(hosts, 1, ""), width)
    assert heading.startswith("3 hosts at ") and ": 2 HEALTHY, 1 UNHEALTHY" in heading
    assert "by state, then score" in heading
    assert "SCORE: chance of 8 h without a fault" in heading
    assert all(len(line) <= width for line in heading.splitlines())


def neighbors(slowdown: float, *jobs: str, measured: bool = False) -> score_pb2.NodeNeighbors:
    return score_pb2.NodeNeighbors(jobs=jobs, slowdown=slowdown, measured=measured, message="m")


SLOWDOWNS = ExpectedSlowdowns(
    "train",
    {"a": 0.0, "b": 0.02, "c": 0.0, "d": 0.0},
    "run 7",
    {
        "a": neighbors(0.099, "copy", measured=True),
        "b": neighbors(0.2, "a-very-long-name-of-a-job", "serve"),
        "c": neighbors(math.nan, "stranger"),
    },
)


@pytest.mark.parametrize("width", [80, 120])
def test_neighbors_are_shown_with_their_effect(width: int) -> None:
    """Measured, predicted and unknown differ, and a host without other jobs has an empty cell."""
    hosts = [score(name, job="train", reason_message="x" * 99, state=score_pb2.WATCH) for name in "abcd"]  # fmt: skip
    text = render(hosts, width, slowdowns=SLOWDOWNS)
    heading, *lines = text.splitlines()
    at = heading.index("NEIGHBORS")
    shown = [line[at : at + 24].partition("  ")[0].strip() for line in lines]
    assert shown == ["", "stranger ?", "a-very-long… +1 ~20 %", "copy 10 %"]
    assert all(cell_len(line) <= width for line in text.splitlines())
    assert ("JOB" in heading) == (width > 80) and "NEIGHBORS" not in render(hosts, width)
    folded_row = FoldedHosts(tuple(hosts))
    assert "a-very-long… +1 ~20 %" in render([folded_row], 120, slowdowns=SLOWDOWNS)
    healthy = [score(name, simulated=True) for name in "abcd"]
    own_rows = [row for row in folded(healthy, 1, SLOWDOWNS) if not isinstance(row, FoldedHosts)]
    assert [host_of(row) for row in own_rows] == ["a", "b"]


def test_neighbors_are_in_the_document() -> None:
    hosts = document(ScoreListing([score(name) for name in "acd"], 1, ""), SLOWDOWNS)["hosts"]
    assert [host["neighbors"] and host["neighbors"]["slowdown"] for host in hosts] == [0.099, None, None]  # fmt: skip
    assert hosts[0]["neighbors"] == {
        "jobs": ["copy"], "slowdown": 0.099, "slowdown_lower": 0.0, "slowdown_upper": 0.0, "measured": True, "message": "m",
    }  # fmt: skip
    assert hosts[1]["neighbors"]["jobs"] == ["stranger"] and hosts[2]["neighbors"] is None


def test_an_empty_table_says_why() -> None:
    """An empty table looks like a broken command, and 32 simulated hosts that ended had not "never registered"."""
    assert render([], 80) == "no hosts"
    assert "none has registered" in caption(ScoreListing([], 1, "", ended_hosts=0), 80)
    assert caption(ScoreListing([], 1, ""), 80) == ""
    message = caption(ScoreListing([], 1, "", ended_hosts=32), 80)
    assert message.startswith("32 hosts, all simulated, ended: no reading for 60 s")
    assert "registered" not in message


def test_what_is_not_known_is_a_dash_and_never() -> None:
    """A host without GPUs has no relative speed; a host without a frame has no age."""
    cells = render([score("a")], 120).splitlines()[1].split()
    assert cells[4] == "-" and cells[5] == "never"


def test_nothing_certain_is_shown_that_is_not() -> None:
    """A virtual machine's 0.99996 was printed as 1.0000: never 1 while anything can fail."""
    assert "0.9999 " in render([score("a", score=0.99996)], 120)


def test_a_hazard_past_all_sense_is_cut() -> None:
    """1,440 interruptions a day is a useless number."""
    assert ">99" in render([score("a", hazard_per_hour=60.0)], 120)


@given(st.lists(st.text(min_size=1, max_size=40), max_size=6), st.integers(20, 200), st.text())
def test_it_fits_and_shows_no_control_characters(names: list[str], width: int, reason: str) -> None:
    """An agent chooses its host's name: the name must not move the cursor or break a line."""
    scores = [score(n, reason_message=reason, state=2) for n in names]
    text = render(scores, width)
    # A combining character takes no column of the terminal.
    assert all(cell_len(line) <= max(width, 20) or not names for line in text.split("\n"))
    assert text.count("\n") == len(names)
    assert "\x1b" not in text


def test_colour_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert wants_colour(Terminal()) and not wants_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(Terminal())
    assert "\x1b[31m" in render([score("a", state=score_pb2.UNHEALTHY)], 80, colour=True)


def mixed() -> list[score_pb2.NodeScore]:
    """Worst first: a simulated fault, two real hosts, thirty healthy simulated hosts."""
    sick = score("sim-bad", state=score_pb2.UNHEALTHY, simulated=True)
    real = [score("noted", state=score_pb2.WATCH), score("vm")]
    return [sick, *real, *(score(f"sim-{i:03d}", simulated=True) for i in range(30))]


def test_what_is_folded_first_is_well_and_does_not_exist() -> None:
    """On 24 lines this machine's own row disappeared first, because it was the healthiest."""
    kept = [host_of(row) for row in fitting(mixed(), 5)]
    assert kept == ["sim-bad", "noted", "vm", "sim-000", "sim-001"]
    assert [host_of(row) for row in fitting(mixed(), 2)] == ["sim-bad", "noted"]
    assert [host_of(row) for row in fitting(mixed(), 1)] == ["noted"]
    assert fitting(mixed(), 99) == mixed() and fitting(mixed(), 0) == []


@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 4, 5, 8]), st.booleans()), max_size=30),
    st.integers(0, 31),
)
def test_nothing_is_folded_before_what_matters_less(
    hosts: list[tuple[int, bool]], count_max: int
) -> None:
    """In any fleet a row that is not HEALTHY, or is real, comes before all healthy simulated rows."""
    scores = [score(f"h{i}", state=s, simulated=sim) for i, (s, sim) in enumerate(hosts)]
    kept = fitting(scores, count_max)
    names = [host_of(row) for row in kept]
    assert len(kept) == min(count_max, len(scores)) and names == sorted(
        names, key=lambda n: int(n[1:])
    )
    gone = [score for score in scores if host_of(score) not in names]
    idle = [row for row in kept if row.simulated and row.state == score_pb2.HEALTHY]
    if idle:
        assert all(row.simulated and row.state == score_pb2.HEALTHY for row in gone)


def gang() -> list[score_pb2.NodeScore]:
    """Worst first: a dead host of job 4, seven hosts that wait for it, twenty healthy hosts, and this machine."""
    dead = score("sim-028", state=score_pb2.UNHEALTHY, simulated=True, job="4")
    waits = {"waits_for": "nodes/sim-028", "waits_for_job": "4", "job": "4", "simulated": True}
    waiting = [score(f"sim-{n:03d}", **waits) for n in range(7)]
    return [
        dead,
        *waiting,
        *(score(f"sim-{n}", simulated=True) for n in range(100, 120)),
        score("vm"),
    ]


def test_a_host_that_waits_says_for_whom() -> None:
    """Its gang waited for a dead GPU elsewhere, and its row showed "nothing wrong"; only `explain` gave the cause."""
    lines = render(gang(), 120).splitlines()
    (dead,) = (line for line in lines if line.startswith("sim-028"))
    waiting = [line for line in lines if "waits for sim-028 (job 4)" in line]
    assert "  JOB  " in lines[0] and len(waiting) == 7 and dead.endswith("  4")
    assert "JOB" not in render([score("a")], 120), "no job, no column"


def test_healthy_hosts_share_rows() -> None:
    """33 hosts on 24 lines: 30 rows of "nothing wrong" pushed the three sick ones' story out of sight."""
    rows = folded(gang(), 23)
    lines = render(rows, 120).splitlines()
    assert len(lines) == 5
    assert lines[1].startswith("vm ") and lines[1].endswith("nothing wrong"), "a real host is named"
    assert lines[2].startswith("20 hosts (sim) ") and "nothing wrong: sim-[100-119]" in lines[2]
    assert (
        lines[3].startswith("7 hosts (sim) ")
        and "wait for sim-028 (job 4): sim-[000-006]" in lines[3]
    )
    assert lines[4].startswith("sim-028 (sim) ")
    fleet = [score(f"h{n}") for n in range(99)]
    assert len(folded(fleet, 99)) == 99 and len(folded(fleet, 98)) == 1, "real ones only if need be"


def test_hosts_of_one_shared_cause_are_one_row() -> None:
    """A leaf is a row with its name and its advice, not 28 equal rows; "broken now" only appears at a score near 0."""
    shared = {"shared_cause": "leaf leaf-00 network", "shared_cause_advisory": "advisories/a5"}
    down = [
        score(
            f"gpu-{n:03d}",
            state=score_pb2.SUSPECT if n else score_pb2.UNHEALTHY,
            score=0.235,
            **shared,
        )
        for n in range(28)
    ]
    dead = score("gpu-099", state=score_pb2.UNHEALTHY, score=0.0)
    rows = fold_causes([dead, *down, score("gpu-200")])
    lines = render(rows, 160).splitlines()
    assert len(lines) == 4
    assert "leaf leaf-00 network (gangline advise show a5): gpu-[000-027]" in lines[2]
    assert "UNHEALTHY" in lines[2] and "broken now" not in lines[2], "0.2350 is not broken"
    assert "broken now" in lines[3]


@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2, 4, 5, 8]), st.booleans(), st.sampled_from(["", "a", "b"])),
        max_size=30,
    ),
    st.none() | st.integers(0, 31),
)
def test_folding_loses_no_host(hosts: list[tuple[int, bool, str]], count_max: int | None) -> None:
    scores = [
        score(f"h{i}", state=state, simulated=simulated, waits_for=waits)
        for i, (state, simulated, waits) in enumerate(hosts)
    ]
    rows = folded(scores, count_max)
    shared = [row for row in rows if isinstance(row, FoldedHosts)]
    inside = [host_of(score) for row in shared for score in row.scores]
    alone = [host_of(row) for row in rows if not isinstance(row, FoldedHosts)]
    assert sorted(inside + alone) == sorted(map(host_of, scores))
    sick = [host_of(score) for score in scores if score.state != score_pb2.HEALTHY]
    assert [host_of(row) for row in rows[: len(sick)] if not isinstance(row, FoldedHosts)] == sick
    assert all(len({score.waits_for for score in row.scores}) == 1 for row in shared)


@pytest.mark.parametrize("lines", [8, 24, 60])
@pytest.mark.parametrize("fold", FoldMode)
def test_what_watch_folds(lines: int, fold: FoldMode, monkeypatch: pytest.MonkeyPatch) -> None:
    """80x24 and 33 hosts: all are counted, in their own rows, in a shared row, or as not shown."""
    monkeypatch.setenv("LINES", str(lines))
    monkeypatch.setenv("COLUMNS", "80")
    text = hosts_text(ScoreListing(mixed(), 1, ""), "", is_terminal=True, in_place=True, fold=fold)
    shown = [line for line in text.split("\n") if "HEALTHY " in line or "WATCH " in line]
    rows = [line for line in shown if " hosts at " not in line]
    assert text.count("\n") < lines - 1
    assert "sim-bad" in text and "noted" in text
    if fold is FoldMode.ALWAYS or (lines < 60 and fold is FoldMode.WHEN_LONG):
        assert "30 hosts (sim)" in text and "--all lists every host" in text
        assert len(rows) == 4 or "more not shown" in text
    elif lines == 60:
        assert len(rows) == 33 and "not shown" not in text
    else:
        assert f"{33 - len(rows)} more not shown (healthy first)" in text


def test_a_pipe_gets_every_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folding is for a screen: a script counts rows."""
    monkeypatch.setenv("LINES", "24")
    listing = ScoreListing(gang(), 1, "")
    text = hosts_text(listing, "", is_terminal=False, in_place=False, fold=FoldMode.ALWAYS)
    assert sum(line.startswith("sim-") for line in text.split("\n")) == 28


def test_the_next_command_names_a_sick_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The README explained sim-007, a healthy host: the first impression was lost."""
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("COLUMNS", "80")

    def shown(scores: list[score_pb2.NodeScore], *, is_terminal: bool = True) -> list[str]:
        text = hosts_text(
            ScoreListing(scores, 1, ""), "", is_terminal=is_terminal, in_place=False,
            explain_command="gangline explain",
        )  # fmt: skip
        return text.splitlines()

    assert "next: gangline explain sim-028" in shown(gang())
    assert not any("next:" in line for line in shown([score("vm")]))
    assert not any("next:" in line for line in shown(gang(), is_terminal=False))


def test_a_reason_that_is_cut_begins_with_its_code() -> None:
    """At 80 columns "GPU-5cc8... SM clock at 77 % of..." had lost its cause at the end."""
    reason = "GPU-5cc8… SM clock at 77 % of its 255 peers, limited by heat (88 C)"
    fields = {"state": score_pb2.DEGRADED, "reason": score_pb2.REASON_THERMAL_THROTTLE}
    host_score = score("sim-018", simulated=True, job="2", reason_message=reason, **fields)
    assert "  thermal throttle: GPU-5cc8…" in render([host_score], 80)
    assert f"  {reason}" in render([host_score], 160)


@pytest.mark.parametrize("lines", [10, 24, 60])
def test_watch_tells_what_stands_against_the_aggregator(
    lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Receipts were a minute late, and window files were refused: `gangline hosts` showed this,
    `watch` a healthy fleet.
    """
    monkeypatch.setenv("LINES", str(lines))
    monkeypatch.setenv("COLUMNS", "80")
    alarms = ["receipts are late", f"what is declared is not taken: {'x' * 200}"]

    def shown(in_place: bool) -> str:
        listing = ScoreListing(mixed(), 1, "", alarms)
        return hosts_text(listing, "what you see is old", is_terminal=in_place, in_place=in_place)

    placed_text = shown(in_place=True)
    if lines == 10:
        assert "aggregator (1 of 2): receipts are late\n" in placed_text
    else:
        assert "aggregator: receipts are late\n" in placed_text
        assert "aggregator: what is declared is not taken: xxx" in placed_text
    assert placed_text.count("\n") <= lines - 1 and "x" * 80 not in placed_text
    assert "sim-bad" in placed_text and "what you see is old" in placed_text
    assert f"aggregator: {alarms[1]}\n" in shown(in_place=False), "a file has room for all of it"


def test_explain_wraps_words_and_leaves_sql_whole() -> None:
    host_score = score("a", reason_message="slow")
    sql = "SELECT time, " + ", ".join(f"c{i}" for i in range(60)) + " FROM readings.gpu_1s"
    host_score.contributions.add(
        signal="s", device="d", message="word " * 60, evidence_sql=sql, unit="u"
    )
    lines = explanation_text(host_score, 60).split("\n")
    assert f'   gangline sql "{sql}"' in lines
    assert all(len(line) <= 60 for line in lines if "SELECT" not in line)


@pytest.mark.parametrize("name", ['a"b', "$(reboot)", "`reboot`", "it's", "a\\", "!!"])
def test_the_command_of_a_query_is_safe_to_paste(name: str) -> None:
    """A host chooses its device names: a pasted command must run only its SQL."""
    sql = "SELECT * FROM events WHERE device = '" + name.replace("'", "''") + "'"
    assert shlex.split(command(sql)) == ["gangline", "sql", sql]
    assert '"$' not in command(sql) and "`" not in command(sql).partition("'")[0]


@pytest.mark.parametrize(
    ("unit", "number", "message"),
    [
        ("hertz", 1312345678.0, "1.31 GHz"),
        ("bytes", 1e8, "0.1 GB"),
        ("ratio", 0.623, "62 %"),
        ("packets/s", 1419.31, "1,419 packets/s"),
        ("errors in 10 s", 62.2, "62.2 errors in 10 s"),
        ("errors in 10 s", 1.0, "1 error in 10 s"),
        ("lanes", 8.0, "8 lanes"),
    ],
)
def test_values_have_the_digits_and_units_that_people_use(
    unit: str, number: float, message: str
) -> None:
    """1312345678.0 hertz is unreadable."""
    assert value(score_pb2.Contribution(value=number, unit=unit)) == message


def test_explain_says_whose_word_it_is() -> None:
    """MAINTENANCE is not evidence: `explain` printed "Nothing speaks against it" without the owner of the window."""
    host_score = score("a", state=score_pb2.MAINTENANCE, reason_message="new power feed (alice)")
    assert "MAINTENANCE: new power feed (alice)." in explanation_text(host_score, 100)
    host_score.contributions.add(message="new power feed (alice)")
    assert "MAINTENANCE: " not in explanation_text(host_score, 100), "not twice"


def test_what_explain_prints_adds_up() -> None:
    """ "4 times as likely", but as what? The reader multiplies."""
    host_score = score("a", state=score_pb2.SUSPECT, hazard_per_hour=4.0 / 48)
    for device in "ab":
        host_score.contributions.add(device=device, log_hazard_delta=math.log(2.0), message=device)
    text = explanation_text(host_score, 100)
    assert "A fault is expected every 12 hours." in text and text.count("is 2 times as likely") == 2
    assert "Evidence (without it, one fault every 2 days would be expected):" in text
    host_score.hazard_per_hour = 60.0
    text = explanation_text(host_score, 100)
    assert "A fault is expected every minute." in text
    assert "costs little now: a fault is 2 times as likely" in text and "0.0000 of" not in text


def test_what_is_certain_is_no_expectation() -> None:
    """ "A fault is expected every 17 minutes", HAZARD/DAY 86.88, of a GPU that had fallen off the bus; in JSON the
    numbers stay."""
    host_score = score("a", state=score_pb2.UNHEALTHY, hazard_per_hour=3.6, relative_speed=0.3)
    host_score.reason_message = "GPU has fallen off the bus"
    for message, delta in ((host_score.reason_message, 9.0), ("ECC errors rise", math.log(2.0))):
        host_score.contributions.add(message=message, device=message, log_hazard_delta=delta)
    text = explanation_text(host_score, 100)
    assert "It is broken now: a fault is certain." in text
    assert "every 17 minutes" not in text and "interval" not in text and "Score" not in text
    assert "costs the whole score: it is broken now" in text
    assert "a fault is 2 times as likely" in text, "what is no more than likely is told as before"
    assert render([host_score], 120).splitlines()[1].split()[3:5] == ["broken", "now"]
    assert as_dict(host_score)["hazard_per_hour"] == 3.6
    host_score.state = score_pb2.SUSPECT
    assert "every 17 minutes" in explanation_text(host_score, 100) and "86.40" in render(
        [host_score], 120
    )


def test_explain_says_what_each_of_several_faults_makes_of_a_calm_host() -> None:
    """Eight equal faults were 5, 1.8, 1.4 ... times as likely, and the common cause of eight hot
    GPUs was listed eight times.
    """
    calm = 0.01
    host_score = score("a", state=score_pb2.WATCH, hazard_per_hour=9 * calm + 2 * calm)
    for device, factor in (("GPU-1", 5.0), ("GPU-2", 9.0 / 5.0)):
        host_score.contributions.add(
            device=device, log_hazard_delta=math.log(factor), hazard_delta=4 * calm, message=device,
            score_delta=-0.1, shared_count=1,
        )  # fmt: skip
    for device, factor, hazard in (("GPU-3", 11.0 / 9.0, 2 * calm), ("GPU-4", 1.0, 0.0)):
        host_score.contributions.add(
            device=device, log_hazard_delta=math.log(factor), hazard_delta=hazard, message=device,
            score_delta=-0.1 if hazard else 0.0, shared_count=2, relative_speed_factor=1.0,
        )  # fmt: skip
    text = explanation_text(host_score, 200)
    assert text.count("a fault is 5 times as likely with it alone") == 2
    assert "a fault is 3 times as likely with it alone); one cause of 2 devices" in text
    assert text.count("one cause of 2 devices, counted once") == 2
    assert "Evidence (without it, one fault every 4 days would be expected)" in text


def test_the_command_asks_whom_explain_asked() -> None:
    """A laptop has no var/aggregator: the pasted query reported that no aggregator ever ran."""
    options = argparse.Namespace(
        ca="my ca.pem", certificate=None, key=None, token_file=None, server_name=None
    )
    asks = query_command(options, "agg-1:7600")
    assert asks == "gangline sql --server agg-1:7600 --ca 'my ca.pem'"
    assert shlex.split(command("FROM x", asks))[-2:] == ["my ca.pem", "FROM x"]


def test_explain_shows_no_value_that_means_nothing() -> None:
    """ "gpu.xid is 95; normal is none" is less informative than the line above it."""
    host_score = score("a", state=score_pb2.UNHEALTHY)
    host_score.contributions.add(
        signal="gpu.xid", device="GPU-1", value=95, unit="code", normal="none"
    )
    text = explanation_text(host_score, 100)
    assert "gpu.xid of GPU-1\n" in text and "normal" not in text


def test_a_healthy_host_does_not_end() -> None:
    """ "HEALTHY ends when the counter is cleared" sent someone to clear it at night."""
    host_score = score("a", clears_when="the counter is cleared")
    host_score.contributions.add(signal="s", device="d", message="stuck", relative_speed_factor=1.0)
    assert "ends when" not in explanation_text(
        host_score, 100
    ) and "Noted, at no cost:" in explanation_text(host_score, 100)
