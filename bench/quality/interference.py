"""`make evaluate`, interference: how well slowdowns of co-located workloads and their isolation are known, into docs/quality_interference.md.

`--only SECTION --write` makes one section and puts it in its place on the page.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from bench.quality.head import DATA_TEXT, ReportHead
from bench.quality.interference_pairs import FILE
from bench.quality.jobs import marked, replaced
from bench.quality.markdown import wrapped
from bench.quality.progress import Bar

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "quality_interference.md"
PUBLISHED_SEED = 25
#: Modules of this package with `section(seed, progress) -> str`, in the order of the page.
SECTIONS = ("interference_pairs", "interference_local", "isolation")


def main() -> int:
    """Print one section, or write the page of all."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.quality.interference", description=__doc__
    )
    parser.add_argument("--seed", type=int, default=PUBLISHED_SEED)
    parser.add_argument("--only", choices=SECTIONS, help="make this section and print it")
    parser.add_argument(
        "--write", action="store_true", help="with --only: put it in its place on the page"
    )
    options = parser.parse_args()
    facts = ReportHead.now(
        options.seed, f"python -m bench.quality.interference --seed {options.seed}", ROOT
    )
    texts: list[str] = []
    for name in SECTIONS if options.only is None else (options.only,):
        if name == "interference_pairs" and not FILE.exists():
            print(f"left out: {FILE.name} is not in {DATA_TEXT}", file=sys.stderr)
            return 0
        section = importlib.import_module(f".{name}", __package__).section
        texts.append(str(section(options.seed, Bar())).strip())
        print(file=sys.stderr)
    if options.only and not options.write:
        print(texts[0])
        return 0
    if options.only:
        title, _, body = texts[0].partition("\n")
        note = f"*Made on {facts.date} from commit {facts.commit}.*"
        page = replaced(PAGE.read_text(), options.only, f"{title}\n\n{note}\n{body}")
    else:
        head = [
            "# How well interference is predicted", "",
            f"Made on {facts.date} from commit {facts.commit} by `{facts.command}`, with {facts.versions}. Do not edit this page by hand.",
            "[Interference](interference.md) explains the model. `tests/fingerprints/test_interference.py` shows that more pressure never speeds a workload up, and that the served trees equal those of scikit-learn.", "",
        ]  # fmt: skip
        page = "\n".join(head) + "\n" + "\n\n".join(map(marked, SECTIONS, texts)) + "\n"
    PAGE.write_text(wrapped(page))
    print(f"wrote {PAGE}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
