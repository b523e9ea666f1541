"""Files of declarations: valid ones are used as written; errors name file, line and remedy."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.declared import csv_topograph, fields, limits, loader, overrides, toml_file
from gangline.aggregator.declared import problems as problems_of
from gangline.aggregator.declared.host_placement import HostPlacement, PlaceSource
from gangline.aggregator.declared.loader import DeclaredFile, hash_of, parse_files
from gangline.aggregator.declared.model import NOTHING, Declared
from gangline.aggregator.declared.patterns import matches_pattern
from gangline.aggregator.declared.problems import DeclaredError
from gangline.aggregator.declared.thresholds import THRESHOLDS

NOW_NS = round(datetime(2026, 11, 21, 6, tzinfo=UTC).timestamp()) * 10**9
DAY_NS = 86_400 * 10**9
GOOD = """\
time_zone = "Europe/Berlin"

[[place]]
hosts = ["gpu-[001-004]"]
rack = "r1"
leaf = "leaf-1"

[[expected]]
model = "NVIDIA H100*"
gpus = 8

[[maintenance]]
racks = ["r1"]
begin = 2026-11-20T22:00:00
end = 2026-11-22
who = "alice"
why = "new power feed"

[[override]]
hosts = ["gpu-00?"]
xid = [63, 92]
until = 2026-12-24
who = "bob"
why = "known batch of HBM"

[thresholds]
gpu.slow_below_ratio = 0.8
"host.cpu_steal_ratio" = 0.3
"""
RULES = frozenset({"host.cpu_pressure", "net.flaps"})


def files(**texts: str) -> list[DeclaredFile]:
    """Return files by name; `_` stands for the dot."""
    return [DeclaredFile(name.replace("_", "."), text.encode()) for name, text in texts.items()]


def declared(**texts: str) -> Declared:
    return parse_files(files(**texts), NOW_NS, rules=RULES, number=1)


def problems(**texts: str) -> list[str]:
    with pytest.raises(DeclaredError) as caught:
        declared(**texts)
    return caught.value.problems


def test_a_good_file_is_taken_as_written() -> None:
    """Each kind of entry is there once."""
    declaration = declared(a_toml=GOOD)
    assert declaration.place("gpu-003") == HostPlacement(rack="r1", leaf="leaf-1")
    assert declaration.place("gpu-005") == HostPlacement()
    assert declaration.window("gpu-001", NOW_NS) and not declaration.window("gpu-005", NOW_NS)
    assert not declaration.window("gpu-001", NOW_NS + 2 * DAY_NS)
    window = declaration.window("gpu-001", NOW_NS)
    assert window is not None and (window.who, str(window.where)) == ("alice", "a.toml:12")
    xid: dict[str, Any] = {"signal": "gpu.xid", "device": "GPU-1"}
    assert declaration.override("gpu-001", "gpu.xid.63", NOW_NS, code=63, **xid)
    assert not declaration.override("gpu-001", "gpu.xid.79", NOW_NS, code=79, **xid)
    assert not declaration.override("gpu-011", "gpu.xid.63", NOW_NS, code=63, **xid)
    assert not declaration.override("gpu-001", "gpu.xid.63", NOW_NS + 40 * DAY_NS, code=63, **xid)
    assert declaration.threshold("gpu.slow_below_ratio") == 0.8
    assert declaration.threshold("host.cpu_steal_ratio") == 0.3
    assert declaration.threshold("host.cpu_pressure_ratio") == 0.6
    expected = declaration.expected("NVIDIA H100 80GB HBM3")
    assert expected is not None and expected.items == {"gpus": 8}
    assert declaration.expected("NVIDIA A100") is None and declaration.notes == ()
    assert declaration.expected("", "gpu-001") is None, "nobody says that it has any"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("rack = ", "rak = ", "a.toml:5: rak: unknown here; did you mean rack?"),
        ('hosts = ["gpu-[001-004]"]', 'hosts = ["gpu-*"]', "a.toml:4: hosts: 'gpu-*': hosts of a place are named"),
        ('hosts = ["gpu-[001-004]"]', 'hosts = "gpu-001"', "a.toml:4: hosts: 'gpu-001': expected a list"),
        ("gpus = 8", "gpus = 8.5", "a.toml:10: gpus: 8.5: expected a whole number from 0 to 256"),
        ("gpus = 8", "gpus = true", "a.toml:10: gpus: True: expected a whole number"),
        pytest.param("gpus = 8", f"gpus = 0x{'f' * 5000}", "a.toml:10: gpus: a number of thousands of digits: expected a whole number", id="digits"),
        ("gpus = 8", "", "a.toml:8: nothing is expected: there are gpus,"),
        ('model = "NVIDIA H100*"\n', "", "a.toml:8: no hosts selected:"),
        ('racks = ["r1"]\n', "", "a.toml:12: no hosts: name them"),
        ("end = 2026-11-22\n", "", "a.toml:12: end is missing: expected the end"),
        ("end = 2026-11-22\n", "end = 2026-11-19\n", "a.toml:15: end: expected after begin"),
        ("end = 2026-11-22\n", "end = 2036-11-22\n", "a.toml:15: end: expected after begin, at most 366 days"),
        ("end = 2026-11-22\n", 'end = "2026-11-22"\n', "a.toml:15: end: '2026-11-22': expected a time without quotes, as 2026-"),
        ("end = 2026-11-22\n", "end = 22:00:00\n", "a.toml:15: end: 22:00:00: expected a time with its offset"),
        ('time_zone = "Europe/Berlin"\n', "", "a.toml:13: begin: 2026-11-20T22:00:00: expected a time with its offset"),
        ("Europe/Berlin", "Europe/Berln", "a.toml:1: time_zone: 'Europe/Berln': unknown time zone"),
        ('why = "new power feed"\n', "", "a.toml:12: why is missing: expected the reason"),
        ('who = "alice"', 'who = ""', "a.toml:16: who: '': expected one line of 1 to 128 characters"),
        ("until = 2026-12-24\n", "", "a.toml:19: until is missing: an override has an end"),
        ("until = 2026-12-24\n", "until = 2028-12-24\n", "a.toml:22: until: expected after since, and at most 366 days from now"),
        ("xid = [63, 92]", "xid = [63, -1]", "a.toml:21: xid: [63, -1]: expected a whole number from 0 to 4,294,967,295"),
        ("xid = [63, 92]", "xid = []", "a.toml:21: xid: []: expected 1 to 64 codes"),
        ("xid = [63, 92]", "", "a.toml:19: noise is not specified"),
        ("xid = [63, 92]", 'rule = "host.cpu_presure"', "a.toml:21: rule: 'host.cpu_presure': no rule has this name; did you mean host.cpu_pressure?"),
        ("0.8", "1.8", "a.toml:27: gpu.slow_below_ratio: 1.8: expected a number from 0.5 to 0.99"),
        ("0.8", '"0.8"', "a.toml:27: gpu.slow_below_ratio: '0.8': expected a number without quotes, from 0.5 to 0.99"),
        ("0.3", "nan", "a.toml:28: host.cpu_steal_ratio: nan: expected a number"),
        ("gpu.slow_below", "gpu.slow_bellow", "a.toml:27: no threshold 'gpu.slow_bellow_ratio'; did you mean gpu.slow_below_ratio?"),
        ("[[maintenance]]", "[maintenance]", "expected [[maintenance]] before each, with two brackets"),
        ("[[override]]", "[[overide]]", "a.toml:19: 'overide' is unknown; there are [[place]]"),
        ("[thresholds]", "[thresholds", "a.toml: not TOML: "),
        ('rack = "r1"', "rack = r1", "a.toml: not TOML: Invalid value (at line 5, column 8); a text needs quotes"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(old: str, new: str, told: str) -> None:
    """An error without its line sends an operator through 400 of them at night."""
    assert old in GOOD
    errors = problems(a_toml=GOOD.replace(old, new, 1))
    assert any(told in error for error in errors), errors


def test_all_that_is_wrong_is_told_at_once() -> None:
    """One problem per run would be ten runs; the first twenty of thousands are enough."""
    text = GOOD.replace("rack = ", "rak = ").replace("gpus = 8", "gpus = 800").replace("0.8", "8")
    assert len(problems(a_toml=text)) == 3
    many = "".join(f'[[place]]\nhosts = ["h{n}"]\nrak = "r"\n' for n in range(100))
    assert problems(a_toml=many)[-1] == "and 80 more"


def test_who_says_where_a_host_stands() -> None:
    """Per field: operators' file, Topograph, label, hardware; every source is kept."""
    graph = {
        "instances": [
            {
                "id": "gpu-001",
                "network_layers": ["leaf-t", "spine-t", "core-t"],
                "labels": {"accelerator.topograph.run/domain": "nvl-1"},
            }
        ]
    }
    declaration = declared(a_toml=GOOD, b_json=json.dumps(graph))
    reported = {
        "gpu-001": (
            PlaceSource("label", "", HostPlacement(rack="r9", cooling_domain="cdu-1")),
            PlaceSource("hardware", "", HostPlacement(nvlink_domain="uuid.1")),
        )
    }
    declaration = declaration.with_reported(reported)
    assert declaration.place("gpu-001") == HostPlacement(
        rack="r1", cooling_domain="cdu-1", leaf="leaf-1", spine="spine-t", nvlink_domain="nvl-1",
        core="core-t",
    )  # fmt: skip
    assert [source.source for source in declaration.place_sources("gpu-001")] == [
        "file",
        "topograph",
        "label",
        "hardware",
    ]
    assert declaration.with_reported(reported) is declaration
    assert declaration.with_reported({}).place("gpu-001").cooling_domain == ""


def test_two_files_that_disagree_are_both_wrong() -> None:
    """With a last-file-wins rule, a file's name would move a host's power domain."""
    (problem,) = problems(a_toml=GOOD, b_csv="host,rack\ngpu-001,r2\n")
    assert problem == "b.csv:2: gpu-001: rack is r2 here and r1 at a.toml:3"
    assert (
        declared(a_toml=GOOD, b_csv="host,rack,spine\ngpu-001,r1,s1\n").place("gpu-001").spine
        == "s1"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "a.csv: empty: expected a first line as host,rack"),
        (
            "gpu-001,r1\n",
            "a.csv:1: expected a first line of names separated by commas or semicolons",
        ),
        (
            "host,rack\n\n# none\n",
            "a.csv: no host below the first line: if that is intended, remove the file",
        ),
        (
            "host,rails\ngpu-001,l0;l1\n",
            "a.csv:2: rails: 'l0;l1': expected names with spaces between them",
        ),
        ("host,rak\ngpu-001,r1\n", "a.csv:1: column 'rak' is unknown: did you mean rack?"),
        ("host,rack,rack\ngpu-001,r1,r2\n", "a.csv:1: column rack is there 2 times"),
        (
            "host,rack\ngpu-[1-2],r1\n",
            "a.csv:2: host: 'gpu-[1-2]': expected one host's name a line",
        ),
        ("host,rack\n,r1\n", "a.csv:2: host: '': expected host names"),
        (
            'host,rack\ngpu-001,"r1\ngpu-002,r2\ngpu-003,r3\n',
            "a.csv:2: not CSV: a quote begins here and does not end",
        ),
        ('host,rack\n"gpu-001"x,r1\n', "a.csv:2: not CSV: ',' expected after"),
        ('host,rack\ngpu-001,"r\n1"\ngpu-002,r2\n', "a.csv:2: rack: 'r\\n1': expected one line"),
        (
            "host,rack,power_domain\ngpu-001,hall 2, row 7,pdu-a\n",
            'a.csv:2: 4 values for 3 columns: what has a , in it needs quotes, as "hall 2, row 7"',
        ),
        ("host,rack\ngpu-001," + "r" * 129 + "\n", "a.csv:2: rack: "),
    ],
)
def test_a_wrong_csv_is_told(text: str, told: str) -> None:
    """An export with shifted columns must not put hosts into racks named by serial numbers."""
    assert any(told in error for error in problems(a_csv=text))


def test_csv_as_spreadsheets_write_it() -> None:
    """Semicolons, a byte order mark, unknown columns, empty cells and lines, comments."""
    text = "\ufeff# of the wiki\r\nHost;Rack;Asset;rails\r\n# spare\r\ngpu-001;r1;A17;l0 l1\r\n\r\ngpu-002;;;;;\r\n"
    declaration = declared(a_csv=text)
    assert declaration.place("gpu-001") == HostPlacement(rack="r1", rails=("l0", "l1"))
    assert declaration.place("gpu-002") == HostPlacement()
    assert declaration.notes == ("a.csv:2: column 'asset' is not read",)


def test_topograph_nvl72() -> None:
    """Topograph's model of 72 hosts in four NVLink domains (its tests/models), as its graph."""
    blocks = {"leaf-1-1": 1100, "leaf-1-2": 1200, "leaf-2-1": 2100, "leaf-2-2": 2200}
    graph = {
        "instances": [
            {
                "id": f"node{first + number}",
                "network_layers": [leaf, f"spine-{leaf[5]}", "core"],
                "labels": {"accelerator.topograph.run/domain": leaf.replace("leaf", "nvl")},
            }
            for leaf, first in blocks.items()
            for number in range(1, 19)
        ]
    }
    declaration = declared(a_json=json.dumps(graph))
    assert len(declaration.places) == 72
    expected = HostPlacement(leaf="leaf-2-1", spine="spine-2", core="core", nvlink_domain="nvl-2-1")
    assert declaration.place("node2118") == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "a.json:1: not JSON: "),
        ("[]", "a.json: expected Topograph's graph, as "),
        ('{"instances": [{}]}', "a.json: instances[0]: id None: id: expected a text"),
        ('{"instances": [1]}', "instances[0]: id None: expected an object"),
        ('{"instances": [{"id": "a b"}]}', "instances[0]: id 'a b': expected host names"),
        ('{"instances": [{"id": "a", "network_layers": "leaf"}]}', "id 'a': network_layers: expected a list"),
        ('{"instances": [{"id": "a", "network_layers": ["leaf", ""]}]}', "id 'a': network_layers: expected one line"),
        ('{"instances": [{"id": "a", "labels": []}, {"id": "b", "labels": [1]}]}', "instances[1]: id 'b': labels: expected an object"),
        ('{"instances": [{"id": "a", "labels": {"accelerator.topograph.run/domain": "n\\u0007"}}]}', "instances[0]: id 'a': labels: accelerator.topograph.run/domain: expected one line"),
        ('{"instances": []}', "a.json: no instances: if that is intended, remove the file"),
        ('{"instances": [{"id": "a", "network_layers": ["l"]}, {"id": "a", "network_layers": ["m"]}]}', "a.json: instances[1]: a: leaf is m here and l at a.json: instances[0]"),
        ("[" * 100_000, "not JSON"),
    ],
)  # fmt: skip
def test_a_wrong_graph_is_told(text: str, told: str) -> None:
    """Another engine's output in its place: Slurm's topology, for example."""
    assert any(told in error for error in problems(a_json=text))


def test_labels_that_topograph_sets() -> None:
    """A graph without layers, from a provider of labels; numbered tiers and older names."""
    labels = {"fabric.topograph.run/tier-0": "l", "network.topology.nvidia.com/spine": "s"}
    graph = {"instances": [{"id": "a", "labels": labels}]}
    assert declared(a_json=json.dumps(graph)).place("a") == HostPlacement(leaf="l", spine="s")
    rails = [f"leaf-of-a-long-name-{number:03}" for number in range(8)]
    labels |= {"network.topology.nvidia.com/spine": "", "gangline.rails": " ".join(rails)}
    place = declared(a_json=json.dumps({"instances": [{"id": "a", "labels": labels}]})).place("a")
    assert place == HostPlacement(leaf="l", rails=tuple(rails)), (
        "an agent may have these labels, too"
    )


def test_yaml_is_refused_with_the_way_out() -> None:
    """Ignored in silence, it would leave operators without their topology."""
    (problem,) = problems(model_yaml="switches:\n")
    assert problem.startswith(
        "model.yaml: YAML is not supported: declare it as TOML, or use Topograph's graph as JSON"
    )


def test_what_is_over_is_no_mistake() -> None:
    """A file that was valid last week stays valid: an old window must not block a new one."""
    later_ns = NOW_NS + 200 * DAY_NS
    declaration = parse_files(files(a_toml=GOOD), later_ns, rules=RULES)
    assert [note.partition(": ")[2] for note in declaration.notes] == [
        "this has ended and no longer has an effect"
    ] * 2
    assert not declaration.active_windows(later_ns) and not declaration.active_overrides(later_ns)


@pytest.mark.slow
def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that a program wrote without end must cost error lines, not memory."""
    many = "".join(f'[[override]]\nhosts = ["h{n}"]\n' for n in range(limits.ENTRIES_MAX + 1))
    assert any("2001 of them, at most 2000" in problem for problem in problems(a_toml=many))
    wide = (
        '[[place]]\nhosts = ["h[0-49999]"]\nrack = "r"\n[[place]]\nhosts = ["i[0-1]"]\nrack = "r"\n'
    )
    assert any(
        "50002 hosts have a place, at most 50000" in problem for problem in problems(a_toml=wide)
    )
    graph = json.dumps({"instances": [{"id": f"h{n}"} for n in range(30_000)]})
    table = "host,rack\n" + "".join(f"h{n},r\n" for n in range(30_000))
    assert len(declared(a_json=graph, b_csv=table).file_places) == 30_000, "they are the same hosts"
    other_graph = json.dumps({"instances": [{"id": f"i{n}"} for n in range(30_000)]})
    assert any(
        "60000 hosts have a place" in problem
        for problem in problems(a_json=graph, b_json=other_graph)
    )
    monkeypatch.setattr(csv_topograph, "PLACES_MAX", 3)
    assert any("more than 3 places of hosts" in problem for problem in problems(a_json=graph))
    assert any(
        "longer than 2097152 bytes" in problem
        for problem in problems(a_toml="#" * (limits.TOML_BYTES_MAX + 1))
    )
    repeated = "".join(
        '[[place]]\nhosts = ["h"]\nrack = "r"\n' for _ in range(limits.SOURCES_PER_HOST_MAX + 1)
    )
    assert any("named more than 16 times" in problem for problem in problems(a_toml=repeated))
    with pytest.raises(DeclaredError, match="not UTF-8"):
        parse_files([DeclaredFile("a.toml", b"# good\n# \xff\n")], NOW_NS)


def test_patterns_that_hosts_are_matched_by_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million patterns and 10,000 hosts pass all other limits: judging stops for hours."""
    limit = limits.MATCH_COST_MAX

    def window(hosts: list[str]) -> str:
        return (
            f"[[maintenance]]\nhosts = {json.dumps(hosts)}\nbegin = 2023-11-01T00:00:00Z\n"
            'end = 2023-12-01T00:00:00Z\nwho = "a"\nwhy = "b"\n'
        )

    assert declared(a_toml=window([f"r{n}-*" for n in range(limit)])).match_cost == limit
    (problem,) = problems(a_toml=window(["a-?*", *(f"r{n}-*" for n in range(limit - 1))]))
    assert problem.startswith(f"all files: {limit + 1} of *, ? and [..] to match names with")
    assert "in ranges" in problem and "racks" in problem
    before = files(a_toml=window([f"r{n}-*" for n in range(limit + 1)]))
    assert parse_files(before, NOW_NS, was_good=True).match_cost == limit + 1, (
        "by the limits of before"
    )
    names = [f"gpu-{n}" for n in range(limit + 1)]
    assert not declared(a_toml=window(names)).match_cost, "names are looked up"
    monkeypatch.setattr(fields, "NAMED_HOSTS_MAX", 3_000)
    assert not declared(a_toml=window(["x-[1-3000]"])).match_cost, "so is a set of them"
    (problem,) = problems(a_toml=window(["x-[1-2000]", "y-[1-1001]"]))
    assert "more than 3,000 hosts one by one: select them by place" in problem
    allowed = json.dumps([f"{n}.*" for n in range(limit)])
    expected = '[[expected]]\nmodel = "NVIDIA *"\nkernels = '
    assert problems(a_toml=f"{expected}{allowed}\n")[0].startswith("all files: ")


@given(st.text("ab*?[]-!1", max_size=12), st.text("ab1-", max_size=8))
def test_wildcards_fit_as_they_always_did(pattern: str, text: str) -> None:
    """A pattern that is compiled once must keep its meaning."""
    assert matches_pattern(text, pattern) == fnmatchcase(text, pattern)


@pytest.mark.parametrize("rule", ["host.silent", "host.returned"])
def test_what_is_never_noise_is_refused(rule: str) -> None:
    """It was accepted without effect: the host was STALE, without a reason."""
    text = f'[[override]]\nhosts = ["a"]\nrule = "{rule}"\nuntil = 2023-12-01T00:00:00Z\nwho = "a"\nwhy = "b"\n'
    with pytest.raises(DeclaredError, match="is never noise"):
        parse_files(files(a_toml=text), NOW_NS, rules=frozenset({rule}))
    assert parse_files(files(a_toml=text), NOW_NS, was_good=True).overrides, (
        "as it was before an upgrade"
    )


def test_thousands_of_mistakes_cost_no_more_than_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 MiB of unknown keys in another program's file: guesses took minutes without judging."""
    guessed_keys: list[str] = []
    real = problems_of.suggest_key

    def guessed(key: str, known: Iterable[str]) -> str:
        guessed_keys.append(key)
        return real(key, known)

    for where in (fields, overrides, toml_file):
        monkeypatch.setattr(where, "suggest_key", guessed)
    names = range(2_000)
    errors = problems(
        a_toml="[[place]]\nhosts = ['a']\n" + "".join(f"rac{n} = 1\n" for n in names),
        b_toml="[thresholds]\n" + "".join(f'"gpu.slow_belo{n}" = 1\n' for n in names),
        c_toml="".join(f'[[override]]\nrule = "none{n}"\n' for n in names),
    )
    assert errors[0] == "a.toml:3: rac0: unknown here; did you mean rack?"
    assert errors[-1].startswith("and ") and 0 < len(guessed_keys) <= limits.PROBLEMS_MAX


def test_a_table_that_is_none_of_hosts_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """An export of 16 MB with another first column, or with a column for each day."""
    monkeypatch.setattr(problems_of, "PROBLEMS_COUNTED_MAX", 50)
    errors = problems(a_csv="host,rack\n" + "a b,r1\n" * 5_000)
    assert errors[-1] == "and 50 more, where reading stopped"
    assert problems(a_csv="host,rack\n" + "a b,r1\n" * 60)[-1] == "and 40 more"
    wide = "host,rack," + ",".join(f"day{n}" for n in range(limits.COLUMNS_MAX)) + "\n"
    assert problems(a_csv=wide) == ["a.csv:1: 258 columns, at most 256"]


def test_a_host_in_many_lines_is_told_of_once_a_line() -> None:
    """16 lines of one host, each with another rack: 120 pairs, but 16 mistakes."""
    text = "host,rack,leaf\n" + "".join(f"gpu-001,r{n},l{n}\n" for n in range(5))
    assert problems(a_csv=text) == [
        f"a.csv:{line}: gpu-001: {name} is {name[0]}{line - 2} here and {name[0]}0 at a.csv:2"
        for line in range(3, 7)
        for name in ("rack", "leaf")
    ]


@given(st.dictionaries(st.sampled_from(sorted(THRESHOLDS)), st.floats(allow_nan=True)))
def test_a_threshold_is_within_its_limits_or_refused(wanted: dict[str, float]) -> None:
    """A limit of 0 or of infinity would find all hosts faulty, or no host."""
    text = "[thresholds]\n" + "".join(f'"{name}" = {value!r}\n' for name, value in wanted.items())
    good = all(THRESHOLDS[n].low <= value <= THRESHOLDS[n].high for n, value in wanted.items())
    try:
        declaration = declared(a_toml=text.replace("e+", "e"))
    except DeclaredError:
        assert not good
    else:
        assert good and {name: declaration.threshold(name) for name in wanted} == wanted


def test_what_is_meant_for_every_host_is_told() -> None:
    """`rule = "*"` on `hosts = ["*"]` disables all judging: allowed, but hardly meant."""
    declaration = declared(a_toml=GOOD.replace('hosts = ["gpu-00?"]', 'hosts = ["*"]'))
    assert declaration.notes == ("a.toml:20: this is for every host",)


def test_the_hash_is_of_what_files_hold() -> None:
    """Equal versions have equal hashes; one byte moved to the next file changes the hash."""
    original, moved_byte = (
        [DeclaredFile("a", b"xy"), DeclaredFile("b", b"z")],
        [DeclaredFile("a", b"x"), DeclaredFile("b", b"yz")],
    )
    assert hash_of(original) == hash_of(list(original)) != hash_of(moved_byte)
    assert len(hash_of([])) == 16 and NOTHING.hash == ""


def test_an_unexpected_error_is_a_problem_of_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library raised AssertionError: no file was named, other files' problems were lost."""

    def fail(*arguments: object) -> None:
        raise AssertionError("of a library")

    monkeypatch.setattr(loader, "parse_csv", fail)
    files = [DeclaredFile("a.csv", b"host,rack\n"), DeclaredFile("b.toml", b"nonsense = 1\n")]
    with pytest.raises(DeclaredError) as raised:
        parse_files(files, NOW_NS)
    assert raised.value.problems[0] == "a.csv: cannot be parsed: AssertionError: of a library"
    assert raised.value.problems[1].startswith("b.toml:1: 'nonsense' is unknown")
