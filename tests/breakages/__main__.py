"""``python -m tests.breakages``: each invariant is broken on purpose, and must be found within a minute.

Prints, for each, by which seed or test, after how many seconds of processor time, and what was said.
"""

from __future__ import annotations

import argparse
import sys
import time

from .hunt import BREAKAGES, hunt


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seed", type=int, default=None, help="first seed of simulations; the clock's when left out"
    )
    parser.add_argument("only", nargs="*", type=int, help="numbers of invariants")
    args = parser.parse_args()
    seed = int(time.time()) if args.seed is None else args.seed
    missed = 0
    for breakage in BREAKAGES:
        if args.only and breakage.invariant not in args.only:
            continue
        result = hunt(breakage, seed)
        missed += not result.found
        verdict = "found after" if result.found else "NOT FOUND in"
        print(f"{breakage.patch.stem}: {verdict} {result.seconds:.1f} s: {result.words}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
