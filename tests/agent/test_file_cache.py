"""Values derived from files that rarely change: never outdated, and rarely recomputed."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.collectors.file_cache import FileCache
from gangline.agent.hardware.files import FileReader
from gangline.ext import place

NAMES = ("a", "b", "folder/c")
#: (name, content): a file is written; a file in a folder may be removed (None).
CHANGES = st.tuples(
    st.sampled_from(NAMES), st.none() | st.sampled_from(["1\n", "2\n", "x" * 5000, "y" * 5000])
)


def all_of(folder: Path, files: FileReader) -> dict[str, str | None]:
    """Read some files; the files of a folder only if listed."""
    names = ["a", "b", *(f"folder/{name}" for name in files.names(folder / "folder"))]
    return {name: files.text(folder / name) for name in names}


@given(st.lists(st.lists(CHANGES, max_size=3), max_size=8))
def test_it_is_what_the_files_say_now(turns: list[list[tuple[str, str | None]]]) -> None:
    """A governor was changed, a file appeared and disappeared."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "folder").mkdir()
        remembered = FileCache(lambda files: all_of(folder, files))
        for changes in turns:
            for file, text in changes:
                if text is not None:
                    (folder / file).write_text(text)
                elif file == "folder/c":
                    (folder / file).unlink(missing_ok=True)
            remembered.refresh()
            assert remembered.value == all_of(folder, FileReader())


def test_it_is_worked_out_when_something_is_another_and_now_and_then(tmp_path: Path) -> None:
    """All files were read again each minute, for a change a year."""
    file = tmp_path / "a"
    file.write_text("1\n")
    remembered = FileCache(lambda files: files.unsigned(file), turns_max=4)
    assert [remembered.refresh() for _ in range(5)] == [True, False, False, False, True]
    file.write_text("2\n")
    assert (remembered.refresh(), remembered.value) == (True, 2)
    assert not remembered.refresh()


def test_files_that_are_others_while_they_are_read_are_looked_at(tmp_path: Path) -> None:
    """A slave that joined its bond between two readings of the list was missed for ten minutes."""
    (tmp_path / "a").write_text("1\n")
    calls: list[str] = []

    def work_out(files: FileReader) -> str | None:
        calls.append("")
        return files.text(tmp_path / ("a" if len(calls) == 1 else "b"))

    remembered = FileCache(work_out)
    assert (remembered.refresh(), remembered.value) == (True, None)
    (tmp_path / "b").write_text("2\n")
    assert (remembered.refresh(), remembered.value) == (True, "2")
    assert not remembered.refresh()


def test_a_device_that_is_spared_is_neither_looked_at_nor_read(tmp_path: Path) -> None:
    """The check for changes read the hung core again in the next minute."""
    (tmp_path / "a").write_text("1\n")
    spared: set[str] = set()
    remembered = FileCache(
        lambda files: None if "cpu0" in spared else files.text(tmp_path / "a", "cpu0")
    )
    remembered.refresh()
    memory = bytearray(place.SIZE_BYTES)
    place.use(memory)
    assert remembered.refresh() is False and place.here().calls == 1
    assert b"cpu0\0" in memory and f"read {tmp_path.name}/a\0".encode() in memory
    spared.add("cpu0")
    remembered.exclude(frozenset(spared))
    assert (remembered.refresh(), remembered.value) == (True, None)
    assert place.here().calls == 1
