"""The timeline of a job as a picture: SVG by our own writer, readable on light and on dark."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from .job_story import STATES, Timeline, clock

WIDTH, LEFT, RIGHT, ROW, TOP = 960, 150, 16, 18, 54
PACE_HEIGHT = 70
#: Characters of a host's name that fit on the left.
NAME_CHARACTERS_MAX = 20
#: A picture of more is read by nobody.
HOSTS_MAX = 64
_STYLE = (
    "text{font:12px sans-serif;fill:#222}.title{font-size:15px;font-weight:bold}.faint{fill:#666}"
    ".paper{fill:#fff}.line{stroke:#222;fill:none;stroke-width:1.5}.grid{stroke:#bbb;stroke-width:.5}"
    "@media(prefers-color-scheme:dark){text{fill:#eee}.faint{fill:#aaa}.paper{fill:#16191d}"
    ".line{stroke:#eee}.grid{stroke:#555}}"
)


def timeline_svg(timeline: Timeline, title: str, notes: Sequence[str] = ()) -> str:
    """Return the picture: a row of stacked shares for each host, worst first, the pace below, then *notes*."""
    shown = timeline.hosts[:HOSTS_MAX]
    more = len(timeline.hosts) - len(shown)
    bottom = TOP + ROW * (len(shown) + bool(more))
    pace_top = bottom + 12
    height = pace_top + PACE_HEIGHT + 30 + 16 * len(notes)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        f'<text class="title" x="12" y="22">{_text(title)}</text>',
        *_legend(),
    ]
    for at, host in enumerate(shown):
        parts += _host_row(timeline, host, TOP + ROW * at)
    if more:
        parts.append(f'<text class="faint" x="{LEFT}" y="{bottom - 5}">… {more} more</text>')
    parts += _pace(timeline, pace_top)
    base = pace_top + PACE_HEIGHT + 16
    parts.append(f'<text class="faint" x="{LEFT}" y="{base}">{clock(timeline.begin)}</text>')
    parts.append(
        f'<text class="faint" x="{WIDTH - RIGHT}" y="{base}" text-anchor="end">{clock(timeline.end)} UTC</text>'
    )
    parts += [
        f'<text x="12" y="{base + 18 + 16 * at}">{_text(note[:150])}</text>'
        for at, note in enumerate(notes)
    ]
    return "\n".join([*parts, "</svg>", ""])


def _x(timeline: Timeline, column: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * column / timeline.columns


def _legend() -> list[str]:
    parts, x = [], LEFT
    for name, (_, _, color) in STATES.items():
        parts.append(f'<rect x="{x}" y="34" width="11" height="11" fill="{color}"/>')
        parts.append(f'<text x="{x + 16}" y="44">{name.replace("_", " ")}</text>')
        x += 100
    return parts


def _host_row(timeline: Timeline, host: str, y: int) -> list[str]:
    parts = [f'<text x="12" y="{y + 12}">{_text(host[:NAME_CHARACTERS_MAX])}</text>']
    width = _x(timeline, 1) - _x(timeline, 0)
    for column, cell in enumerate(timeline.shares[host]):
        if cell is None:
            continue
        total, top = sum(cell.values()) or 1.0, y + ROW - 3.0
        for state, share in cell.items():
            tall = (ROW - 4) * share / total
            if tall < 0.1:
                continue
            top -= tall
            parts.append(
                f'<rect x="{_x(timeline, column):.1f}" y="{top:.1f}" width="{width + 0.2:.1f}" '
                f'height="{tall:.1f}" fill="{STATES[state][2]}"/>'
            )
    return parts


def _pace(timeline: Timeline, top: int) -> list[str]:
    floor = top + PACE_HEIGHT
    parts = [
        f'<text x="12" y="{top + 14}">pace</text>',
        f'<text class="faint" x="{LEFT - 6}" y="{top + 10}" text-anchor="end">100 %</text>',
        f'<text class="faint" x="{LEFT - 6}" y="{floor}" text-anchor="end">0</text>',
        f'<path class="grid" d="M{LEFT} {top}H{WIDTH - RIGHT}M{LEFT} {floor}H{WIDTH - RIGHT}"/>',
    ]
    drawing, path = False, ""
    for column, pace in enumerate(timeline.pace):
        if pace is None:
            drawing = False
            continue
        x, y = _x(timeline, column + 0.5), floor - PACE_HEIGHT * min(max(pace, 0.0), 1.0)
        path += f"{'L' if drawing else 'M'}{x:.1f} {y:.1f}"
        drawing = True
    if path:
        parts.append(f'<path class="line" d="{path}"/>')
    parts += [
        f'<path d="M{_x(timeline, at):.1f} {top}V{floor}" stroke="#d1495b" stroke-dasharray="4 3"/>'
        for at in timeline.changes
    ]
    return parts


def _text(text: str) -> str:
    return escape("".join(c if c.isprintable() else "?" for c in text))
