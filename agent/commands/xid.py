"""`gangline xid`: meaning of an NVIDIA XID code or a kernel log line, and how tools react to it.

It needs no network: the tables are part of the package, so it works on a laptop and on an isolated host.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...cli import NOT_FOUND, OK, json_object
from ...contract.xid.decode import (
    RECOVERY_ACTIONS,
    VARYING,
    DecodedLine,
    XidLine,
    decode,
    parse_line,
)
from ...contract.xid.line_reading import driver_major, printable
from ...contract.xid.policy import (
    Clears,
    Xid,
    XidSeverity,
    lookup,
    lookup_sxid,
    policy,
    refine,
    sxid_policy,
)
from ...contract.xid.tools import tool_actions

if TYPE_CHECKING:
    from .kernel_line import LineQuery

#: Columns of the output at most, also if piped: longer lines are hard to read.
WIDTH_MAX = 100
WIDTH_MIN = 40
#: Columns of the labels.
LABEL_CHARACTERS = 14
#: Digits of a code.
CODE_DIGITS_MAX = 9
#: A longer pasted line is cut in the output.
LINE_CHARACTERS_MAX = 400

MEANING = {
    XidSeverity.FATAL: "fatal: no job may start on the host until it is cleared",
    XidSeverity.HAZARD: "hazard: jobs may run, a fault is {factor:g} times as likely",
    XidSeverity.APPLICATION: "application: caused by the program; the host's state does not change",
    XidSeverity.IGNORE: "ignored: shown, without meaning on its own",
    XidSeverity.UNKNOWN: "unknown: shown, never fatal on its own",
}


#: The XID whose text is the driver's recovery action.
RECOVERY_CHANGED = 154
LINE_NEEDED = "the rest of its log line may change this; pass the whole line, in quotes"

#: Sources of the catalogs.
NVIDIA = {
    "xid": "Catalogue: docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html",
    "sxid": "Catalogue: NVIDIA Fabric Manager User Guide, appendix D",
}

#: Spellings of a code: `94`, `xid:94`, `XID 79`, `Xid #79`, `sxid20034`.
_SPELLED_CODE = re.compile(
    r"\s*(?:(s?xid)[\s:#_=-]{0,4})?([0-9]{1,9})\s*", re.ASCII | re.IGNORECASE
)


@dataclass(frozen=True)
class CodeQuery:
    """A code to explain, or a log line with it."""

    table: str
    code: int
    line: XidLine | None = None

    @property
    def row(self) -> Xid:
        """The policy's row; for an unknown code a row without a meaning."""
        return lookup(self.code) if self.table == "xid" else lookup_sxid(self.code)

    @property
    def known(self) -> bool:
        return self.code in _table(self.table)


def main(arguments: list[str]) -> int:
    """Explain codes or lines, or list all codes. Returns 4 for an unknown code or ignored line."""
    options = _parser().parse_intermixed_args(_join_spelled_codes(arguments))
    driver = options.driver or ""
    queries = [*options.codes, *options.sxid]
    if not queries:
        return _print_all(as_json=options.json)
    codes = [query for query in queries if isinstance(query, CodeQuery)]
    if options.json:
        lines = [query for query in queries if not isinstance(query, CodeQuery)]
        answer: dict[str, Any] = {"codes": [document(query, driver) for query in codes]}
        print(
            json_object(
                answer | ({"lines": [_line_document(query) for query in lines]} if lines else {})
            )
        )
    else:
        width = width_to_fill()
        cards = [
            explain(query, driver, width)
            if isinstance(query, CodeQuery)
            else _explain_line(query, width)
            for query in queries
        ]
        sources = "\n".join(_wrap_fields(_sources(codes), width))
        print("\n\n".join([*cards, sources] if sources else cards))
    return OK if all(query.known for query in queries) else NOT_FOUND


def _join_spelled_codes(arguments: list[str]) -> list[str]:
    """Return the arguments with `XID 79`, given as two, joined."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1].lower() in ("xid", "sxid") and _is_code(argument):
            joined[-1] = f"{joined[-1]}:{argument}"
        else:
            joined.append(argument)
    return joined


def _explain_line(query: LineQuery, width: int) -> str:
    from .kernel_line import fields, heading

    title = "\n".join(textwrap.wrap(heading(query), width, subsequent_indent="  "))
    return "\n\n".join([title, "\n".join(_wrap_fields(fields(query), width))])


def _line_document(query: LineQuery) -> dict[str, Any]:
    from .kernel_line import document as of_line

    return of_line(query)


def width_to_fill() -> int:
    """Return COLUMNS, else the terminal's width, or WIDTH_MAX when piped, within the limits."""
    columns = shutil.get_terminal_size((WIDTH_MAX, 24)).columns
    return min(max(columns, WIDTH_MIN), WIDTH_MAX)


def explain(query: CodeQuery, driver: str, width: int) -> str:
    """Return the card of a code or line, the action first, wrapped to *width*."""
    row = query.row
    blocks: list[Iterable[str]] = [[_heading(query, width)]]
    if query.line is not None:
        decoded = _decode(query, query.line, driver)
        blocks.append(_wrap_fields(_line_fields(query.line, decoded, driver), width))
        row = refine(row, decoded.attributes)
    blocks += [
        _wrap_fields(_gangline_fields(query, row), width),
        _wrap_fields(_other_tools(query), width),
    ]
    if companions := [*_companions(query)]:
        blocks.append(_wrap_fields(companions, width))
    return "\n\n".join(text for text in map("\n".join, blocks) if text)


def _heading(query: CodeQuery, width: int) -> str:
    row = query.row
    mnemonic = f" ({row.mnemonic})" if row.mnemonic else ""
    title = f"{query.table.upper()} {query.code}: {row.name}{mnemonic}"
    return "\n".join(textwrap.wrap(title, width, subsequent_indent="  "))


def _decode(query: CodeQuery, line: XidLine, driver: str) -> DecodedLine:
    return decode(query.code, line.message, driver, query.table)


def _line_fields(line: XidLine, decoded: DecodedLine, driver: str) -> Iterator[tuple[str, str]]:
    yield "The line", printable(line.message[:LINE_CHARACTERS_MAX]) or "says only its code"
    yield "Device", line.device
    if decoded.message:
        yield "It says", decoded.message
    if decoded.process_id or decoded.process_name:
        process = " ".join(filter(None, (decoded.process_name, f"pid {decoded.process_id}")))
        yield "Process", f"{process}; it ran into the fault, and may not be its cause"
    if decoded.continuation:
        yield "Note", "a further line about the same code, not a separate event"
    if not decoded.verified:
        yield "Unverified", _unverified(driver)


def _unverified(driver: str) -> str:
    if driver:
        return (
            f"driver {driver} should write these bits differently. Was it the driver at that time?"
        )
    return "name the driver that wrote it: --driver 575.57.08"


def _gangline_fields(query: CodeQuery, row: Xid) -> Iterator[tuple[str, str]]:
    if not query.known:
        yield (
            "Not listed",
            "Gangline's table has no such code; it is shown and counted, and never causes a drain",
        )
    yield "Do", row.action
    yield "We call it", _severity_text(query, row)
    if row.why or row.catalogue:
        yield "Why", row.why or f"as NVIDIA has it: {row.catalogue}"
    if row.scope != "unknown":
        yield "Touches", row.scope
    yield "Cleared when", _cleared(row)
    if row.reason != "NONE":
        yield "Reason code", row.reason


def _severity_text(query: CodeQuery, row: Xid) -> str:
    if query.line is not None or not _varies(query):
        return MEANING[row.severity].format(factor=row.hazard_factor)
    if (query.table, query.code) == ("xid", RECOVERY_CHANGED):
        severities = ", ".join(
            f"{name}: {severity}" for name, severity, _ in RECOVERY_ACTIONS.values()
        )
        return f"what its text says ({severities}); {LINE_NEEDED}"
    return f"{MEANING[row.severity].format(factor=row.hazard_factor)}. {LINE_NEEDED.capitalize()}"


def _varies(query: CodeQuery) -> bool:
    return query.known and (query.table == "sxid" or query.code in VARYING)


def _cleared(row: Xid) -> str:
    if row.clears is Clears.TIME:
        return f"it does not recur for {row.clear_seconds / 60:.0f} minutes"
    if row.clears is Clears.REBOOT:
        return "the host boots"
    return "the GPU is reset, or the host boots"


def _other_tools(query: CodeQuery) -> Iterator[tuple[str, str]]:
    row = query.row
    if row.catalogue:
        unused = "" if row.used else " (unused)"
        further = f"; to investigate: {row.investigate}" if row.investigate else ""
        yield "Catalogue", f"{row.catalogue}{unused}{further}"
    if query.table == "xid":
        for number, other in enumerate(tool_actions(query.code)):
            yield "" if number else "Others", f"{other.tool}: {other.message}"


def _sources(queries: list[CodeQuery]) -> Iterator[tuple[str, str]]:
    tables = {query.table for query in queries}
    for number, source in enumerate(
        (
            *(NVIDIA[table] for table in ("xid", "sxid") if table in tables),
            *dict.fromkeys(
                f"{other.tool}: {other.source}"
                for query in queries
                if query.table == "xid"
                for other in tool_actions(query.code)
            ),
        )
    ):
        yield "" if number else "Sources", source


def _companions(query: CodeQuery) -> Iterator[tuple[str, str]]:
    row, table = query.row, query.table.upper()
    for number, companion in enumerate(row.companions):
        label = "" if number else "Beside it"
        yield (
            label,
            f"{table} {companion.code} within {row.wait_seconds:.0f} s: {companion.message}",
        )
    if row.cancels:
        yield "Takes back", ", ".join(f"{table} {code}" for code in row.cancels)
    for other in _table(query.table).values():
        if query.code in other.cancels:
            yield "Taken back", f"by {table} {other.code}: {other.name}"
        for companion in other.companions:
            if companion.code == query.code:
                waits = f"{table} {other.code} waits {other.wait_seconds:.0f} s for it"
                yield "Explains", f"{waits}: {companion.message}"


def _table(table: str) -> dict[int, Xid]:
    return policy() if table == "xid" else sxid_policy()


def _wrap_fields(pairs: Iterable[tuple[str, str]], width: int) -> Iterator[str]:
    indent = " " * (LABEL_CHARACTERS + 2)
    for label, text in pairs:
        yield from textwrap.wrap(
            text,
            width,
            initial_indent=f"  {label:<{LABEL_CHARACTERS}}",
            subsequent_indent=indent,
            break_on_hyphens=False,
        )


def document(query: CodeQuery, driver: str) -> dict[str, Any]:
    """Return a code or line as JSON. `row` is the policy's; `now` is refined by the line."""
    answer: dict[str, Any] = {
        "table": query.table,
        "code": query.code,
        "known": query.known,
        "row": dataclasses.asdict(query.row),
        "others": [dataclasses.asdict(other) for other in tool_actions(query.code)]
        if query.table == "xid"
        else [],
    }
    if query.line is not None:
        decoded = _decode(query, query.line, driver)
        answer |= {
            "device": query.line.device,
            "line": dataclasses.asdict(decoded),
            "now": dataclasses.asdict(refine(query.row, decoded.attributes)),
        }
    return answer


def _print_all(*, as_json: bool) -> int:
    """Print every code of both tables, one line each."""
    every = [CodeQuery(table, code) for table in ("xid", "sxid") for code in sorted(_table(table))]
    if as_json:
        print(json_object({"codes": [document(query, "") for query in every]}))
        return OK
    width = width_to_fill()
    for query in every:
        row = query.row
        meaning = f"{row.name} -> {row.action}" if row.used else f"{row.name} (unused)"
        line = f"{query.table.upper():<4} {query.code:>5}  {row.severity.value:<11}  {meaning}"
        print(line if len(line) <= width else f"{line[: width - 1].rstrip()}…")
    return OK


def _parse_query(text: str) -> CodeQuery | LineQuery:
    """Return the query in *text*. Raises argparse.ArgumentTypeError."""
    if line := parse_line(text):
        return CodeQuery(line.table, line.code, line)
    if spelled := _SPELLED_CODE.fullmatch(text):
        return CodeQuery((spelled[1] or "xid").lower(), int(spelled[2]))
    if len(text.split()) > 1:
        # Imported only here: a code is explained without the rules of all drivers.
        from .kernel_line import parse

        return parse(text)
    raise argparse.ArgumentTypeError(
        f"{printable(text[:60])!r}: expected an XID (94), an SXID (sxid:20034) or a line of the "
        "kernel log in quotes ('NVRM: Xid (PCI:0000:9b:00): 119, pid=...')"
    )


def _parse_sxid(text: str) -> CodeQuery:
    if not _is_code(text):
        raise argparse.ArgumentTypeError(f"{printable(text[:60])!r}: expected an SXID, as 20034")
    return CodeQuery("sxid", int(text))


def _is_code(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= CODE_DIGITS_MAX


def _driver(text: str) -> str:
    if driver_major(text) is None:
        raise argparse.ArgumentTypeError(
            f"{printable(text[:60])!r}: expected a version of NVIDIA's driver, as 575.57.08"
        )
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline xid",
        description="Explains an XID code of NVIDIA's driver or any kernel log line: what to do, what the catalog "
        "says, where other tools disagree, what Gangline does and why, and what clears it. Of a line that the "
        "agent ignores, says why. Without a code, lists all codes. Needs no aggregator.",
        epilog="exit codes: 0 done, 2 wrong usage, 4 unknown code, or a line that the agent ignores",
    )
    parser.add_argument(
        "codes",
        nargs="*",
        type=_parse_query,
        metavar="CODE|LINE",
        help="94, 'XID 94', sxid:20034, or a line of the kernel log in quotes; several may follow",
    )
    parser.add_argument(
        "--sxid",
        action="append",
        type=_parse_sxid,
        default=[],
        metavar="CODE",
        help="a code of an NVSwitch",
    )
    parser.add_argument(
        "--driver",
        type=_driver,
        metavar="VERSION",
        help="the driver that wrote the line; XIDs 144 to 150 are written differently from R575 on",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
