"""Mutation run over the engine: changes one place at a time, and tells which changes no test notices.

    python -m tests.mutation [--sample N] [--seed S] [--tests PATH …] [--longest SECONDS] [--out FILE] [TEXT …]

TEXT narrows it down to mutants whose id holds it (``loops.``, ``Mailbox.next``). The known survivors, each with its
reason, are in ``survivors.md``; told are those that are not in it, and lines of it that no mutant needs any more.

It takes mutmut's operators and not its runner, which lets pytest begin anew for each mutant: here pytest collects
once and learns which test runs which line (``running.py``).
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import Counter
from pathlib import Path

from .mutants import Mutant, mutants_of
from .running import Results, run

ENGINE = Path("rivet_workflows/engine")
TESTS = ["tests/engine", "tests/conformance"]
LISTED = Path(__file__).with_name("survivors.md")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("--sample", type=int, help="so many mutants of each file, chosen at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="one line for each mutant: how it ended, and its id")
    parser.add_argument("--tests", action="append", help=f"instead of {' and '.join(TESTS)}")
    parser.add_argument(
        "--longest", type=float, default=10, help="leave out tests that take longer, in seconds"
    )
    parser.add_argument("texts", nargs="*", default=[""])
    chosen = parser.parse_args()
    draw = random.Random(chosen.seed)
    mutants: list[Mutant] = []
    for path in sorted(ENGINE.glob("*.py")):
        found = [mutant for mutant in mutants_of(path) if any(text in mutant.id for text in chosen.texts)]
        if chosen.sample is not None:
            found = draw.sample(found, min(chosen.sample, len(found)))
        mutants += found
    draw.shuffle(mutants)  # a run that is cut short is a sample
    results = run(mutants, chosen.tests or TESTS, chosen.longest, chosen.out)
    tell(results)
    return new_or_gone(results, whole=chosen.sample is None and chosen.texts == [""])


def tell(results: Results) -> None:
    """How many of each file, and how they ended."""
    files: dict[str, Counter[str]] = {}
    for mutant, end in results.items():
        files.setdefault(mutant.path.name, Counter())[end] += 1
    total = sum(files.values(), Counter[str]())
    for name, ends in [*sorted(files.items()), ("all", total)]:
        count = ends.total()
        survived = ends["survived"] + ends["not run"]
        print(f"{name:15} {count:5} mutants, {survived:4} survived ({survived / count:6.1%}): {dict(ends)}")


def new_or_gone(results: Results, *, whole: bool) -> int:
    listed = set(re.findall(r"^- (.+` → `.*`)$", LISTED.read_text(), re.MULTILINE))
    survived = {mutant.id for mutant, end in results.items() if end in ("survived", "not run")}
    run_at_all = {mutant.id for mutant in results}
    for text in sorted(survived - listed):
        print("not listed:", text)
    gone = listed - survived if whole else (listed & run_at_all) - survived
    for text in sorted(gone):
        print("listed and killed, or not there:", text)
    return bool(survived - listed)


if __name__ == "__main__":
    sys.exit(main())
