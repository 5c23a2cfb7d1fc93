"""The live table in the terminal. Where nobody watches (a pipe, CI), a line whenever something changed."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from typing import Any

_COLORS = {"confirmed": 32, "waiting for approval": 33, "declined": 31, "rejected": 31, "sold out": 31}
_CELL = 34


class Table:
    """Redraws itself in place on a terminal that is large enough."""

    def __init__(self) -> None:
        self._lines = 0
        self._last = ""

    def show(self, rows: list[dict[str, Any]], note: str) -> None:
        counts = Counter(row["status"] for row in rows)
        summary = f"{len(rows):3} orders: " + ", ".join(
            f"{n} {status}" for status, n in sorted(counts.items())
        )
        if note:
            self.say(f"  *** {note}")
        size = shutil.get_terminal_size()
        columns = max(1, (size.columns - 1) // _CELL)
        height = -(-len(rows) // columns) + 2
        if not sys.stdout.isatty() or height >= size.lines:
            if summary != self._last:
                print(summary, flush=True)
            self._last = summary
            return
        rows = sorted(rows, key=lambda row: row["order"])
        grid = [rows[i : i + columns] for i in range(0, len(rows), columns)]
        lines = ["".join(_cell(row) for row in line) for line in grid] + [summary[: size.columns - 1]]
        self._erase()
        print("\n".join(lines), flush=True)
        self._lines = len(lines)

    def say(self, text: str) -> None:
        """A line that stays; the table goes on below it."""
        self._erase()
        print(text, flush=True)

    def _erase(self) -> None:
        if self._lines:
            print(f"\033[{self._lines}F\033[J", end="")
        self._lines = 0


def _cell(row: dict[str, Any]) -> str:
    status = row["status"] + (f" ({row['reminders']})" if row["reminders"] else "")
    text = f"{row['order']}  {status}"[: _CELL - 1].ljust(_CELL)
    color = _COLORS.get(row["status"])
    return f"\033[{color}m{text}\033[0m" if color else text
