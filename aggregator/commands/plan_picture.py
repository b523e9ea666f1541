"""Draws a plan on the topology, as text and SVG: nodes by leaf and rack, each with its kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...contract.wire import placement_pb2 as wire
from .time_pictures import svg_document, svg_text

CHOSEN, BACKUP, FREE, BUSY, OUT = "chosen", "spare", "free", "in use", "out"
#: Kind of node -> its sign in a terminal.
SIGNS = {CHOSEN: "#", BACKUP: "s", FREE: ".", BUSY: "-", OUT: "x"}
#: Tiers of a picture, the widest first. A node without any of them is in the last row.
TIERS_SHOWN = (wire.TIER_SPINE, wire.TIER_LEAF, wire.TIER_RACK)
#: Width of a terminal line, and of its label; a leaf with more nodes continues on the next line.
LINE_CHARACTERS, LABEL_CHARACTERS = 120, 24
WIDTH, LEFT, TOP, CELL, GAP = 1000, 190, 66, 10, 6
_COLORS = {BACKUP: "#e0a030", BUSY: "#9aa0a6", OUT: "#d1495b"}
#: Alternate, so that adjacent segments differ.
_SEGMENT_COLORS = ("#2f6fd0", "#6aa2f0")
_STYLE = (
    "text{font:12px sans-serif;fill:#222}.title{font-size:15px;font-weight:bold}.faint{fill:#666;font-size:11px}"
    ".paper{fill:#fff}.free{fill:none;stroke:#9aa0a6}.spine{stroke:#ccc;stroke-width:.5}"
    "@media(prefers-color-scheme:dark){text{fill:#eee}.faint{fill:#aaa}.paper{fill:#16191d}.spine{stroke:#555}}"
)


@dataclass(frozen=True, slots=True)
class TopologyRow:
    """A leaf: its spine, and its nodes by rack."""

    spine: str
    leaf: str
    racks: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class PlanPicture:
    """Content of a picture. `kinds`: by node; `segments`: segment number of each chosen node."""

    rows: tuple[TopologyRow, ...]
    kinds: tuple[str, ...]
    segments: Mapping[int, int]


def plan_picture(
    option: wire.PlacementOption,
    domains: Mapping[int, wire.ListTopologyDomainsResponse],
    nodes: int,
    segment_nodes: int,
) -> PlanPicture:
    """Return *option* on the topology of *nodes* nodes. *domains*: by tier of `TIERS_SHOWN`."""
    racks = domains[TIERS_SHOWN[-1]]
    kinds = [BUSY] * nodes
    for node in range(nodes):
        if _is_set(racks.excluded_bitmap, node):
            kinds[node] = OUT
        elif _is_set(racks.free_bitmap, node):
            kinds[node] = FREE
    for node in option.spare_node_index:
        kinds[node] = BACKUP
    segments: dict[int, int] = {}
    for rank, node in enumerate(option.node_index):
        kinds[node] = CHOSEN
        segments[node] = rank // max(segment_nodes, 1) if segment_nodes > 1 else 0
    return PlanPicture(tuple(_rows(domains, nodes)), tuple(kinds), segments)


def _is_set(bitmap: bytes, index: int) -> bool:
    return index // 8 < len(bitmap) and bool(bitmap[index // 8] >> index % 8 & 1)


def _rows(domains: Mapping[int, wire.ListTopologyDomainsResponse], nodes: int) -> list[TopologyRow]:
    places = [[""] * nodes for _ in TIERS_SHOWN]
    for row, tier in enumerate(TIERS_SHOWN):
        for domain in domains[tier].domains:
            for node in domain.node_index:
                places[row][node] = domain.name
    racks_by_leaf: dict[tuple[str, str], dict[str, list[int]]] = {}
    for node in range(nodes):
        spine, leaf, rack = (place[node] for place in places)
        racks_by_leaf.setdefault((spine, leaf), {}).setdefault(rack, []).append(node)
    return [
        TopologyRow(spine, leaf, tuple((rack, tuple(racks[rack])) for rack in sorted(racks)))
        for (spine, leaf), racks in sorted(
            racks_by_leaf.items(), key=lambda item: (not any(item[0]), item[0])
        )
    ]


def _label(row: TopologyRow) -> str:
    return " / ".join(name for name in (row.spine, row.leaf) if name) or "leaf not known"


def picture_lines(picture: PlanPicture) -> list[str]:
    """Draw the picture for a terminal: a line per leaf, a group of signs per rack."""
    lines = [
        "  ".join(f"{sign} {kind}" for kind, sign in SIGNS.items())
        + "  (a line is a leaf, a group a rack)"
    ]
    width = min(max((len(_label(row)) for row in picture.rows), default=0), LABEL_CHARACTERS)
    for row in picture.rows:
        line = _label(row)[:width].ljust(width)
        for _, members in row.racks:
            signs = "".join(SIGNS[picture.kinds[node]] for node in members)
            while signs:
                room = LINE_CHARACTERS - len(line) - 1
                if room < min(len(signs), 8):
                    lines.append(line)
                    line, room = " " * width, LINE_CHARACTERS - width - 1
                line += " " + signs[:room]
                signs = signs[room:]
        lines.append(line)
    return lines


def picture_svg(picture: PlanPicture, title: str, notes: Sequence[str] = ()) -> str:
    """Draw the picture in SVG: a row per leaf, its racks side by side, *notes* below."""
    body, y, spine = list[str](), TOP, None
    for row in picture.rows:
        if spine is not None and row.spine != spine:
            body.append(
                f'<line class="spine" x1="12" x2="{WIDTH - 12}" y1="{y - 2}" y2="{y - 2}"/>'
            )
            y += 4
        spine = row.spine
        body.append(f'<text x="12" y="{y + 9}">{svg_text(_label(row)[:26])}</text>')
        x = LEFT
        for rack, members in row.racks:
            if x > LEFT and x + min(len(members), 8) * CELL > WIDTH - 12:
                x, y = LEFT, y + CELL + GAP
            for node in members:
                if x + CELL > WIDTH - 12:
                    x, y = LEFT, y + CELL + GAP
                body.append(_cell(picture, node, x, y, rack))
                x += CELL
            x += GAP
        y += CELL + GAP
    height = y + 14 + 16 * len(notes)
    parts = [*_legend(), *body]
    parts += [
        f'<text x="12" y="{y + 14 + 16 * row_index}">{svg_text(note[:150])}</text>'
        for row_index, note in enumerate(notes)
    ]
    return svg_document(WIDTH, height, _STYLE, title, parts)


def _cell(picture: PlanPicture, index: int, x: int, y: int, rack: str) -> str:
    kind = picture.kinds[index]
    square = f'x="{x}" y="{y}" width="{CELL - 1}" height="{CELL - 1}"'
    if kind == CHOSEN:
        color = _SEGMENT_COLORS[picture.segments[index] % len(_SEGMENT_COLORS)]
    elif kind == FREE:
        return f'<rect class="free" x="{x + 0.5}" y="{y + 0.5}" width="{CELL - 2}" height="{CELL - 2}"/>'
    else:
        color = _COLORS[kind]
    if not rack:
        return f'<rect {square} fill="{color}"/>'
    return f'<rect {square} fill="{color}"><title>{svg_text(rack)}</title></rect>'


def _legend() -> list[str]:
    parts, x = list[str](), LEFT
    for kind in SIGNS:
        if kind == FREE:
            parts.append(f'<rect class="free" x="{x + 0.5}" y="34.5" width="10" height="10"/>')
        else:
            color = _SEGMENT_COLORS[0] if kind == CHOSEN else _COLORS[kind]
            parts.append(f'<rect x="{x}" y="34" width="11" height="11" fill="{color}"/>')
        parts.append(f'<text x="{x + 16}" y="44">{kind}</text>')
        x += 90
    parts.append(f'<text class="faint" x="{x}" y="44">a row is a leaf, a group a rack</text>')
    return parts
