"""`gangline explain HOST`: the evidence for a score, with its queries; or explains a decision."""

from __future__ import annotations

import argparse
import difflib
import math
import re
import shlex
import sys
import textwrap

from ...cli import json_object
from ...contract.client import command_line, connection
from ...contract.client.score_client import ScoreClient
from ...contract.client.terminal import clean_texts, printable, width_of
from ...contract.wire import score_pb2
from .host_table import BROKEN, age, enum_name, floor_text, host_of, is_broken
from .hosts import as_dict

#: Lines longer than this are hard to read, however wide the terminal.
WIDTH_MAX = 110
#: Evidence that changes ln(hazard) by less is omitted.
DELTA_MIN = 0.005
#: Outcomes that change ln(hazard) by less are omitted: every host showed "multiplied by 1".
OUTCOMES_SIGNAL, OUTCOMES_DELTA_MIN = "hazard.outcomes", math.log(1.05)
#: Evidence that multiplies the hazard of an UNHEALTHY host by more is shown as a present fault.
BROKEN_TIMES_MIN = 20.0
#: Older evidence is shown with its age.
RECENT_SECONDS = 3.0
#: Plural units, printed without their s after "1".
_UNITS = re.compile(r"^(error|event|packet|row|second|minute)s\b")
#: `hazard_model` of a score without a model trained on this cluster.
PRIOR = "prior"
#: Prefix of signals that are features of the hazard model.
MODEL_SIGNAL_PREFIX = "hazard."
#: The pace of a GPU is printed below this ratio.
SLOW_BELOW = 0.95
#: Units whose numeric value adds nothing to the description.
WITHOUT_VALUE = ("state", "code", "flags", "number", "finding", "hosts")
#: Maximum length of a registered host name.
HOST_CHARACTERS_MAX = 253
#: The command that runs a query.
COMMAND = "gangline sql"
#: Word in place of HOST before a decision's id.
DECISION = "decision"
#: At most this many working collectors are listed by name.
NAMED_MAX = 6


def main(arguments: list[str]) -> int:
    """Explain a host or a decision. Exit codes: 3 no aggregator answers; 4 unknown host or ID."""
    parser = _parser()
    options = parser.parse_args(arguments)
    is_decision = options.host == DECISION and options.decision_id
    if options.decision_id and not is_decision:
        parser.error(
            f"{options.decision_id[:100]!r} follows a host; expected one HOST, or decision ID"
        )
    if options.replay and not is_decision:
        parser.error("--replay needs a decision; expected: decision ID --replay")
    if is_decision:
        from .decision import run_decision  # imports the planner, which hosts do not need

        return connection.guarded("explain", lambda: run_decision(options))
    return connection.guarded("explain", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    connection_options = connection.read_connection_options(options)
    with ScoreClient(connection_options) as client:
        try:
            score = client.host(options.host.removeprefix("nodes/"), options.hours)
        except connection.CommandError as error:
            if error.code == connection.NOT_FOUND:
                raise connection.CommandError(
                    unknown_host_message(options.host, client.names()), connection.NOT_FOUND
                ) from error
            raise
    if options.json:
        print(json_object(as_dict(score)))
    else:
        clean_texts(score)
        command = query_command(options, connection_options.aggregator)
        print(explanation_text(score, min(width_of(sys.stdout), WIDTH_MAX), command))
    return connection.OK


def query_command(options: argparse.Namespace, aggregator: str) -> str:
    """Return the start of a query command for the same aggregator with the same login options."""
    given = {
        "--ca": options.ca,
        "--cert": options.certificate,
        "--key": options.key,
        "--token-file": options.token_file,
        "--server-name": options.server_name,
    }
    arguments = ["--server", aggregator, *(w for pair in given.items() if pair[1] for w in pair)]
    return f"{COMMAND} {shlex.join(arguments)}"


def unknown_host_message(host: str, names: list[str]) -> str:
    """Return the message for an unknown host, with similar names."""
    if re.search(r"[][,!&^@*?\s]", host):
        return f"no host {host[:100]!r}: expected one host, not a set of hosts; `gangline hosts` lists them"
    near = difflib.get_close_matches(host, names, 3, 0.5)
    if near:
        return f"no host {host!r}; did you mean {', '.join(near)}?"
    if not names:
        return f"no host {host!r}: none has registered with this aggregator"
    return f"no host {host!r} among the {len(names)} known; `gangline hosts` lists them"


def explanation_text(score: score_pb2.NodeScore, width: int, query_prefix: str = COMMAND) -> str:
    """Return the explanation of *score*, wrapped to *width*. *query_prefix*: start of queries."""
    parts = [_summary(score)]
    now_ns = score.compute_time.ToNanoseconds()
    evidence = [contribution for contribution in score.contributions if _is_shown(contribution)]
    # A report, or an earlier cause, is a reason that is not in the evidence.
    is_other = score.reason_message not in ["", *(e.message for e in score.contributions)]
    if score.state != score_pb2.HEALTHY and is_other:
        parts.append(f"{_state(score)}: {score.reason_message}.")
    if evidence:
        costs = any(map(_costs, evidence))
        parts.append(
            f"Evidence{_hazard_without_evidence(score)}:" if costs else "Noted, at no cost:"
        )
        base_hazard = _base_hazard(score)
        causes = [c for c in evidence if c.hazard_delta > 0 and not _is_of_model(c)]
        has_several_causes = len(causes) > 1
        for number, contribution in enumerate(evidence, 1):
            whole = _whole(contribution.device)
            is_moved = any(_whole(e.device) == whole and _moves(e) for e in evidence)
            certain = (
                contribution.message == score.reason_message
                or _times_alone(contribution, base_hazard) > BROKEN_TIMES_MIN
            )
            broken = is_broken(score) and certain
            cost = _cost(
                contribution,
                base_hazard,
                confirms=is_moved,
                several=has_several_causes,
                broken=broken,
            )
            parts.append(_evidence(contribution, number, now_ns, query_prefix, cost))
    else:
        parts.append("There is no evidence against it.")
    if score.clears_when and score.state != score_pb2.HEALTHY:
        parts.append(f"{_state(score)} ends when {score.clears_when}.")
    if score.sources:
        parts.append(_sources(score))
    return "\n\n".join(_wrapped(part, width) for part in parts)


def _state(score: score_pb2.NodeScore) -> str:
    return enum_name(score_pb2.HealthState, score.state)


def _summary(score: score_pb2.NodeScore) -> str:
    simulated = " (simulated)" if score.simulated else ""
    first = f"{host_of(score)}{simulated} is {_state(score)}, last report {age(score)}."
    lines = [first, *_chances(score)]
    if unhealthy := [gpu for gpu in score.gpus if gpu.state not in (0, score_pb2.HEALTHY)]:
        lines.append(_gpus(unhealthy, len(score.gpus)))
    return "\n".join(lines)


def _chances(score: score_pb2.NodeScore) -> list[str]:
    """Return the expected reliability and speed; for a broken host, that a fault is certain."""
    hours = score.horizon.ToNanoseconds() / 3600e9
    if is_broken(score):
        return [f"It is {BROKEN}: a fault is certain. Start no job here."]
    lines = [
        f"Score {floor_text(score.score, 4)}: the chance that a job runs {hours:g} h without a fault of "
        + f"this host (90 % interval {floor_text(score.score_lower, 4)} to "
        + f"{floor_text(score.score_upper, 4)}). {_often(score.hazard_per_hour)}{_by(score.hazard_model)}."
    ]
    if not math.isnan(score.relative_speed):
        lines.append(
            f"It runs at {100 * score.relative_speed:.0f} % of its peers, by its slowest GPU "
            f"({_interval(score.relative_speed_lower, score.relative_speed_upper)})."
        )
    return lines


def _whole(device: str) -> str:
    """Return the GPU that contains *device*, such as a link; else *device* itself."""
    return device.partition("/")[0] if device.startswith("GPU-") else device


def _hazard_without_evidence(score: score_pb2.NodeScore) -> str:
    """Return text on the hazard that remains without the evidence."""
    added = sum(contribution.log_hazard_delta for contribution in score.contributions)
    if abs(added) <= DELTA_MIN:
        return ""
    base = score.hazard_per_hour * math.exp(-added)
    often = _often(base).removeprefix("A fault is expected ").removeprefix("No fault is expected")
    if often:
        return f" (without it, one fault {often} would be expected)"
    return " (without it, no fault would be expected)"


def _base_hazard(score: score_pb2.NodeScore) -> float:
    """Return the hazard without symptoms, which each symptom's factor multiplies."""
    added = sum(c.log_hazard_delta for c in score.contributions if not _is_of_model(c))
    return score.hazard_per_hour * math.exp(-added)


def _by(model: str) -> str:
    """Return text that names the basis of a hazard, "" for none."""
    if model == PRIOR:
        return " (by rates of the public record: no model was trained on this cluster yet)"
    return f" (by model {model})" if model else ""


def _interval(lower: float, upper: float) -> str:
    return f"90 % interval {100 * lower:.0f} to {100 * upper:.0f} %"


def _gpus(unhealthy: list[score_pb2.GpuScore], count: int) -> str:
    """Return the unhealthy GPUs, and the number of others."""
    if len(unhealthy) == count:
        states = sorted({enum_name(score_pb2.HealthState, gpu.state) for gpu in unhealthy})
        return f"None of its {count} GPUs is healthy; all are {' or '.join(states)}."
    parts = [
        f"{gpu.gpu} is {enum_name(score_pb2.HealthState, gpu.state)}{_pace(gpu)}"
        for gpu in unhealthy
    ]
    others = count - len(unhealthy)
    return f"Of its {count} GPUs {'; '.join(parts)}; the other {others} {'is' if others == 1 else 'are'} healthy."


def _pace(gpu: score_pb2.GpuScore) -> str:
    if math.isnan(gpu.relative_speed) or gpu.relative_speed >= SLOW_BELOW:
        return ""
    lower, upper = gpu.relative_speed_lower, gpu.relative_speed_upper
    return f" at {100 * gpu.relative_speed:.0f} % of its peers ({_interval(lower, upper)})"


def _often(hazard_per_hour: float) -> str:
    """Return how often a fault is expected, in the largest unit with a count of at least two."""
    if hazard_per_hour <= 0.0:
        return "No fault is expected"
    hours = 1.0 / hazard_per_hour
    for unit, size in (("years", 8766.0), ("days", 24.0), ("hours", 1.0)):
        if hours >= 2 * size:
            return f"A fault is expected every {hours / size:,.0f} {unit}"
    minutes = round(60 * hours)
    return f"A fault is expected every {f'{minutes} minutes' if minutes > 1 else 'minute'}"


def _evidence(
    contribution: score_pb2.Contribution, number: int, now_ns: int, query_prefix: str, cost: str
) -> str:
    seconds = (now_ns - contribution.observe_time.ToNanoseconds()) / 1e9
    before = f" (last seen {seconds:.0f} s ago)" if seconds >= RECENT_SECONDS else ""
    lines = [f"{number}. {contribution.message}{before}"]
    where = f"   {contribution.signal} of {contribution.device}"
    if contribution.unit not in WITHOUT_VALUE:
        where += f": {value(contribution)}; normal is {contribution.normal}"
    lines.append(where)
    lines += [f"   {cost}", f"   {command(contribution.evidence_sql, query_prefix)}"]
    return "\n".join(lines)


def command(sql: str, query_prefix: str = COMMAND) -> str:
    """Return the command line that runs *sql*, quoted: hosts choose the names in it."""
    if any(character in sql for character in '"$`\\!'):
        return f"{query_prefix} {shlex.quote(sql)}"
    return f'{query_prefix} "{sql}"'


def value(one: score_pb2.Contribution) -> str:
    """Return the value in a readable multiple, with its unit."""
    if one.unit == "hertz":
        return f"{one.value / 1e9:.2f} GHz"
    if one.unit == "bytes" and abs(one.value) >= 1e8:
        return f"{one.value / 1e9:.1f} GB"
    if one.unit == "ratio":
        return f"{100 * one.value:.0f} %"
    digits = f"{one.value:,.0f}" if abs(one.value) >= 100 else f"{one.value:.3g}"
    unit = _UNITS.sub(r"\1", one.unit) if digits == "1" else one.unit
    return f"{digits} {unit}".rstrip()


def _is_shown(contribution: score_pb2.Contribution) -> bool:
    """Return False for model features with a negligible effect; `--json` shows all."""
    threshold = OUTCOMES_DELTA_MIN if contribution.signal == OUTCOMES_SIGNAL else DELTA_MIN
    return not _is_of_model(contribution) or abs(contribution.log_hazard_delta) > threshold


def _is_of_model(contribution: score_pb2.Contribution) -> bool:
    return contribution.signal.startswith(MODEL_SIGNAL_PREFIX)


def _moves(contribution: score_pb2.Contribution) -> bool:
    """Return whether the evidence raises the hazard, even next to a 1,000 times larger symptom."""
    if _is_of_model(contribution) or not contribution.hazard_delta:
        return contribution.log_hazard_delta > DELTA_MIN
    return contribution.hazard_delta > 0.0


def _costs(contribution: score_pb2.Contribution) -> bool:
    return _moves(contribution) or contribution.relative_speed_factor < 1.0


def _times_alone(contribution: score_pb2.Contribution, base_hazard: float) -> float:
    """Return the factor on *base_hazard* (no symptoms) if this were the only evidence."""
    if contribution.hazard_delta > 0.0 and not _is_of_model(contribution):
        return 1.0 + contribution.hazard_delta / base_hazard
    return math.exp(contribution.log_hazard_delta)


def _cost(
    contribution: score_pb2.Contribution,
    base_hazard: float,
    *,
    confirms: bool,
    several: bool,
    broken: bool,
) -> str:
    """Format the cost of the evidence. *several*: other symptoms also raise the hazard."""
    costs = []
    if broken:
        costs.append("the whole score: it is broken now")
    elif _moves(contribution):
        likely = f"a fault is {_times(_times_alone(contribution, base_hazard))} as likely"
        likely += " with it alone" if several and not _is_of_model(contribution) else ""
        lost = f"{-contribution.score_delta:.4f}"
        costs.append(f"{lost} of the score ({likely})" if float(lost) else f"little now: {likely}")
    if contribution.relative_speed_factor < 1.0:
        costs.append(f"{100 * (1 - contribution.relative_speed_factor):.0f} % of the speed")
    if contribution.log_hazard_delta < -DELTA_MIN:
        times = math.exp(contribution.log_hazard_delta)
        return f"lowers the hazard: {contribution.score_delta:.4f} of the score (a fault is {_times(times)} as likely)"
    shared = ""
    if contribution.shared_count > 1:
        shared = f"one cause of {contribution.shared_count} devices, counted once"
    if costs:
        return f"costs {' and '.join(costs)}" + (f"; {shared}" if shared else "")
    return shared or ("confirms other evidence about it" if confirms else "costs nothing")


def _times(factor: float) -> str:
    return f"{factor:,.0f} times" if factor >= 10 else f"{factor:.2g} times"


def _sources(score: score_pb2.NodeScore) -> str:
    """Return the working collectors on a line, then each other collector with its message."""
    reading = [source.source for source in score.sources if source.outcome == "ok"]
    others = [source for source in score.sources if source.outcome != "ok"]
    named = ", ".join(reading) or "none"
    lines = [f"Working collectors: {named if len(reading) <= NAMED_MAX else len(reading)}"]
    lines += [
        f"   {source.source} {source.outcome}" + (f": {source.message}" if source.message else "")
        for source in others
    ]
    return "\n".join(lines)


def _wrapped(text: str, width: int) -> str:
    """Wrap each line with its indentation, except commands, which must be copied whole."""
    lines: list[str] = []
    for line in text.split("\n"):
        clean = printable(line)
        indent = " " * (len(clean) - len(clean.lstrip()))
        if clean.lstrip().startswith(f"{COMMAND} "):
            lines.append(clean)
        else:
            lines += textwrap.wrap(
                clean, max(width, 40), subsequent_indent=indent, break_on_hyphens=False
            ) or [""]
    return "\n".join(lines)


def host_name(text: str) -> str:
    """Return *text* if it can be a host name. Raises ArgumentTypeError."""
    if not text.removeprefix("nodes/"):
        raise argparse.ArgumentTypeError("empty; expected a host name")
    if len(text.removeprefix("nodes/")) > HOST_CHARACTERS_MAX:
        raise argparse.ArgumentTypeError(
            f"{text[:32]!r}…: {len(text)} characters, a host's name has {HOST_CHARACTERS_MAX} at most"
        )
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline explain",
        description="Explains the score of a host: each piece of evidence with its value, the normal value, "
        "its effect on the score, and the SQL query that shows it (for `gangline sql`). `gangline explain decision ID` "
        "explains a plan, evaluation, resize or recovery that was answered: request, options, price, blockers, choice.",
    )
    parser.add_argument(
        "host",
        type=host_name,
        metavar="HOST",
        help="a host's name, as `gangline hosts` shows it; or the word decision",
    )
    parser.add_argument(
        "decision_id",
        nargs="?",
        metavar="ID",
        help="after decision: its id, as answers and ops.decisions show it",
    )
    parser.add_argument(
        "--replay",
        action="store_true",
        help="compute the decision again from its stored inputs; exit code 1 if the answer differs",
    )
    command_line.add_options(parser)
    command_line.add_hours(parser)
    return parser
