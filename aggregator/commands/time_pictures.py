"""Pictures over time as SVG, readable on light and on dark: the timeline of a job, and a recording of a host."""

from __future__ import annotations

import math
import textwrap
from array import array
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple
from xml.sax.saxutils import escape

from ...contract.recording import GpuRecording
from .job_story import STATES, Timeline, clock

#: Character width of a title and its line height, in pixels: a bold sans-serif of 15 px.
TITLE_CHARACTER_WIDTH, TITLE_LINE = 8.6, 19

JOB_WIDTH, JOB_LEFT, JOB_RIGHT, ROW, JOB_TOP = 960, 150, 16, 18, 54
PACE_HEIGHT = 70
#: Color of a change of pace, which no state has.
CHANGE_COLOR = "#e91e63"
#: Characters of a host's name that fit on the left.
HOST_CHARACTERS_MAX = 20
#: Rows in a picture: more would be illegible.
HOSTS_MAX = 64
NOTE_CHARACTERS_MAX = 150
_JOB_STYLE = (
    "text{font:12px sans-serif;fill:#222}.title{font-size:15px;font-weight:bold}.faint{fill:#666}"
    ".paper{fill:#fff}.line{stroke:#222;fill:none;stroke-width:1.5}.grid{stroke:#bbb;stroke-width:.5}"
    "@media(prefers-color-scheme:dark){text{fill:#eee}.faint{fill:#aaa}.paper{fill:#16191d}"
    ".line{stroke:#eee}.grid{stroke:#555}}"
)
RECORDING_WIDTH, RECORDING_LEFT, RECORDING_RIGHT, RECORDING_TOP = 1000, 150, 16, 60
#: Heights within a GPU's row: the curves, the band of states below them, the gap.
CURVE, BAND, GAP = 48, 8, 14
#: GPU rows in a picture: more would be illegible.
GPUS_MAX = 16
GPU_CHARACTERS_MAX = 18
#: Time that a sample covers.
SAMPLE_NS = 100_000_000
POWER, SM_ACTIVE, CLOCK = "power_watts", "sm_active_ratio", "sm_clock_hertz"
#: Colors of the curves and of marks, which no state has.
_POWER_COLOR, _SM_COLOR, _CLOCK_COLOR, _MARK_COLOR = "#8e44ad", "#16a3b8", "#795548", "#e91e63"
#: Maximum length of a mark's label.
MARK_CHARACTERS_MAX = 110
#: Power and clock are drawn up to a multiple of these.
WATTS_STEP, HERTZ_STEP = 100.0, 0.5e9
_RECORDING_STYLE = (
    "text{font:12px sans-serif;fill:#222}.title{font-size:15px;font-weight:bold}.faint{fill:#666;font-size:11px}"
    ".paper{fill:#fff}.grid{stroke:#ccc;stroke-width:.5}"
    "@media(prefers-color-scheme:dark){text{fill:#eee}.faint{fill:#aaa}.paper{fill:#16191d}.grid{stroke:#555}}"
)


def svg_document(width: int, height: int, style: str, title: str, parts: Iterable[str]) -> str:
    """Return an SVG document: *title*, wrapped as needed, above *parts*."""
    lines = textwrap.wrap(title, int(width / TITLE_CHARACTER_WIDTH)) or [""]
    below = TITLE_LINE * (len(lines) - 1)
    height += below
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
            f"<style>{style}</style>",
            f'<rect class="paper" width="{width}" height="{height}"/>',
            *(
                f'<text class="title" x="12" y="{22 + TITLE_LINE * row}">{svg_text(line)}</text>'
                for row, line in enumerate(lines)
            ),
            f'<g transform="translate(0,{below})">',
            *parts,
            "</g>",
            "</svg>",
            "",
        ]
    )


def svg_text(text: str) -> str:
    """Return *text* escaped for an SVG element; unprintable characters become question marks."""
    return escape("".join(c if c.isprintable() else "?" for c in text))


def timeline_svg(timeline: Timeline, title: str, notes: Sequence[str] = ()) -> str:
    """Return the picture: per host a row of stacked shares, worst first, then pace and *notes*."""
    shown = timeline.hosts[:HOSTS_MAX]
    more = len(timeline.hosts) - len(shown)
    bottom = JOB_TOP + ROW * (len(shown) + bool(more))
    pace_top = bottom + 12
    notes = [line for note in notes for line in textwrap.wrap(note, NOTE_CHARACTERS_MAX)]
    height = pace_top + PACE_HEIGHT + 30 + 16 * len(notes)
    parts = _job_legend()
    for row, host in enumerate(shown):
        parts += _host_row(timeline, host, JOB_TOP + ROW * row)
    if more:
        parts.append(f'<text class="faint" x="{JOB_LEFT}" y="{bottom - 5}">… {more} more</text>')
    parts += _pace(timeline, pace_top)
    base = pace_top + PACE_HEIGHT + 16
    parts.append(f'<text class="faint" x="{JOB_LEFT}" y="{base}">{clock(timeline.begin)}</text>')
    parts.append(
        f'<text class="faint" x="{JOB_WIDTH - JOB_RIGHT}" y="{base}" text-anchor="end">{clock(timeline.end)} UTC</text>'
    )
    parts += [
        f'<text x="12" y="{base + 18 + 16 * row}">{svg_text(note)}</text>'
        for row, note in enumerate(notes)
    ]
    return svg_document(JOB_WIDTH, height, _JOB_STYLE, title, parts)


def _job_x(timeline: Timeline, column: float) -> float:
    return JOB_LEFT + (JOB_WIDTH - JOB_LEFT - JOB_RIGHT) * column / timeline.columns


def _job_legend() -> list[str]:
    parts, x = [], JOB_LEFT
    for name, (_, _, color) in STATES.items():
        parts.append(f'<rect x="{x}" y="34" width="11" height="11" fill="{color}"/>')
        parts.append(f'<text x="{x + 16}" y="44">{name.replace("_", " ")}</text>')
        x += 100
    return parts


def _host_row(timeline: Timeline, host: str, y: int) -> list[str]:
    parts = [f'<text x="12" y="{y + 12}">{svg_text(host[:HOST_CHARACTERS_MAX])}</text>']
    width = _job_x(timeline, 1) - _job_x(timeline, 0)
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
                f'<rect x="{_job_x(timeline, column):.1f}" y="{top:.1f}" width="{width + 0.2:.1f}" '
                f'height="{tall:.1f}" fill="{STATES[state][2]}"/>'
            )
    return parts


def _pace(timeline: Timeline, top: int) -> list[str]:
    floor = top + PACE_HEIGHT
    parts = [
        f'<text x="12" y="{top + 14}">pace</text>',
        f'<text class="faint" x="{JOB_LEFT - 6}" y="{top + 10}" text-anchor="end">100 %</text>',
        f'<text class="faint" x="{JOB_LEFT - 6}" y="{floor}" text-anchor="end">0</text>',
        f'<path class="grid" d="M{JOB_LEFT} {top}H{JOB_WIDTH - JOB_RIGHT}M{JOB_LEFT} {floor}H{JOB_WIDTH - JOB_RIGHT}"/>',
    ]
    drawing, path = False, ""
    for column, pace in enumerate(timeline.pace):
        if pace is None:
            drawing = False
            continue
        x, y = _job_x(timeline, column + 0.5), floor - PACE_HEIGHT * min(max(pace, 0.0), 1.0)
        path += f"{'L' if drawing else 'M'}{x:.1f} {y:.1f}"
        drawing = True
    if path:
        parts.append(f'<path class="line" d="{path}"/>')
    parts += [
        f'<path d="M{_job_x(timeline, column):.1f} {top}V{floor}" stroke="{CHANGE_COLOR}" stroke-dasharray="4 3"/>'
        for column in timeline.changes
    ]
    return parts


class Mark(NamedTuple):
    """An event within a recording. `wall_time_ns`: Unix time."""

    wall_time_ns: int
    text: str


def recording_svg(recording: GpuRecording, marks: Sequence[Mark] = ()) -> str:
    """Return the picture of *recording*: a row per GPU, a time axis, a line at each of *marks*."""
    shown = min(len(recording.devices), GPUS_MAX)
    row = CURVE + BAND + GAP
    bottom = RECORDING_TOP + row * shown
    more = len(recording.devices) - shown
    if recording.finding_ns:
        began_ns = recording.wall_time_ns + recording.finding_ns - recording.boottime_ns
        marks = [Mark(began_ns, recording.reason), *marks]
    end_ns = recording.wall_time_ns + round(recording.seconds * 1e9)
    marks = [mark for mark in marks if recording.wall_time_ns <= mark.wall_time_ns <= end_ns]
    height = bottom + 30 + 16 * (bool(more) + len(marks))
    scales = _Scales(
        _highest(recording, shown, POWER, WATTS_STEP), _highest(recording, shown, CLOCK, HERTZ_STEP)
    )
    parts = _recording_legend(scales)
    for device in range(shown):
        parts += _gpu_row(recording, device, RECORDING_TOP + row * device, scales)
    parts += _time_axis(recording, bottom)
    parts += _marks(recording, marks, bottom)
    if more:
        y = bottom + 34 + 16 * len(marks)
        parts.append(f'<text class="faint" x="12" y="{y}">… {more} more GPUs</text>')
    return svg_document(RECORDING_WIDTH, height, _RECORDING_STYLE, _title(recording), parts)


class _Scales(NamedTuple):
    """Upper bounds of the curves."""

    watts: float
    hertz: float


def _marks(recording: GpuRecording, marks: Sequence[Mark], bottom: int) -> list[str]:
    parts = []
    for row, mark in enumerate(marks):
        x = _recording_x(recording, mark.wall_time_ns - recording.wall_time_ns)
        when = datetime.fromtimestamp(mark.wall_time_ns / 1e9, UTC)
        parts.append(
            f'<path d="M{x:.1f} {RECORDING_TOP}V{bottom}" stroke="{_MARK_COLOR}" stroke-dasharray="4 3"/>'
        )
        parts.append(
            f'<text x="12" y="{bottom + 32 + 16 * row}" fill="{_MARK_COLOR}" style="fill:{_MARK_COLOR}">'
            f"{when:%H:%M:%S} {svg_text(mark.text[:MARK_CHARACTERS_MAX])}</text>"
        )
    return parts


def _title(recording: GpuRecording) -> str:
    begin = datetime.fromtimestamp(recording.wall_time_ns / 1e9, UTC)
    reason = "" if recording.reason in ("", "requested") else f": {recording.reason}"
    simulated = " (simulated)" if recording.simulated else ""
    return f"{recording.host}{simulated}, {recording.seconds:.0f} s from {begin:%Y-%m-%d %H:%M:%S} UTC{reason}"


def _recording_legend(scales: _Scales) -> list[str]:
    parts, x = [], 12
    for name, color, width in (
        (f"power, to {scales.watts:g} W", _POWER_COLOR, 140),
        ("SM activity, to 100 %", _SM_COLOR, 160),
        (f"SM clock, to {scales.hertz / 1e9:g} GHz", _CLOCK_COLOR, 166),
    ):
        parts.append(f'<path d="M{x} 40h12" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<text x="{x + 18}" y="44">{name}</text>')
        x += width
    for name, (_, _, color) in STATES.items():
        parts.append(f'<rect x="{x}" y="34" width="11" height="11" fill="{color}"/>')
        parts.append(f'<text x="{x + 16}" y="44">{name.replace("_", " ")}</text>')
        x += 94
    return parts


def _highest(recording: GpuRecording, shown: int, signal: str, step: float) -> float:
    """Return the highest *signal* of the shown GPUs, rounded up to a multiple of *step*."""
    if signal not in recording.signals:
        return step
    index = recording.signals.index(signal)
    highest = max(
        (v for gpu in range(shown) for v in recording.column(gpu, index) if math.isfinite(v)),
        default=0.0,
    )
    return step * max(1, math.ceil(highest / step))


def _gpu_row(recording: GpuRecording, device: int, top: int, scales: _Scales) -> list[str]:
    floor = top + CURVE
    name = recording.devices[device]
    if len(name) > GPU_CHARACTERS_MAX:
        name = f"{name[: GPU_CHARACTERS_MAX - 1]}…"
    parts = [
        f'<text x="12" y="{top + 14}">GPU {device}</text>',
        f'<text class="faint" x="12" y="{top + 30}">{svg_text(name)}</text>',
        f'<path class="grid" d="M{RECORDING_LEFT} {top}H{RECORDING_WIDTH - RECORDING_RIGHT}M{RECORDING_LEFT} {floor}H{RECORDING_WIDTH - RECORDING_RIGHT}"/>',
    ]
    for signal, maximum, color in (
        (CLOCK, scales.hertz, _CLOCK_COLOR),
        (SM_ACTIVE, 1.0, _SM_COLOR),
        (POWER, scales.watts, _POWER_COLOR),
    ):
        if signal in recording.signals:
            values = recording.column(device, recording.signals.index(signal))
            path = _curve(recording, values, top, maximum)
            parts.append(f'<path d="{path}" stroke="{color}" fill="none" stroke-width="1.1"/>')
    if "state" in recording.signals:
        states = recording.column(device, recording.signals.index("state"))
        parts += _state_band(recording, states, floor + 2)
    return parts


def _recording_x(recording: GpuRecording, offset_ns: float) -> float:
    return RECORDING_LEFT + (
        RECORDING_WIDTH - RECORDING_LEFT - RECORDING_RIGHT
    ) * offset_ns / 1e9 / (recording.seconds or 1.0)


def _curve(recording: GpuRecording, values: array[float], top: int, maximum: float) -> str:
    """Return a path through the minimum and maximum of each column, so that no spike is lost."""
    path, drawing, last_x = "", False, -math.inf
    # A gap of more than a second without samples interrupts the line.
    gap = max(8.0, _recording_x(recording, 1e9) - _recording_x(recording, 0))
    for x, low, high in _columns(recording, values):
        if x - last_x > gap:
            drawing = False
        for value in dict.fromkeys((low, high)):
            y = top + CURVE * (1 - min(max(value / maximum, 0.0), 1.0))
            path += f"{'L' if drawing else 'M'}{x:.1f} {y:.1f}"
            drawing = True
        last_x = x
    return path or f"M{RECORDING_LEFT} {top}"


def _columns(
    recording: GpuRecording, values: Sequence[float]
) -> Iterator[tuple[float, float, float]]:
    """Yield x, minimum and maximum of the samples that share a column."""
    values_by_x: dict[int, list[float]] = {}
    for offset_ns, value in zip(recording.offsets_ns, values, strict=True):
        if math.isfinite(value):
            values_by_x.setdefault(round(_recording_x(recording, offset_ns)), []).append(value)
    for x, column_values in values_by_x.items():
        yield float(x), min(column_values), max(column_values)


def _state_band(recording: GpuRecording, states: Sequence[float], top: int) -> list[str]:
    """Return a rectangle per stretch of columns with the same most frequent state.

    A second without a sample ends a stretch.
    """
    columns: dict[int, list[int]] = {}
    for offset_ns, state in zip(recording.offsets_ns, states, strict=True):
        if math.isfinite(state) and 0 <= int(state) < len(recording.states):
            columns.setdefault(round(_recording_x(recording, offset_ns)), []).append(int(state))
    width = max(1.0, _recording_x(recording, SAMPLE_NS) - RECORDING_LEFT)
    gap = max(width + 1, _recording_x(recording, 1e9) - RECORDING_LEFT)
    stretches: list[tuple[int, float, float]] = []
    for x, column_states in columns.items():
        state, begin = max(dict.fromkeys(column_states), key=column_states.count), float(x)
        if stretches and begin - stretches[-1][2] < gap:
            last, since, _ = stretches[-1]
            stretches[-1] = last, since, begin  # end the previous stretch at this column
            begin = since if last == state else begin
            if last == state:
                stretches.pop()
        stretches.append((state, begin, x + width))
    parts = []
    for state, begin, end in stretches:
        color = STATES.get(recording.states[state], ("", 0, "#9aa0a6"))[2]
        wide = max(min(end, RECORDING_WIDTH - RECORDING_RIGHT) - begin, 0.3)
        parts.append(
            f'<rect x="{begin:.0f}" y="{top}" width="{wide:.1f}" height="{BAND}" fill="{color}"/>'
        )
    return parts


def _time_axis(recording: GpuRecording, bottom: int) -> list[str]:
    parts = []
    step = next((s for s in (1, 5, 10, 30, 60) if recording.seconds / s <= 8), 60)
    for seconds in range(0, int(recording.seconds) + 1, step):
        x = _recording_x(recording, seconds * 1e9)
        moment = datetime.fromtimestamp(recording.wall_time_ns / 1e9 + seconds, UTC)
        parts.append(f'<path class="grid" d="M{x:.1f} {RECORDING_TOP}V{bottom}"/>')
        parts.append(
            f'<text class="faint" x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{moment:%H:%M:%S}</text>'
        )
    return parts
