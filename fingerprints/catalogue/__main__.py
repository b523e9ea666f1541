"""`python -m gangline.fingerprints.catalogue`: the catalogue as the page docs/signals.md."""

from __future__ import annotations

from . import SIGNALS, TABLES, Kind, Signal

_HEAD = """# Signals

Made from `fingerprints/catalogue` by `make docs`; a test holds the two together. A signal travels in the table
of its device kind and pace, and is a column of the DuckDB view `readings.TABLE`. Tables that end in `_changes`
carry a device's row when one of its counters changes, and whole every 60 s. `sticks`: the hardware counter stays
at the ceiling of its width instead of wrapping.
"""


def _row(signal: Signal) -> str:
    width = f"{signal.width_bits} bits{', sticks' if signal.sticks else ''}"
    kind = signal.kind + (f", {width}" if signal.kind is Kind.COUNTER else "")
    tells = signal.tells.replace("|", "\\|")
    return f"| {signal.signal_id} | `{signal.column}` | {kind} | {signal.source} | {tells} |"


def page() -> str:
    """Return the whole page."""
    parts = [_HEAD]
    events = [s for s in SIGNALS if s.kind is Kind.EVENT]
    for name, signals in [*TABLES.items(), ("events (fast lane)", events)]:
        parts.append(f"## {name}\n\n| id | signal | kind | source | tells |\n|---|---|---|---|---|")
        parts.append("\n".join(_row(s) for s in signals) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
