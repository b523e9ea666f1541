"""`world.toml`: every number has its source, and errors name the valid form."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline.simulator import jobs
from gangline.simulator.scenario import ScenarioError
from gangline.simulator.scenario_file import FILE_BYTES_MAX, PATH, load, parse
from gangline.simulator.world import World

TEXT = PATH.read_text()


def test_every_class_says_where_its_numbers_come_from() -> None:
    """A rate needs a source; an unpublished rate is marked as such."""
    settings = load()
    assert len(settings.classes) == 34 and len(settings.scenarios) == 14
    for class_ in settings.classes.values():
        assert len(class_.source) > 5 and class_.amount_is
        if "chosen" in class_.source.split(":")[0]:
            assert class_.assumed, class_.name
        if (
            class_.kills
        ):  # its duration is how long a gang hangs before it dies, and no source gives that
            assert class_.assumed or {"duration_median_seconds", "duration_sigma"} <= {
                *class_.chosen
            }
        if "assumed" in class_.source:
            assert class_.assumed or class_.chosen or "as which XID" in class_.source, class_.name
    # No public rates exist for link flaps, throttling by power and caps: they are labelled.
    assert all(settings.classes[n].assumed for n in ("flap", "power_cap", "power_brake"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rate = 1.0e-3", "rate = -1.0", r"\[class.thermal\] rate: -1: expected 0 to 1"),
        ("rate = 1.0e-3", "rate = nan", r"rate: nan: expected a number"),
        ("rate = 1.0e-3", 'rate = "often"', r"rate: 'often': expected a number"),
        ("rate = 1.0e-3", "", r"\[class.thermal\] rate: missing"),
        ('per = "gpu_hour"', 'per = "fortnight"', r"per: 'fortnight': expected one of gpu_hour"),
        ("onset_seconds = [40.0, 120.0]", "onset_seconds = [9.0, 1.0]", r"expected \[least, great"),
        ("kills = false", "kills = 0", r"kills: 0: expected true or false"),
        ("rack_hosts = 4", "rack_hosts = 0", r"\[fleet\] rack_hosts: 0: expected 1"),
        ("nvlink_hosts = 9", "nvlink_hosts = 73", r"nvl72\] nvlink_hosts: 73: expected 1 to 72"),
        (
            "tensor_ratio = 0.10",
            "tensor_ratio = 0.9",
            r"\[jobs\] tensor_ratio: 0.9: expected 0 to 0.8",
        ),
        ("hosts = 2000", "hosts = 99999", r"hosts: 99999: expected 1 to 20000"),
        ("[fleet]", "[flet]", r"unknown table \[flet\]"),
        ("[spread]", "[spread]\nmood = 1", r"\[spread\] mood: unknown; expected clock_sigma"),
        ('classes = ["benign"]', 'classes = ["bening"]', r"'bening': expected faults, monitoring"),
        ("weights = [0.42,", "weights = [", r"expected as many of each"),
        ("until_days = [0.0417, 1.0", "until_days = [1.0, 0.5", r"expected rising days"),
        ("[fleet]", "[fleet", r"not TOML"),
        (
            "amount = [0.12, 0.30]",
            "amount = [0.12, 1.0]",
            r"\[class.thermal\] amount: 1: expected 0 to 0.95",
        ),
        (
            "clock_sigma = 0.0185",
            "clock_sigma = -1.0",
            r"\[spread\] clock_sigma: -1: expected 0 to 0.3",
        ),
        (
            "duration_sigma = 1.3",
            "duration_sigma = -1.3",
            r"\[jobs\] duration_sigma: -1.3: expected 0 to 5",
        ),
        (
            "pause_median_minutes = 6.0",
            "pause_median_minutes = 0.0",
            r"pause_median_minutes: 0: expected 0.01",
        ),
        (
            "stage_seconds = [20.0,",
            "stage_seconds = [40.0,",
            r"stage_seconds: .*expected \[least, great",
        ),
        (
            "parade_seconds = 90.0",
            "parade_seconds = 90.0\nstage_seconds = [1.0, 2.0]",
            r"\[scenario.demo\] stage_seconds: expected no parade_seconds beside it",
        ),
        (
            "[scenario.three.jobs]",
            "[scenario.three.jobs]\nmood = 1",
            r"\[scenario.three.jobs\] mood: unknown",
        ),
        (
            "hosts = [8]",
            "hosts = [0]",
            r"\[scenario.three.jobs\] hosts and weights: expected as many",
        ),
        (
            "[scenario.demo]",
            "[scenario.demo]\njobs = 7",
            r"\[scenario.demo\] jobs: 7: expected a table",
        ),
        ("shape = 2.0", "shape = 1e-9", r"\[frailty\] shape: 1e-09: expected 0.01"),
        (
            'chosen = ["onset_seconds", "duration_sigma", "amount"]',
            'chosen = ["mood"]',
            r"\[class.thermal\] chosen: 'mood': expected some of per, rate, ",
        ),
        (
            'assumed = false\nchosen = ["hours_max',
            'assumed = true\nchosen = ["hours_max',
            r"\[repair\] chosen: expected none, as all of it is assumed",
        ),
    ],
)
def test_what_is_wrong_is_said_in_words(old: str, new: str, message: str) -> None:
    """The world must not run with a mistyped rate."""
    with pytest.raises(ScenarioError, match=message):
        parse(TEXT.replace(old, new, 1))


def test_a_rate_that_memory_does_not_bear_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each number is within its bounds, but together they are a billion incidents."""
    many = parse(TEXT.replace("rate = 1.0e-3", "rate = 1.0", 1))
    with pytest.raises(
        ScenarioError, match=r"thermal\] rate: 1 gpu_hour makes about 34,560,000 incid"
    ):
        World("quarter", 1, settings=many)
    monkeypatch.setattr(jobs, "JOBS_MAX", 1000)
    short = TEXT.replace("duration_median_hours = 5.0", "duration_median_hours = 0.01")
    with pytest.raises(ScenarioError, match=r"\[jobs\]: more than 1,000 of them"):
        World(
            "demo", 1, settings=parse(short.replace("duration_sigma = 1.3", "duration_sigma = 0.0"))
        )


def test_a_file_that_is_no_world_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "world.toml"
    path.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(ScenarioError, match="longer than 1048576 bytes"):
        load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ScenarioError, match=r"world\.toml: not UTF-8"):
        load(path)
    with pytest.raises(ScenarioError, match=r"none\.toml: No such file"):
        load(tmp_path / "none.toml")


def test_what_is_no_world_is_refused() -> None:
    """A class without an effect in code would occur and show nothing."""
    with pytest.raises(ScenarioError, match="expected one of quarter"):
        World("quater", 1)
    with pytest.raises(ScenarioError, match="expected 1 to 20000"):
        World("demo", 1, hosts=0)
    with pytest.raises(ScenarioError, match="seed -1"):
        World("demo", -1)
    with pytest.raises(ScenarioError, match=r"\[class.flapping\]: expected one of"):
        parse(TEXT.replace("[class.flap]", "[class.flapping]"))
