"""Ctrl-C at `gangline sql`, once and twice, at any moment of a question: the next one is answered."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pytest

from gangline.aggregator.commands.sql_backends import ArrowAnswer, QuerySession, SnapshotBackend
from gangline.aggregator.query.messages import Question
from gangline.aggregator.query.pool import QueryPool

ENDLESS = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range + b.range < 0"
#: Moments of a question's life, and how often Ctrl-C comes just then.
MOMENTS = {
    "once as its process begins": {"_hand_over": 1},
    "twice as its process begins": {"_hand_over": 2},
    "again as its process is ended": {"_hand_over": 1, "_kill": 1},
    "again as its end is told": {"_hand_over": 1, "_on_query_exit": 1},
    "four times": {"_hand_over": 1, "_kill": 1, "_on_query_exit": 2},
}


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C means what it means on a terminal, also if who runs the tests ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press_at(monkeypatch: pytest.MonkeyPatch, moments: dict[str, int]) -> None:
    """Press Ctrl-C the given number of times within the first call of each of these methods."""
    for name, times in moments.items():
        method, left = getattr(QueryPool, name), [times]

        def pressed(*given: Any, _method: Any = method, _left: list[int] = left) -> Any:
            presses, _left[0] = _left[0], 0
            for _ in range(presses):
                os.kill(os.getpid(), signal.SIGINT)
            return _method(*given)

        monkeypatch.setattr(QueryPool, name, pressed)


def rows(answer: ArrowAnswer) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = pa.ipc.open_stream(answer).read_all().to_pylist()
    answer.finish()
    return result


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("moments", MOMENTS.values(), ids=MOMENTS)
def test_ctrl_c_frees_the_place(
    snapshot: Path, monkeypatch: pytest.MonkeyPatch, moments: dict[str, int]
) -> None:
    """Two quick Ctrl-C ended the prompt with a traceback; once every later question was refused, for good."""
    with QuerySession(SnapshotBackend(snapshot)) as opened:
        press_at(monkeypatch, moments)
        with (
            pytest.raises(KeyboardInterrupt),
            opened.answer(Question(ENDLESS, 0.0)) as answer,
        ):
            rows(answer)
        with opened.answer(Question("SELECT 42 AS a", 0.0)) as answer:
            assert rows(answer) == [{"a": 42}]


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_between_the_pieces_frees_the_place(snapshot: Path) -> None:
    """Ctrl-C while an answer is laid out, and again before it is cancelled: nothing of it is left running."""
    with QuerySession(SnapshotBackend(snapshot)) as opened:
        unread = opened.answer(Question("FROM range(100000000000)", 0.0))
        answer = unread.__enter__()
        assert isinstance(answer, io.RawIOBase) and answer.read(8)
        # its end is never reached: as if KeyboardInterrupt was raised before the first line of `finally`
        with opened.answer(Question("SELECT 42 AS a", 0.0)) as answer:
            assert rows(answer) == [{"a": 42}]
        unread.__exit__(None, None, None)
