"""The policy of findings: each line checked, rolled out in steps, never partly accepted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.contract.faults import policy_file as host_policy_file
from gangline.contract.faults.policy import FindingSeverity, PolicyError
from gangline.contract.faults.policy_file import overlay, parse
from gangline.contract.faults.table import builtin
from gangline.contract.signals import BY_NAME

ROW = """version = "2026-11-20"
rollout_share = 0.5

[[row]]
name = "my_row"
when = ["gpu.lost_state == 1"]
severity = "fatal"
message = "is lost"
action = "drain"
clears = "reading"
enforceable = true
source = "assumed"
"""

LINES = ROW.splitlines()
ODD = (
    "[[row]]",
    'name = "a"',
    "when = [[]]",
    "codes = [true]",
    'x = "y"',
    "[row.when]",
    "= 1",
    "row = 5",
)


def test_a_row_is_read() -> None:
    (row,) = parse(ROW).rows
    assert (row.name, row.severity, row.enforceable) == ("my_row", FindingSeverity.FATAL, True)
    assert (row.when[0].signal, row.when[0].compare, row.when[0].values) == (
        "gpu.lost_state",
        "==",
        (1,),
    )


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (("version", "# version"), "version: expected a short text"),
        (('"2026-11-20"', "7"), "version: expected a short text"),
        (("= 0.5", "= 1.5"), "line 2: rollout_share: expected a share of the hosts, 0 to 1"),
        (("rollout_share = 0.5", ""), "rollout_share: expected a share of the hosts"),
        (("= 0.5", "= nan"), "line 2: rollout_share: expected a share of the hosts, 0 to 1"),
        (("rollout_share", "rolout_share"), "line 2: unknown key 'rolout_share'"),
        (("= 0.5", "= "), "not TOML: .*line 2"),
        (("[[row]]", "[row]"), "row: expected at most 256 tables"),
        (("my_row", "My row"), "line 4: row 'My row': name: expected 2 to 40 small letters"),
        (("my_row", "xid79"), "line 4: row 'xid79': name: .* no XID's"),
        (
            ("lost_state", "lots_state"),
            "no signal is called 'gpu.lots_state'; did you mean 'gpu.lost_state'",
        ),
        (("== 1", "= 1"), "line 4: row 'my_row': 'gpu.lost_state = 1': expected \"signal == 1\""),
        (("== 1", "== one"), "'one': expected a number or a signal"),
        (("== 1", "== nan"), "'nan': expected a number"),
        (("== 1", "== rdma.port_state"), "is not of the same kind of device as gpu.lost_state"),
        (("== 1", "has 1.5"), "expected bits, as 0x40"),
        (("gpu.lost_state == 1", "gpu.power_watts has 1"), "a gauge has no bits"),
        (("== 1", "== 1,2"), "expected one number, or with `in`"),
        (
            ('["gpu.lost_state == 1"]', '"gpu.lost_state == 1"'),
            "when: expected a list of at most 8",
        ),
        (('["gpu.lost_state == 1"]', '["gpu.xid == 1"]'), "no signal is called 'gpu.xid'"),
        (('"fatal"', '"deadly"'), "severity: expected one of fatal, degraded, hazard, application"),
        (('"fatal"', '"hazard"'), "enforceable goes with severity = 'fatal'"),
        (
            ("gpu.lost_state ==", "filesystem.read_only_state =="),
            "read every 60 s only, at most 10",
        ),
        (("source", "hidden_by = 'My'\nsource"), "hidden_by: expected a row's name"),
        (('"reading"', '"time"'), "clear_seconds goes with clears = 'time'"),
        (('"reading"', '"reset"'), "clears = 'reading' goes with when"),
        (('message = "is lost"\n', ""), "expected severity, message, action and clears"),
        (
            ('message = "is lost"', 'words = "is lost"'),
            "unknown key 'words'; it is 'message' since",
        ),
        (('message = "is lost"', 'message = "a\\u001b[31m"'), "message: expected one line of text"),
        (('message = "is lost"', f'message = "{"x" * 201}"'), "message: expected one line of text"),
        (('source = "assumed"', ""), "source: state the source of the limit"),
        (("source", "scope = 'rack'\nsource"), "scope: expected one of process, gpu"),
        (("source", "for_seconds = -1\nsource"), "for_seconds: expected 0 to 2592000 seconds"),
        (("source", "for_seconds = true\nsource"), "for_seconds: expected 0 to 2592000 seconds"),
        (
            ("source", "for_second = 5\nsource"),
            "unknown key 'for_second'; did you mean 'for_seconds'",
        ),
        (("source", "codes = [1]\nsource"), "codes, contains and ends_with go with event"),
        (("source", "event = 'gpu.xid'\nsource"), "expected either when, of readings, or event"),
        (("source", "unless = ['x']\nsource"), "'x': expected \"signal == 1\""),
    ],
)
def test_a_wrong_policy_is_named_with_its_line(edit: tuple[str, str], message: str) -> None:
    """A typing error in a file for ten thousand hosts."""
    assert edit[0] in ROW
    with pytest.raises(PolicyError, match=message.replace("[", r"\[")):
        parse(ROW.replace(*edit))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('event = "gpu.lots"', "no event is called 'gpu.lots'"),
        ('event = "gpu.lost"\nends_with = "back"', "ends_with: expected attribute=value"),
        ('event = "gpu.lost"\nfor_seconds = 3', "go with when"),
        ('event = "gpu.lost"\ncontains = [""]', "contains: expected text"),
        (
            'event = "gpu.xid"\npolicy = "xid"',
            "policy: expected xid or sxid, and the row of that name",
        ),
    ],
)
def test_a_wrong_row_of_an_event(text: str, message: str) -> None:
    """Events have no duration, and the tables judge codes."""
    fields = 'severity = "hazard"\nmessage = "w"\naction = "a"\nclears = "reboot"\nsource = "s"\n'
    with pytest.raises(PolicyError, match=message):
        parse(f'version = "1"\nrollout_share = 1\n[[row]]\nname = "my_row"\n{text}\n{fields}')


def test_the_table_of_codes_says_it_all() -> None:
    """A file that calls every XID fatal would drain the fleet at the first out-of-bounds access."""
    with pytest.raises(PolicyError, match="severity: the table of codes says that"):
        parse(
            'version = "1"\nrollout_share = 1\n[[row]]\nname = "xid"\nevent = "gpu.xid"\npolicy = "xid"\n'
            'severity = "fatal"\nsource = "s"\n'
        )


def test_limits_of_the_file() -> None:
    """An invalid file: megabytes, thousands of rows, endless nesting, a row twice."""
    with pytest.raises(PolicyError, match="longer than 262144 bytes"):
        parse("#" * (host_policy_file.POLICY_BYTES_MAX + 1))
    with pytest.raises(PolicyError, match="at most 256 tables"):
        parse('version = "1"\nrollout_share = 1\n' + "[[row]]\n" * 300)
    with pytest.raises(PolicyError, match="not TOML"):
        parse("x = " + "[" * 10_000)
    with pytest.raises(PolicyError, match="is in the table twice"):
        parse(ROW + ROW[ROW.index("[[row]]") :])


def test_a_file_is_laid_over_the_builtin_one() -> None:
    """Three lines change one row; the other thirty need no outdated copies in each file."""
    changed = parse(ROW.replace("my_row", "gpu_lost").replace("drain", "call me") + "")
    both = overlay(changed, builtin())
    assert len(both.rows) == len(builtin().rows)
    assert next(row for row in both.rows if row.name == "gpu_lost").action == "call me"
    assert both.version == "2026-11-20 over 1"
    without = overlay(parse('version = "2"\nrollout_share = 1\noff = ["gpu_lost"]'), builtin())
    assert {row.name for row in builtin().rows} - {row.name for row in without.rows} == {"gpu_lost"}
    with pytest.raises(PolicyError, match="no row is called 'gpu_lots'"):
        overlay(parse('version = "2"\nrollout_share = 1\noff = ["gpu_lots"]'), builtin())


def test_a_rollout_goes_by_the_same_hosts_first() -> None:
    """1 %, 10 %, all: a host keeps it when the share grows, and about this share of hosts has it."""
    hosts = [f"gpu-{number:04}" for number in range(4000)]
    takers = []
    for share in ("0.0", "0.01", "0.1", "1.0"):
        rolled = parse(f'version = "1"\nrollout_share = {share}')
        takers.append({host for host in hosts if rolled.applies_to(host)})
    assert takers[0] == set() and takers[3] == set(hosts)
    assert takers[1] < takers[2]
    assert 20 <= len(takers[1]) <= 65 and 330 <= len(takers[2]) <= 470


@pytest.mark.parametrize("name", ["xid79", "xid95", "sxid20034", "gpu_lost", "rdma_port_down"])
def test_what_may_be_enforced(name: str) -> None:
    """Deterministic, and fatal by its row or by the table of codes."""
    assert builtin().enforce_error(name) == ""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("xid", "'xid' cannot be enforced: name one of"),
        ("xid79x", "did you mean 'xid79'"),
        ("xid99999", "no finding is called 'xid99999'"),
        ("gpu_thermal", "'gpu_thermal' cannot be enforced: name one of gpu_off_bus"),
        ("gpu_lots", "did you mean 'gpu_lost'"),
        ("*", "no finding is called"),
        ("", "no finding is called"),
    ],
)
def test_what_may_not_be_enforced(name: str, message: str) -> None:
    """Enforcing is turned on by name: no wildcard, no signs, no guesses."""
    assert message in builtin().enforce_error(name)


def test_every_row_says_where_its_limit_is_from() -> None:
    """At three in the morning an operator asks for the source of that number."""
    for row in builtin().rows:
        assert row.source
        assert not row.enforceable or row.policy or row.severity is FindingSeverity.FATAL
        for condition in (*row.when, *row.unless):
            assert condition.signal in BY_NAME


@given(st.text(max_size=400))
def test_any_text_is_a_policy_or_refused(text: str) -> None:
    """For any file content: a policy, or a message of one line."""
    _try(text)


@given(st.lists(st.sampled_from([*LINES, *ODD]), max_size=24))
def test_lines_in_any_order(lines: list[str]) -> None:
    """Two editors, one file: keys twice, tables in tables, rows without a head."""
    _try("\n".join(lines))


def _try(text: str) -> None:
    try:
        created = parse(text)
    except PolicyError as error:
        assert str(error).isprintable() and len(str(error)) < 700
    else:
        assert 0 <= created.rollout_share <= 1 and created.version


def test_what_is_judged_is_no_agents() -> None:
    """A row without a reading has no condition for a host, which must not drain itself by it."""
    row = (
        'version = "1"\nrollout_share = 1\n[[row]]\nname = "slow"\njudged = "gang.slow_host"\n'
        + (
            'severity = "fatal"\nmessage = "is slow"\naction = "look"\nclears = "reading"\nsource = "assumed"\n'
        )
    )
    (created,) = parse(row).rows
    assert (created.judged, created.evidence_signal, created.signals) == (
        "gang.slow_host",
        "gang.slow_host",
        (),
    )
    for more, message in (
        ("enforceable = true", "only others can tell"),
        ("for_seconds = 5", "go with when"),
        ("codes = [1]", "go with event"),
        ('event = "gpu.xid"', "expected either"),
    ):
        with pytest.raises(PolicyError, match=message):
            parse(row + more)
    with pytest.raises(PolicyError, match="the name of a rule"):
        parse(row.replace("gang.slow_host", "Gang slow"))
