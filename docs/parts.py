"""`make docs`: draws the parts of Gangline, for README.md, as SVG for light and for dark pages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
WIDTH, HEIGHT = 1058, 410
FONT = "-apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, 'DejaVu Sans', sans-serif"
ALT = "Agents on GPU hosts send readings to the aggregator, which answers schedulers and operators."


@dataclass(frozen=True)
class Theme:
    """Colors of one page, those of GitHub's."""

    text: str
    muted: str
    panel: str
    box: str
    line: str
    data: str
    ack: str


THEMES = {
    "parts.svg": Theme("#1f2328", "#59636e", "#f6f8fa", "#ffffff", "#d1d9e0", "#0969da", "#1a7f37"),
    "parts-dark.svg": Theme(
        "#f0f6fc", "#9198a1", "#151b23", "#0d1117", "#3d444d", "#4493f8", "#3fb950"
    ),
}


class Drawing:
    """Shapes in pixels from the upper left corner."""

    def __init__(self, theme: Theme) -> None:
        self._theme = theme
        self._shapes: list[str] = []

    def rectangle(self, x: int, y: int, width: int, height: int, fill: str) -> None:
        """Draw a rectangle with round corners."""
        self._shapes.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" '
            f'fill="{fill}" stroke="{self._theme.line}"/>'
        )

    def text(self, x: int, y: int, words: str, style: str, anchor: str = "start") -> None:
        """Write one line, with its baseline at *y*. *style*: a class of `svg`."""
        self._shapes.append(
            f'<text x="{x}" y="{y}" class="{style}" text-anchor="{anchor}">{words}</text>'
        )

    def panel(
        self, x: int, y: int, width: int, height: int, title: str, *, copies: int = 0
    ) -> None:
        """Draw a part, with *copies* of it behind."""
        for back in range(copies, -1, -1):
            self.rectangle(x + 7 * back, y - 7 * back, width, height, self._theme.panel)
        self.text(x + 16, y + 28, title, "title")

    def box(self, x: int, y: int, width: int, title: str, *lines: str) -> None:
        """Draw what a part consists of: 34 pixels high, and 17 more for each line."""
        self.rectangle(x, y, width, 34 + 17 * len(lines), self._theme.box)
        self.text(x + 12, y + 22, title, "name")
        for number, line in enumerate(lines, 1):
            self.text(x + 12, y + 22 + 17 * number, line, "detail")

    def line(self, color: str, *points: tuple[int, int], head: str = "") -> None:
        """Draw a line through *points*. *color*: "data" or "ack"."""
        path = " ".join(f"{'L' if at else 'M'}{x} {y}" for at, (x, y) in enumerate(points))
        self._shapes.append(f'<path d="{path}" class="{color}"{head}/>')

    def arrow(self, color: str, *points: tuple[int, int]) -> None:
        """Draw a line through *points* with its head at the last."""
        self.line(color, *points, head=f' marker-end="url(#{color})"')

    def svg(self) -> str:
        """Return the picture."""
        theme = self._theme
        heads = "".join(
            f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{color}"/></marker>'
            for name, color in (("data", theme.data), ("ack", theme.ack))
        )
        style = (
            f"text{{font-family:{FONT};font-size:12.5px;fill:{theme.muted}}}"
            f".title{{font-size:16px;font-weight:600;fill:{theme.text}}}"
            f".name{{font-size:14px;font-weight:600;fill:{theme.text}}}"
            f"path.data,path.ack{{fill:none;stroke-width:1.6}}"
            f"path.data{{stroke:{theme.data}}}path.ack{{stroke:{theme.ack}}}"
            f"text.data{{fill:{theme.data}}}text.ack{{fill:{theme.ack}}}"
        )
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{ALT}">'
        )
        return "\n".join(
            [head, f"<style>{style}</style>", f"<defs>{heads}</defs>", *self._shapes, "</svg>", ""]
        )


def drawn(theme: Theme) -> str:
    """Return the parts and what goes between them."""
    page = Drawing(theme)

    page.panel(16, 36, 292, 358, "GPU host: one agent", copies=2)
    page.box(52, 78, 240, "Collectors", "/sys, /proc, kernel log, netlink")
    page.box(
        52, 144, 240, "Samplers", "NVML and other calls into drivers,", "in separate processes"
    )
    page.box(52, 228, 240, "Spool", "stores frames until the ack")
    page.box(
        52, 306, 240, "Host findings", "gangline check, status.json,", "health check, /metrics"
    )
    page.line("data", (52, 104), (34, 104), (34, 254))
    page.line("data", (52, 178), (34, 178))
    page.arrow("data", (34, 254), (50, 254))
    page.arrow("data", (34, 254), (34, 340), (50, 340))

    page.panel(470, 36, 312, 358, "Aggregator")
    page.box(506, 78, 260, "Ingest", "logins, limits, clocks, order")
    page.box(506, 154, 260, "Store", "DuckDB, Parquet history, backups")
    page.box(506, 230, 260, "Scoring, every second", "fleet state, rules, hazard model")
    page.box(506, 306, 260, "Advisories", "what to do about a host,", "and the cost of waiting")
    page.arrow("data", (636, 129), (636, 152))
    page.arrow("data", (524, 129), (524, 142), (488, 142), (488, 256), (504, 256))
    page.arrow("data", (636, 230), (636, 207))
    page.arrow("data", (636, 281), (636, 304))

    page.arrow("data", (292, 246), (380, 246), (380, 96), (504, 96))
    page.text(396, 84, "readings, events", "data", "middle")
    page.arrow("ack", (506, 112), (412, 112), (412, 262), (294, 262))
    page.text(396, 282, "acks, after commit", "ack", "middle")

    readers = (
        (78, 782, "Prometheus", "/metrics"),
        (154, 766, "SQL", "gangline sql, any DuckDB"),
        (230, 766, "Schedulers, operators", "gRPC, gangline hosts"),
        (306, 766, "Executors", "accept, carry out, report"),
    )
    for y, from_x, title, line in readers:
        page.box(842, y, 200, title, line)
        page.arrow("data", (from_x, y + 26), (840, y + 26))
    return page.svg()


def main() -> None:
    """Write both pictures."""
    for name, theme in THEMES.items():
        (FOLDER / name).write_text(drawn(theme))


if __name__ == "__main__":
    main()
