"""Medians of JSON lines, systems side by side, as a Markdown table."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

#: What tells series of one experiment apart.
SETTINGS = ("mode", "how", "setting", "N")
#: What is neither a setting nor a figure.
ASIDE = ("system", "exp", "run", "load1", "n", *SETTINGS)


def table(file: Path) -> str:
    """A row for each figure of each series, with the median of the runs and, of several, the lowest and highest."""
    found: dict[tuple[str, str, str], dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    systems: dict[str, None] = {}
    for line in file.read_text().splitlines():
        if not line.startswith("{"):
            continue
        row = json.loads(line)
        systems[row["system"]] = None
        series = ", ".join(str(row[name]) for name in SETTINGS if name in row)
        for figure, value in row.items():
            if figure not in ASIDE and isinstance(value, int | float) and not isinstance(value, bool):
                found[row["exp"], series, figure][row["system"]].append(value)
    lines = [f"| | {' | '.join(systems)} |", f"|---|{'---:|' * len(systems)}"]
    for (exp, series, figure), by_system in found.items():
        what = f"{exp} {figure}" + (f" ({series})" if series else "")
        lines.append(f"| {what} | {' | '.join(_cell(by_system.get(system)) for system in systems)} |")
    return "\n".join(lines)


def _cell(values: list[float] | None) -> str:
    if not values:
        return ""
    median = f"{statistics.median(values):,}"
    return median if len(values) == 1 else f"{median} [{min(values):,} to {max(values):,}]"
