"""``python -m tests.simulation --seed N --runs N``: look for seeds that break a promise."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time

import django


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="first seed; the clock's when left out")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=None, help="run for this long instead")
    parser.add_argument("--size", type=int, default=400, help="choices of the scheduler per run")
    parser.add_argument("--shrink", type=float, default=20.0, help="seconds to look for a shorter trace")
    parser.add_argument("--sqlite", action="store_true", help="every world on SQLite, not each tenth")
    args = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    logging.disable(logging.CRITICAL)
    from .shrink import shrunk
    from .simulate import Violation, simulate

    first = int(time.time()) if args.seed is None else args.seed
    began, events, runs = time.monotonic(), 0, 0
    while time.monotonic() - began < args.seconds if args.seconds else runs < args.runs:
        seed = first + runs
        try:
            events += simulate(seed, args.size, sqlite=args.sqlite or None).events
        except Violation as exc:
            took = time.monotonic() - began
            print(shrunk(seed, args.size, args.shrink, sqlite=args.sqlite or None))
            print(f"\nseed {seed}: {exc}\nfound after {took:.1f} s, {runs + 1} runs and {events} events")
            return 1
        runs += 1
    print(f"{runs} runs from seed {first}, {events} events, {time.monotonic() - began:.1f} s: nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
