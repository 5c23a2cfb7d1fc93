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
