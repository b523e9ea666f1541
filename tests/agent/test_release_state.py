"""Released GPUs, as read by the next agent."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.release_state import (
    FILE_NAME,
    RELEASE_SECONDS_MAX,
    ReleasedGpu,
    ReleaseStateFile,
    format_released,
    parse_released,
)

BOOT, NOW = b"b" * 16, 10**12
A = "0000:1b:00.0"


@given(
    st.lists(
        st.builds(
            ReleasedGpu,
            st.sampled_from([None, A, "00010000:9b:00.0"]),
            st.integers(NOW + 1, NOW + int(RELEASE_SECONDS_MAX * 1e9)),
            st.text("reset it, \N{LATIN SMALL LETTER E WITH ACUTE}!", max_size=120),
        ),
        max_size=60,
    )
)
def test_what_is_written_is_read(released: list[ReleasedGpu]) -> None:
    content = format_released(BOOT, released)
    assert parse_released(content, BOOT, NOW) == released
    assert parse_released(content, b"another", NOW) == []


def test_a_time_that_is_over_or_past_a_day_is_none() -> None:
    """Boot time restarted under the same boot id: a host must not stay blind."""
    times = (NOW, NOW + 1, NOW + int((RELEASE_SECONDS_MAX + 1) * 1e9))
    content = format_released(BOOT, [ReleasedGpu(A, moment, "") for moment in times])
    assert [released.until_ns for released in parse_released(content, BOOT, NOW)] == [NOW + 1]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 60_000,
        json.dumps({"boot_id": BOOT.hex(), "released": 3}).encode(),
        json.dumps({"boot_id": BOOT.hex(), "released": [[]]}).encode(),
        format_released(BOOT, [ReleasedGpu("../../etc", NOW + 1, "")]),
        format_released(BOOT, [ReleasedGpu(A, 1.5, "")]),  # type: ignore[arg-type]
        format_released(BOOT, [ReleasedGpu(A, NOW + 1, 7)]),  # type: ignore[arg-type]
    ],
)
def test_a_damaged_note(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert ReleaseStateFile(tmp_path, BOOT).read(NOW) == []
    assert FILE_NAME in caplog.text


def test_a_folder_that_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = ReleaseStateFile(tmp_path / "none", BOOT)
    assert file.read(NOW) == []
    assert not caplog.text, "no file is the usual case"
    file.write([ReleasedGpu(A, NOW + 1, "")])
    assert "after a restart the agent would reopen the GPUs" in caplog.text


def test_words_of_a_file_are_no_lines_of_a_log(tmp_path: Path) -> None:
    file = ReleaseStateFile(tmp_path, BOOT)
    file.write([ReleasedGpu(None, NOW + 1, "a\nb" + "x" * 500)])
    (result,) = file.read(NOW)
    assert result.reason == "ab" + "x" * 118
