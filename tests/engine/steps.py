"""Step functions for tests: what they did is seen in the list they are given, or in ``Driver.started``."""

from __future__ import annotations

from typing import Any


def echo(_step: Any, value: Any = None) -> Any:
    """Returns what it was given."""
    return value


def fail(_step: Any, text: str = "no") -> Any:
    raise ValueError(text)


class Ledger:
    """Counts what really happened."""

    def __init__(self) -> None:
        self.lines: list[Any] = []

    def write(self, _step: Any, line: Any = None) -> Any:
        self.lines.append(line)
        return line

    def undo(self, _step: Any, output: Any) -> None:
        self.lines.append(f"undo {output}")

    def undo_badly(self, _step: Any, output: Any) -> None:
        self.lines.append(f"cannot undo {output}")
        raise RuntimeError("the bank is closed")

    @property
    def handlers(self) -> dict[str, Any]:
        """For a program: its rollback handlers can be found."""
        known = {f"{f.__module__}:{f.__qualname__}": f for f in (self.undo, self.undo_badly)}
        return {"find_handler": known.__getitem__}


def step(name: str, value: Any = None) -> Any:
    """A branch that is one step."""
    return lambda b: b.step(name, echo, value)


def wait(name: str = "z") -> Any:
    """A branch that is one sleep."""
    return lambda c: c.sleep(name, 1)


async def old(ctx: Any) -> Any:
    """Code that is about to be changed."""
    await ctx.step("first", echo, 1)
    await ctx.sleep("z", 1)
    return "old"
