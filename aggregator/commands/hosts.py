"""`gangline hosts`: every host with score, state and the strongest reason."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from google.protobuf.json_format import MessageToDict

from ...fingerprints.wire import score_pb2
from .client import OK, Client, Listing, add_hours, add_options, guarded, way_of
from .table import caption, host_of, render, wants_colour, width_of

#: States that `--state` takes.
STATES = [name.lower() for name in score_pb2.HealthState.keys()[1:]]


def main(arguments: list[str]) -> int:
    """Print the table, worst last. 3 when no aggregator answers."""
    options = _parser().parse_args(arguments)
    return guarded("hosts", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    with Client(way_of(options)) as client:
        listing = client.hosts(options.hours)
    chosen = selected(listing, options.state)
    if options.json:
        print(json.dumps(document(chosen)))
        return OK
    width = width_of(sys.stdout)
    if listing.scores and not chosen.scores:
        print(
            f"none of {len(listing.scores)} hosts is {' or '.join(s.upper() for s in options.state)}"
        )
    else:
        print(render(chosen.scores, width, colour=wants_colour()))
    if said := caption(chosen, width):
        print(said)
    if listing.degraded_reason:
        print(f"degraded: {listing.degraded_reason}", file=sys.stderr)
    for words in listing.alarms:
        print(f"aggregator: {words}", file=sys.stderr)
    return OK


def selected(listing: Listing, states: list[str]) -> Listing:
    """Return the hosts of *listing* in one of *states*; all when none is named."""
    if not states:
        return listing
    numbers = {score_pb2.HealthState.Value(state.upper()) for state in states}
    scores = [score for score in listing.scores if score.state in numbers]
    return Listing(scores, listing.version, listing.degraded_reason, listing.alarms)


def document(listing: Listing) -> dict[str, Any]:
    """Return the hosts as JSON: worst first; what is not known is null."""
    return {
        "version": listing.version,
        "degraded_reason": listing.degraded_reason,
        "alarms": listing.alarms,
        "hosts": [as_dict(score) for score in listing.scores],
    }


def as_dict(score: score_pb2.NodeScore) -> dict[str, Any]:
    """Return one host as JSON, with the wire's field names and `host`."""
    fields: dict[str, Any] = MessageToDict(
        score,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
    age_seconds: float | None = None
    if score.HasField("data_age"):
        age_seconds = score.data_age.seconds + score.data_age.nanos / 1e9
    for name in ("horizon", "data_age"):
        fields.pop(name, None)
    fields["horizon_seconds"] = score.horizon.ToNanoseconds() / 1e9
    fields["data_age_seconds"] = age_seconds
    return {"host": host_of(score), **_without_nan(fields)}


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if value in ("NaN", "Infinity", "-Infinity") else value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline hosts",
        description="Every host: score (chance of so many hours without a fault of its own), state, "
        "expected faults a day, speed against its peers, and the strongest reason. Worst last.",
    )
    add_options(parser)
    parser.add_argument(
        "--state", action="append", default=[], choices=STATES, help="only these; may be repeated"
    )
    add_hours(parser)
    return parser
