"""`make evaluate`: quality of judging on real data, injected faults and a simulated fleet, separately; writes docs/quality.md."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.quality import captures, hazard
from bench.quality.head import (
    DATA_TEXT,
    ReportHead,
    Section,
    Tree,
    changed,
    head,
    left_out,
    not_here,
)
from bench.quality.kept import Pieces, ScoreCache
from bench.quality.markdown import wrapped
from bench.quality.progress import Bar
from bench.quality.simulated import RunPlan
from bench.quality.summary import with_summary
from gangline.simulator.scenario import ScenarioError

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "quality.md"
CACHE_FOLDER = ROOT / "build" / "quality"
#: Seed of the published page; each check at it is reported in looks.md, and nothing is tuned on it.
PUBLISHED_SEED = 24
#: Limit of causes of each class, and of hours of the fleet: more would take days.
COUNT_MAX = 10_000
STEPFUN = "faults of 400 nodes (GitHub: stepfun-ai/InfiniteHBD-Trace)"


def sections() -> tuple[Section, ...]:
    """Return the page's parts in order: modules with `section(seed, progress) -> str`."""
    recorded = tuple((captures.DATA / capture.path, capture.what) for capture in captures.CAPTURES)
    return (
        Section("hazard", "Real: hazard", ((hazard.RECORDING, STEPFUN),)),
        Section("captures", "Real: logs, sysfs, captures", recorded),
        Section("injected", "Injected"),
        Section("simulated", "Simulated"),
    )


def _made(one: Section, seed: int, plan: RunPlan, pieces: Pieces | None) -> str:
    if one.is_left_out:
        print(f"left out: {one.title}: its recordings are not in {DATA_TEXT}", file=sys.stderr)
        return left_out(one)
    module = importlib.import_module(f".{one.name}", __package__)
    more = {"plan": plan, "pieces": pieces} if one.name == "simulated" else {}
    text = str(module.section(seed, Bar(), **more))
    print(file=sys.stderr)
    return "\n".join(filter(None, (f"{text.strip()}\n", not_here(one))))


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= COUNT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 1 to {COUNT_MAX:,}")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one section, or write the page of all."""
    parts = sections()
    parser = argparse.ArgumentParser(prog="python -m bench.quality", description=__doc__)
    parser.add_argument("--seed", type=int, default=PUBLISHED_SEED)
    names = [part.name for part in parts]
    parser.add_argument("--only", choices=names, help="print this section; write nothing")
    plan = RunPlan()
    parser.add_argument("--scenario", default=plan.scenario, help="of the simulated fleet")
    parser.add_argument(
        "--per-class", type=_count, default=plan.per_class, help="causes of each class"
    )
    parser.add_argument(
        "--hours",
        type=_count,
        default=plan.hours,
        help="hours of the whole fleet, for false drains",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="take what was made before, by the same settings from the same commit: sections, episodes of the simulated one",
    )
    parser.add_argument(
        "--summary",
        action="store_true",
        help="write only the first section of the page again, from the sections that the page has",
    )
    options = parser.parse_args(arguments)
    if options.summary:
        PAGE.write_text(wrapped(with_summary(PAGE.read_text())))
        return 0
    plan = RunPlan(options.scenario, options.per_class, options.hours)
    head_facts = ReportHead.now(
        options.seed, _command(options.seed, plan), ROOT
    )  # the page is still unchanged
    wanted = [part for part in parts if options.only in (None, part.name)]
    tree = Tree(ROOT, head_facts.commit)
    cache, texts = ScoreCache(CACHE_FOLDER, head_facts, plan.scenario, tree.is_same), list[str]()
    try:
        for section in wanted:
            text = cache.read(section.name) if options.resume else None
            if text is None:
                pieces = cache.pieces(section.name)
                if pieces and not options.resume:
                    pieces.forget()
                text = _made(section, options.seed, plan, pieces)
                if not section.missing:  # the recordings may exist next time
                    cache.write(section.name, text)
            texts.append(text)
    except ScenarioError as error:
        parser.error(str(error))
    if not tree.is_same():
        print(changed(tree.later), file=sys.stderr)
    if options.only:
        print(texts[0])
    else:
        first = head(head_facts, parts, tree.later)
        page = "\n".join([first, *(f"{text.strip()}\n" for text in texts)])
        PAGE.write_text(wrapped(with_summary(page)))
        print(f"wrote {PAGE}", file=sys.stderr)
    return 0


def _command(seed: int, plan: RunPlan) -> str:
    default = RunPlan()
    settings = [
        ("SEED", seed, PUBLISHED_SEED),
        ("PER_CLASS", plan.per_class, default.per_class),
        ("HOURS", plan.hours, default.hours),
    ]
    changed = [f"{name}={value}" for name, value, usual in settings if value != usual]
    return " ".join(["make evaluate", *changed])


if __name__ == "__main__":
    # Without this its aggregators and agents keep running and take half of the machine.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
