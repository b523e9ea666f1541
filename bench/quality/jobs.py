"""`make evaluate`, second page: how well jobs are read, into docs/quality_jobs.md: periods, stragglers, a real gang."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from pathlib import Path

from bench.quality.head import ReportHead, Tree, changed
from bench.quality.progress import Bar

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "quality_jobs.md"
PUBLISHED_SEED = 25
#: Modules of this package with `section(seed, progress) -> str`, in the order of the page.
SECTIONS = ("stragglers", "periods", "step_parts", "forecasts", "cpu_gang")


def main() -> int:
    """Print one section, or write the page of all."""
    parser = argparse.ArgumentParser(prog="python -m bench.quality.jobs", description=__doc__)
    parser.add_argument("--seed", type=int, default=PUBLISHED_SEED)
    parser.add_argument("--only", choices=SECTIONS, help="print this section; write nothing")
    options = parser.parse_args()
    made = ReportHead.now(options.seed, f"python -m bench.quality.jobs --seed {options.seed}", ROOT)
    tree = Tree(ROOT, made.commit)
    texts: list[str] = []
    for name in SECTIONS if options.only is None else (options.only,):
        section = importlib.import_module(f".{name}", __package__).section
        texts.append(str(section(options.seed, Bar())).strip())
        print(file=sys.stderr)
    if options.only:
        print(texts[0])
        return 0
    later = [] if tree.is_same() else [changed(tree.later), ""]
    head = [
        "# How well jobs are read", "",
        f"Made on {made.date} from commit {made.commit} by `{made.command}`, with {made.versions}; change nothing here by hand.",
        "Simulated worlds, recordings of others and a real gang stand apart. Limits were set on seeds 1 to 9; seed 25 is what is published.",
        "The rest is in [quality](quality.md); what is measured is explained in [fingerprints](fingerprints.md) and [judging](judging.md).", "",
        *later,
    ]  # fmt: skip
    PAGE.write_text("\n".join(head) + "\n\n".join(texts) + "\n")
    print(f"wrote {PAGE}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    # Else its aggregators and agents stay behind, and take half the machine.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
