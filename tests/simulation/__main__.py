"""``python -m tests.simulation --seed N --runs N``: look for seeds that break a promise."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from .simulate import Violation, simulate


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="first seed; the clock's when left out")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--size", type=int, default=400, help="choices of the scheduler per run")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    first = int(time.time()) if args.seed is None else args.seed
    began, events = time.monotonic(), 0
    for seed in range(first, first + args.runs):
        try:
            events += simulate(seed, args.size).events
        except Violation as exc:
            print(exc)
            print(f"\nseed {seed} found this after {time.monotonic() - began:.1f} s")
            return 1
    print(
        f"{args.runs} runs from seed {first}, {events} events, {time.monotonic() - began:.1f} s: nothing found"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
