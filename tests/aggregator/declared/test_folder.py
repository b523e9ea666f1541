"""Which files are read, and how many bytes of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gangline.aggregator.declared import loader
from gangline.aggregator.declared.loader import read_files
from gangline.aggregator.declared.problems import DeclaredError
from tests.aggregator.declared.test_reading import GOOD


def test_a_folder_is_read_by_name_and_what_is_no_declaration_is_left_alone(tmp_path: Path) -> None:
    """Editors leave copies, configuration management leaves dot files; a pipe never ends."""
    (tmp_path / "a.toml").write_text(GOOD)
    for name in (".b.toml.swp", "b.toml~", "README.md", "..data"):
        (tmp_path / name).write_text("nonsense = [")
    assert [file.name for file in read_files([tmp_path])] == ["a.toml"]
    os.mkfifo(tmp_path / "z.toml")
    writing = os.open(tmp_path / "z.toml", os.O_RDWR)  # has a writer, without data yet
    with pytest.raises(DeclaredError, match=r"z\.toml: not a regular file"):
        read_files([tmp_path])
    os.close(writing)
    (tmp_path / "z.toml").unlink()
    (tmp_path / "z.toml").mkdir()
    with pytest.raises(DeclaredError, match=r"z\.toml: not a regular file"):
        read_files([tmp_path])
    with pytest.raises(DeclaredError, match="No such file"):
        read_files([tmp_path / "none"])
    with pytest.raises(DeclaredError, match=r"two files are named a\.toml"):
        read_files([tmp_path / "a.toml", tmp_path / "a.toml"])


@pytest.mark.parametrize("name", ["a\x1b[31m.toml", "a\udcff.toml", "a\n.toml"])
def test_a_file_whose_name_cannot_be_told_is_refused(tmp_path: Path, name: str) -> None:
    """An unprintable name in the store and the finding broke `gangline hosts`."""
    (tmp_path / name).write_text(GOOD)
    with pytest.raises(DeclaredError, match="expected a name of printable characters") as caught:
        read_files([tmp_path])
    assert str(caught.value).isprintable()


def test_no_more_is_read_than_may_be_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong folder of 64 exports was read whole, a gigabyte, then refused without a name."""
    monkeypatch.setattr(loader, "TOTAL_BYTES_MAX", 10)
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("x" * 5)
    assert len(read_files([tmp_path])) == 2
    (tmp_path / "b.csv").write_text("x" * 6)
    (tmp_path / "c.csv").mkdir()  # would be an error if it were opened
    with pytest.raises(DeclaredError) as caught:
        read_files([tmp_path])
    problem = f"{tmp_path / 'b.csv'}: with this one the files are longer than 10 bytes together"
    assert caught.value.problems == [problem]
