"""`make evaluate`, second page: how well jobs are recognized, into docs/quality_jobs.md: stragglers in two worlds, periods, states, a real gang.

`--only SECTION --write` makes one section and puts it in its place on the page, with a line that says from which commit it is.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from pathlib import Path

from bench.quality.head import ReportHead, Tree, changed
from bench.quality.markdown import wrapped
from bench.quality.progress import Bar

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "quality_jobs.md"
PUBLISHED_SEED = 25
#: Modules of this package with `section(seed, progress) -> str`, in the order of the page.
SECTIONS = (
    "stragglers", "pipeline_gangs", "periods", "paused_jobs", "step_parts", "phase_forecasts", "forecasts",
    "workload_classes", "cpu_gang",
)  # fmt: skip


def marked(name: str, text: str) -> str:
    """Return a section between the comments that mark its place on the page."""
    return f"<!-- begin {name} -->\n{text}\n<!-- end {name} -->"


def replaced(page: str, name: str, text: str) -> str:
    """Return *page* with another text of section *name*.

    Raises ValueError if the page does not have the section.
    """
    before, begin, rest = page.partition(f"<!-- begin {name} -->\n")
    _, end, after = rest.partition(f"<!-- end {name} -->")
    if not begin or not end:
        raise ValueError(
            f"the page has no place for {name}: make the whole page once, without --only"
        )
    return before + marked(name, text) + after


def main() -> int:
    """Print one section, or write the page of all."""
    parser = argparse.ArgumentParser(prog="python -m bench.quality.jobs", description=__doc__)
    parser.add_argument("--seed", type=int, default=PUBLISHED_SEED)
    parser.add_argument("--only", choices=SECTIONS, help="make this section and print it")
    parser.add_argument(
        "--write", action="store_true", help="with --only: put it in its place on the page"
    )
    options = parser.parse_args()
    head_facts = ReportHead.now(
        options.seed, f"python -m bench.quality.jobs --seed {options.seed}", ROOT
    )
    tree = Tree(ROOT, head_facts.commit)
    texts: list[str] = []
    for name in SECTIONS if options.only is None else (options.only,):
        section = importlib.import_module(f".{name}", __package__).section
        texts.append(str(section(options.seed, Bar())).strip())
        print(file=sys.stderr)
    if options.only and options.write:
        title, _, body = texts[0].partition("\n")
        note = f"*Made on {head_facts.date} from commit {head_facts.commit} by `{head_facts.command} --only {options.only}`.*"
        text = f"{title}\n\n{note}\n{body}"
        PAGE.write_text(wrapped(replaced(PAGE.read_text(), options.only, text)))
        return 0
    if options.only:
        print(texts[0])
        return 0
    later = [] if tree.is_same() else [changed(tree.later), ""]
    head = [
        "# How well jobs are read", "",
        f"Made on {head_facts.date} from commit {head_facts.commit} by `{head_facts.command}`, with {head_facts.versions}. Do not edit this page by hand.",
        "Simulated worlds, recordings of others and a real gang have separate sections. Limits were set on seeds 1 to 9 of the first two worlds. The published seed is 25.",
        "[Quality](quality.md) has the rest. [Fingerprints](fingerprints.md) and [judging](judging.md) explain what is measured.", "",
        *later,
    ]  # fmt: skip
    PAGE.write_text(wrapped("\n".join(head) + "\n\n".join(map(marked, SECTIONS, texts)) + "\n"))
    print(f"wrote {PAGE}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    # Without this its aggregators and agents keep running and take half of the machine.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
