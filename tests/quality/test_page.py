"""docs/quality.md as a whole: its head describes how it was made, and missing parts are named."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import bench.quality.__main__ as quality
import bench.quality.head as head_module
from bench.quality import captures, hazard, injected
from bench.quality.head import ReportHead, Section, Tree, commit_of, head, left_out, not_here
from bench.quality.kept import Pieces
from bench.quality.markdown import COLUMNS_MAX, wrapped
from bench.quality.simulated_page import EVALUATIONS


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page of the real recordings alone, on a machine without recordings."""
    parts = quality.sections
    monkeypatch.setattr(quality, "sections", lambda: parts()[:2])
    monkeypatch.setattr(hazard, "RECORDING", tmp_path / "../shared/data/faults/some.json")
    monkeypatch.setattr(captures, "DATA", tmp_path / "../shared/data")
    monkeypatch.setattr(quality, "PAGE", tmp_path / "quality.md")
    monkeypatch.setattr(quality, "CACHE_FOLDER", tmp_path / "kept")
    return tmp_path / "quality.md"


def test_without_recordings_the_page_says_what_is_left_out_and_ends_well(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A clean clone has no recordings: half a page without a notice would pass for a whole page."""
    assert quality.main(["--seed", "3", "--hours", "2"]) == 0
    text = page.read_text()
    flat = " ".join(text.split())  # lines end at 120 columns
    assert "by `make evaluate SEED=3 HOURS=2` (seed 3)" in flat
    assert (
        "Left out here, because their recordings are not there: **Real: hazard**, **Real: logs"
        in flat
    )
    for title in ("## Real: hazard", "## Real: logs, sysfs, captures"):
        assert f"{title}\n\n**Left out**" in text
    assert "- `../shared/data/faults/some.json`: faults of 400 nodes (GitHub: stepfun-ai" in flat
    assert all(
        f"- `../shared/data/{capture.path}`: {capture.what}" in flat
        for capture in captures.CAPTURES
    )
    assert str(page.parent) not in text, "no path of the machine that made it"
    assert (
        "left out: Real: hazard: its recordings are not in ../shared/data"
        in capsys.readouterr().err
    )
    assert quality.main(["--only", "hazard"]) == 0
    assert capsys.readouterr().out.startswith("## Real: hazard\n\n**Left out**")


@pytest.mark.parametrize(
    ("commit", "then", "made_anew"),
    [
        ("abc", ["--resume"], False),
        ("abc", [], True),
        ("abc", ["--resume", "--seed", "4"], True),
        ("def", ["--resume"], True),
        ("abc with changes that are not committed", ["--resume"], True),
    ],
)
def test_a_page_goes_on_with_sections_of_the_same_commit_and_settings_alone(
    page: Path, monkeypatch: pytest.MonkeyPatch, commit: str, then: list[str], made_anew: bool
) -> None:
    """A run of an hour was cut off after fifty minutes; half a page of yesterday's code would be worse."""
    monkeypatch.setattr(quality, "sections", lambda: (Section("injected", "Injected"),))
    calls: list[int] = []

    def section(seed: int, _: object) -> str:
        calls.append(seed)
        return f"## of {seed}"

    monkeypatch.setattr(injected, "section", section)
    monkeypatch.setattr(head_module, "commit_of", lambda _: "abc")
    assert quality.main(["--seed", "3"]) == 0
    monkeypatch.setattr(head_module, "commit_of", lambda _: commit)
    assert quality.main(["--seed", "3", *then]) == 0
    assert len(calls) == 1 + made_anew
    assert f"## of {calls[-1]}" in page.read_text()


def test_a_tree_that_changes_during_the_run_is_told_of_and_what_it_made_is_not_kept(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A commit during two hours of work: half of "from commit X" was made by commit Y, and the next
    run reused all of it.
    """
    root = _checkout(tmp_path / "tree")
    monkeypatch.setattr(quality, "ROOT", root)
    both = (Section("hazard", "Hazard"), Section("injected", "Injected"))
    monkeypatch.setattr(quality, "sections", lambda: both)
    changes = ["changed"]

    def injected_section(seed: int, _: object) -> str:
        for text in changes:
            (root / "code.py").write_text(text)
        return f"## Injected, of {seed}"

    monkeypatch.setattr(hazard, "section", lambda seed, _: f"## Hazard, of {seed}")
    monkeypatch.setattr(injected, "section", injected_section)
    assert quality.main(["--seed", "3"]) == 0
    commit = commit_of(root).split()[0]
    text = (
        f"**The tree changed while this was made**, to {commit} with changes that are not committed"
    )
    flat = " ".join(page.read_text().split())
    assert f"from commit {commit} by" in flat and text in flat
    assert text in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["hazard.md"]
    changes.clear()
    (root / "code.py").write_text("as it was")
    assert quality.main(["--seed", "3", "--resume"]) == 0
    assert "The tree changed" not in page.read_text() + capsys.readouterr().err
    assert len([*(tmp_path / "kept").iterdir()]) == 2


def test_once_the_tree_has_changed_no_piece_is_kept_though_it_is_put_back(tmp_path: Path) -> None:
    """Hours of the fleet are cached one by one, and a continued run reuses them."""
    root = _checkout(tmp_path / "tree")
    tree = Tree(root, commit_of(root))
    pieces = Pieces(tmp_path / "pieces", tree.is_same)
    pieces.write(0, "before")
    (root / "code.py").write_text("changed")
    pieces.write(1, "after")
    (root / "code.py").write_text("as it was")
    pieces.write(2, "later")
    assert [pieces.read(number) for number in range(3)] == ["before", None, None]


def _checkout(root: Path) -> Path:
    root.mkdir()
    (root / "code.py").write_text("as it was")
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(root), *arguments], check=True)
    return root


def test_the_published_seed_is_one_everywhere_and_the_page_tells_all_looks() -> None:
    """Each evaluation must be on the page: a file of the bench alone would hide it from readers."""
    seed = quality.PUBLISHED_SEED
    assert f"evaluate: SEED = {seed}\n" in (quality.ROOT / "Makefile").read_text()
    contributing = (quality.ROOT / "CONTRIBUTING.md").read_text()
    assert f"seed {seed} is what is published" in contributing
    looks = EVALUATIONS.read_text().strip()
    assert f"| {seed} | first, " in looks
    assert (quality.ROOT / "docs" / "quality.md").read_text().rstrip().endswith(looks)


def test_a_part_of_the_recordings_is_named_as_a_part(tmp_path: Path) -> None:
    """A table of three recordings where eight were meant."""
    (tmp_path / "here").touch()
    needed = tuple((tmp_path / name, f"what {name} is") for name in ("here", "gone"))
    section = Section("captures", "Some", needed)
    assert not section.is_left_out and not_here(section).endswith("- `gone`: what gone is\n")
    report_head = ReportHead("2026-11-21", "abc", 21, "make evaluate", "Python 3")
    assert "Made from a part of their recordings: **Some**." in head(report_head, [section])
    whole = Section("captures", "Some", needed[:1])
    assert not_here(whole) == "" and "part of their" not in head(report_head, [whole])
    assert left_out(Section("x", "X", needed[1:])).count("gone") == 2


def test_the_head_says_when_from_what_and_with_what_it_was_made(tmp_path: Path) -> None:
    """Two pages of different commits must be distinguishable."""
    report_head = ReportHead.now(21, "make evaluate", quality.ROOT)
    text = head(report_head, quality.sections())
    assert (
        f"Made on {report_head.date} from commit {report_head.commit} by `make evaluate` (seed 21), with Python 3."
        in text
    )
    assert all(name in text for name in ("numpy", "duckdb", "protobuf", "cores"))
    assert commit_of(tmp_path) == "unknown (no git checkout)"
    assert len(commit_of(quality.ROOT).split()[0]) == 12


@pytest.mark.parametrize(
    "wrong",
    [["--hours", "0"], ["--per-class", "x"], ["--only", "nothing"], ["--scenario", "quater"]],
)
def test_a_slip_is_told_in_words(
    wrong: list[str],
    page: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A mistyped option cost ten minutes of work for another page."""
    simulated = Section("simulated", "Simulated")
    monkeypatch.setattr(quality, "sections", lambda: (simulated,))
    with pytest.raises(SystemExit) as ended:
        quality.main(wrong)
    assert ended.value.code == 2 and "expected" in capsys.readouterr().err.replace(
        "choose from", "expected"
    )
    assert not page.exists()


def test_a_page_is_wrapped_but_for_its_tables_and_code() -> None:
    """A wrapped page stays as it is, and each list item keeps its indent."""
    line = "word " * 60
    page = f"# {line}\n\n{line}\n- {line}\n  - {line}\nshort\n\n| {line} |\n\n    {line}\n"
    once = wrapped(page)
    assert wrapped(once) == once
    long = [line[:6] for line in once.split("\n") if len(line) > COLUMNS_MAX]
    assert long == ["# word", "| word", "    wo"]
    assert once.split() == page.split()
    assert "\n  - word" in once and "\n    word word" in once


def test_code_of_a_page_is_never_wrapped() -> None:
    """Between fences, too."""
    page = "```\n" + "SELECT 1, " * 30 + "\n```\n"
    assert wrapped(page) == page
