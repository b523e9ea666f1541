"""Terminal output of the commands: tables, live views and progress, drawn by rich."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ..durable_file import format_bytes

#: Width of prose if the output is not a terminal.
WIDTH_CHARACTERS = 240
#: A last cell with fewer characters left beside the others is printed below them.
TEXT_CHARACTERS_MIN = 24
#: Interval between progress lines if the output is not a terminal.
LINE_SECONDS = 10.0


def table_width(stream: Any = None) -> int:
    """Return the line width: COLUMNS, else the terminal's, else 0 (unlimited)."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdecimal() and int(columns[:6]) > 0:
        return int(columns[:6])
    try:
        return os.get_terminal_size((sys.stdout if stream is None else stream).fileno()).columns
    except (OSError, ValueError, AttributeError):
        return 0


def width_of(stream: Any = None) -> int:
    """Return the line width for prose."""
    return table_width(stream) or WIDTH_CHARACTERS


def wants_colour(stream: Any = None) -> bool:
    """Return whether to use color: on a terminal with color support, unless NO_COLOR is set."""
    console = Console(file=sys.stdout if stream is None else stream)
    return console.color_system is not None and not console.no_color


def screen_rows() -> int:
    """Return the terminal lines available to a table above the prompt."""
    return max(2, shutil.get_terminal_size().lines - 1)


def printable(text: str) -> str:
    """Return *text* with "?" for each control character: hosts choose their names."""
    return "".join(c if c.isprintable() else "?" for c in text)


def clean_texts(message: Any) -> None:
    """Make a protobuf message's texts printable: a newline in a device name could forge lines."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            if field.message_type.GetOptions().map_entry:
                continue
            for nested in (value,) if hasattr(value, "ListFields") else value:
                clean_texts(nested)
        elif isinstance(value, str):
            setattr(message, field.name, printable(value))
        elif field.type == field.TYPE_STRING:
            value[:] = [printable(text) for text in value]


def cut(text: str, characters_max: int) -> str:
    """Return *text* without control characters, with an ellipsis if it is too long."""
    plain = printable(text)
    return plain if len(plain) <= characters_max else plain[: characters_max - 1] + "…"


def table(
    rows: Sequence[Sequence[str]],
    width: int | None = None,
    *,
    right: Collection[str] = (),
    one_line: bool = False,
    styles: Sequence[str] | None = None,
) -> str:
    """Return *rows*, headings first, as lines of at most *width* characters.

    *width*: 0 is unlimited, None is standard output's. Where the width is too small, cells wrap; a
    last cell without space beside the others goes below them. *one_line*: cut the last cells
    instead. *right*: headings of right-aligned columns. *styles*: rich style of each row below the
    headings.
    """
    width = table_width() if width is None else width
    rows = [[printable(cell) for cell in row] for row in rows]
    to_right = [heading in right for heading in rows[0]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    whole = sum(widths) + 2 * len(widths) - 2
    if styles is None and (not width or whole <= width):
        return "\n".join(  # for programs, and thousands of rows: rich takes 45 us per cell
            "  ".join(
                cell.rjust(size) if is_right else cell.ljust(size)
                for cell, size, is_right in zip(row, widths, to_right, strict=True)
            ).rstrip()
            for row in rows
        )
    width = min(width or whole, whole)
    others = whole - widths[-1]
    if not one_line and others - 2 <= width < others + min(widths[-1], TEXT_CHARACTERS_MIN):
        lines = table([row[:-1] for row in rows], width, right=right).splitlines()
        indent = " " * 4
        below = [
            textwrap.wrap(row[-1], width, initial_indent=indent, subsequent_indent=indent)
            for row in rows
        ]
        return "\n".join(
            line for pair in zip(lines, below, strict=True) for line in (pair[0], *pair[1])
        )
    sizes = [*widths[:-1], max(TEXT_CHARACTERS_MIN, width - others)]
    if not one_line:  # never split a word: half a number reads as another number
        sizes = [max(map(len, " ".join(column).split())) for column in zip(*rows, strict=True)]
        for _ in range(width - sum(sizes) - 2 * (len(sizes) - 1)):
            narrow = (index for index, size in enumerate(sizes) if size < widths[index])
            sizes[min(narrow, key=sizes.__getitem__)] += 1
    grid = Table(box=None, pad_edge=False, width=sum(sizes) + 2 * len(sizes) - 2)
    for heading, size, is_right in zip(rows[0], sizes, to_right, strict=True):
        grid.add_column(Text(heading), width=size, justify="right" if is_right else "left")
    for row, style in zip(rows[1:], styles or [""] * len(rows), strict=False):
        cells = (Text(cell, no_wrap=one_line, overflow="ellipsis") for cell in row)
        grid.add_row(*cells, style=style)
    out = io.StringIO()
    console = Console(
        file=out,
        width=width if one_line else grid.width,
        color_system=None if styles is None else "standard",
        force_terminal=styles is not None,
        no_color=False,  # a caller that gives styles has checked `wants_colour`
    )
    console.print(grid)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


@contextlib.contextmanager
def refreshed(*, in_place: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a text on standard output, *in_place* or below the last text.

    In place, the terminal's own content returns at the end, and the last text remains below it.
    """
    console = Console()
    if not in_place or console.is_dumb_terminal:
        yield lambda text: print(text, flush=True)
        return
    last = ""
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:

            def show(text: str) -> None:
                nonlocal last
                last = text
                live.update(Text.from_ansi(text, no_wrap=True, overflow="crop"), refresh=True)

            yield show
    finally:
        if last:
            print(last, flush=True)


class ProgressBar:
    """Progress of a long operation on stderr: a bar on a terminal, else lines; nothing if *quiet*.

    Call `begin` for each part, `advance` or `at` to report progress, and `end`, which leaving the
    context also calls.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        out: TextIO | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        format_amount: Callable[[int], str] = format_bytes,
    ) -> None:
        self._console = Console(file=out or sys.stderr)
        self._quiet, self._monotonic, self._format_amount = quiet, monotonic, format_amount
        self._what, self._total, self._done, self._line_at = "", 0, 0, 0.0
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is not None:
            self._total = self._total or -1  # a failed part must not look complete
        self.end()

    def begin(self, what: str, total: int) -> None:
        """Begin a part of *total* bytes, or units of *format_amount*; 0: unknown."""
        self.end()
        self._what, self._total, self._done = what, total, 0
        self._line_at = self._monotonic()
        if self._quiet:
            return
        if not self._console.is_terminal:
            self._line(f"{what}: {self._format_amount(total)}" if total else f"{what} ...")
            return
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[amount]}", markup=False),
            TimeRemainingColumn(),
            console=self._console,
            get_time=self._monotonic,
        )
        self._bar.add_task(what, total=total or None, amount="")
        self._bar.start()

    def advance(self, size_bytes: int) -> None:
        """Add *size_bytes* to the progress."""
        self.at(self._done + size_bytes, self._total)

    def at(self, done: int, total: int) -> None:
        """Report *done* of *total* units."""
        self._done, self._total = done, total
        if self._quiet:
            return
        amount = f"{self._format_amount(done)} of {self._format_amount(max(total, done))}"
        if self._bar is not None:
            task = self._bar.task_ids[0]
            self._bar.update(task, completed=done, total=total or None, amount=amount)
        elif (now := self._monotonic()) - self._line_at >= LINE_SECONDS:
            self._line_at = now
            self._line(f"{self._what}: {amount}")

    def end(self) -> None:
        """End the part; later output begins on a new line."""
        if self._bar is not None:
            if not self._total:
                self._bar.update(self._bar.task_ids[0], total=1, completed=1)
            self._bar.stop()
        self._bar = None

    def _line(self, detail: str) -> None:
        print(detail, file=self._console.file, flush=True)
