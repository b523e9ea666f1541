"""`gangline explain HOST`: why a host stands where it stands, with the query that shows it."""

from __future__ import annotations

import argparse
import difflib
import json
import math
import sys
import textwrap

from ...fingerprints.wire import score_pb2
from .client import NOT_FOUND, OK, Client, CommandError, add_options, guarded
from .hosts import as_dict
from .table import age, hazard_per_day, host_of, share, width_of

#: Lines longer than this are hard to read, however wide the terminal.
WIDTH_MAX = 110
#: Evidence that moves ln(hazard) by less costs nothing worth a sentence.
DELTA_MIN = 0.005
#: Evidence that is not of now is said to be older from here.
SEEN_SECONDS = 3.0
#: Units that a number stands well without.
BARE_UNITS = ("state", "code", "flags", "number", "finding")


def main(arguments: list[str]) -> int:
    """Print what is known of one host. 3 when no aggregator answers, 4 for an unknown host."""
    options = _parser().parse_args(arguments)
    return guarded("explain", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    with Client(options.aggregator) as client:
        try:
            score = client.host(options.host.removeprefix("nodes/"))
        except CommandError as error:
            if error.code == NOT_FOUND:
                raise CommandError(unknown(options.host, client.names()), NOT_FOUND) from error
            raise
    if options.json:
        print(json.dumps(as_dict(score)))
    else:
        print(explained(score, min(width_of(sys.stdout), WIDTH_MAX)))
    return OK


def unknown(host: str, names: list[str]) -> str:
    """Return words for a host that there is not, with those whose names are near."""
    near = difflib.get_close_matches(host, names, 3, 0.5)
    if near:
        return f"no host {host!r}; did you mean {', '.join(near)}?"
    if not names:
        return f"no host {host!r}: none has registered with this aggregator"
    return f"no host {host!r} among the {len(names)} known; `gangline hosts` lists them"


def explained(score: score_pb2.NodeScore, width: int) -> str:
    """Return what a colleague would say of the host, wrapped to *width*."""
    parts = [_summary(score)]
    now_ns = score.compute_time.ToNanoseconds()
    evidence = list(score.contributions)
    if evidence:
        parts.append("Because:")
        for number, one in enumerate(evidence, 1):
            said = any(e.device == one.device and _moves(e) for e in evidence[: number - 1])
            parts.append(_evidence(one, number, now_ns, confirms=said))
    else:
        parts.append("Nothing speaks against it.")
    if score.clears_when:
        parts.append(f"{_state(score)} ends when {score.clears_when}.")
    if score.sources:
        parts.append(_sources(score))
    return "\n\n".join(_wrapped(part, width) for part in parts)


def _state(score: score_pb2.NodeScore) -> str:
    return score_pb2.HealthState.Name(score.state)


def _summary(score: score_pb2.NodeScore) -> str:
    simulated = " (simulated: it does not exist)" if score.simulated else ""
    hours = score.horizon.seconds / 3600
    speed = (
        "its speed is not known: none of its GPUs computes next to peers"
        if math.isnan(score.relative_speed)
        else f"its slowest GPU runs at {100 * score.relative_speed:.0f} % of its peers"
    )
    return (
        f"{host_of(score)}{simulated} is {_state(score)}, last heard {age(score)}.\n"
        f"A job on it has {share(100 * score.score, 2)} % to go {hours:.0f} hours without a fault of "
        f"this host (90 % interval {share(100 * score.score_lower, 2)} to "
        f"{share(100 * score.score_upper, 2)} %): "
        f"{hazard_per_day(score.hazard_per_hour)} faults expected a day; {speed}."
    )


def _evidence(one: score_pb2.Contribution, number: int, now_ns: int, *, confirms: bool) -> str:
    seconds = (now_ns - one.observe_time.ToNanoseconds()) / 1e9
    before = f" (seen {seconds:.0f} s ago)" if seconds >= SEEN_SECONDS else ""
    return (
        f"{number}. {one.words}{before}.\n"
        f"   {one.signal} of {one.device} is {value(one)}; normal is {one.normal}. {_cost(one, confirms=confirms)}\n"
        f"   {one.evidence_sql}"
    )


def value(one: score_pb2.Contribution) -> str:
    """Return a value with its unit, in the multiple that people use."""
    if one.unit == "hertz":
        return f"{one.value / 1e6:.0f} MHz"
    if one.unit == "bytes":
        return f"{one.value / 1e9:.1f} GB"
    return f"{one.value:g}" if one.unit in BARE_UNITS else f"{one.value:g} {one.unit}"


def _moves(one: score_pb2.Contribution) -> bool:
    return one.log_hazard_delta > DELTA_MIN


def _cost(one: score_pb2.Contribution, *, confirms: bool) -> str:
    costs = []
    if _moves(one):
        factor = math.exp(one.log_hazard_delta)
        points = -100 * one.score_delta
        costs.append(f"makes a fault {factor:,.0f} times as likely and costs {points:.2f} points")
    if one.relative_speed_factor < 1.0:
        costs.append(f"takes {100 * (1 - one.relative_speed_factor):.0f} % of its speed")
    if costs:
        return f"It {', and '.join(costs)}."
    return "It confirms what is said above." if confirms else "It adds nothing to the score."


def _sources(score: score_pb2.NodeScore) -> str:
    width = max(len(source.source) for source in score.sources)
    lines = [
        f"   {source.source.ljust(width)}  {source.outcome}"
        + (f": {source.words}" if source.words else "")
        for source in score.sources
    ]
    return "\n".join(["What its collectors say:", *lines])


def _wrapped(text: str, width: int) -> str:
    """Wrap each line but those of SQL, which are to be copied whole; keep its indentation."""
    lines: list[str] = []
    for line in text.split("\n"):
        clean = "".join(c if c.isprintable() else "?" for c in line)
        indent = " " * (len(clean) - len(clean.lstrip()))
        if clean.lstrip().startswith("SELECT "):
            lines.append(clean)
        else:
            lines += textwrap.wrap(
                clean, max(width, 40), subsequent_indent=indent, break_on_hyphens=False
            ) or [""]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline explain",
        description="Why a host stands where it stands: each piece of evidence with its value, what "
        "is normal, what it cost, and the SQL that shows it (for `gangline sql`).",
    )
    parser.add_argument("host", metavar="HOST", help="a host's name, as `gangline hosts` shows it")
    add_options(parser)
    return parser
