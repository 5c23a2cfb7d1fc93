"""Named places where a process may die, for tests that kill it there. Off, they cost one comparison with
None.

``RIVET_CRASH_AT="after-commit"`` in the environment kills this process with SIGKILL when it gets there,
``"after-commit:3"`` the third time. In-process tests (the testing kit, the simulation) install a hook
instead. Nothing else happens here, and no room is known.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Every point there is. A test compares it with the calls in the source.
POINTS: tuple[str, ...] = (
    "before-claim",
    "after-claim",
    "before-take-over",
    "after-take-over",
    "before-start",
    "before-body",
    "after-body",
    "after-start",
    "timer-fire",
    "before-commit",
    "after-commit",
    "before-look",
    "after-look",
    "before-release",
    "after-release",
    "fire-taken",
    "fire-run",
    "call-taken",
    "call-run",
    "before-prune",
    "after-prune",
)

_hook: Callable[[str], None] | None = None


def crashpoint(name: str) -> None:
    """Pass the point ``name``; die here if this is the one."""
    if _hook is not None:
        _hook(name)


def set_hook(hook: Callable[[str], None] | None) -> None:
    """Call ``hook(name)`` at every point from now on; None switches the points off."""
    global _hook
    _hook = hook


@contextmanager
def hooked(hook: Callable[[str], None]) -> Iterator[None]:
    """:func:`set_hook` for the length of a block."""
    previous = _hook
    set_hook(hook)
    try:
        yield
    finally:
        set_hook(previous)


def kill_at(spec: str) -> Callable[[str], None]:
    """The hook for a specification ``name[:n]``: SIGKILL this process at its ``n``-th passage (the first)."""
    name, _, times = spec.partition(":")
    if name not in POINTS:
        raise ValueError(f"RIVET_CRASH_AT: there is no crash point {name!r}; there are {', '.join(POINTS)}")
    left = int(times or 1)

    def hook(passed: str) -> None:
        nonlocal left
        if passed == name:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return hook


if os.environ.get("RIVET_CRASH_AT"):
    set_hook(kill_at(os.environ["RIVET_CRASH_AT"]))
