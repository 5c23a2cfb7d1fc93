"""A seed that breaks a promise, told in as few choices of the scheduler as can be found in a given time."""

from __future__ import annotations

import time

from .simulate import attempt, on_sqlite


def shrunk(seed: int, size: int, seconds: float, *, sqlite: bool | None = None) -> str:
    """The trace of the shortest world found that is this seed's with choices left out and still breaks a promise."""
    until = time.monotonic() + seconds
    sqlite = on_sqlite(seed) if sqlite is None else sqlite
    steps = list(range(size))
    world, error = attempt(seed, steps, sqlite)
    if error is None:
        return f"seed {seed} breaks nothing"
    length = size // 2
    while length >= 1 and time.monotonic() < until:
        at = 0
        while at < len(steps) and time.monotonic() < until:
            fewer = steps[:at] + steps[at + length :]
            shorter, found = attempt(seed, fewer, sqlite)
            if found is None:
                at += length
            else:
                steps, world, error = fewer, shorter, found
        length //= 2
    return "\n".join(
        [*world.trace, f"\n{len(steps)} of {size} choices of seed {seed} are enough:", f"{error}"]
    )
