"""The Python of a page, so that pytest collects its tests as if they stood in a module.

Every block fenced as ``python`` is run, in order, in one namespace. One that cannot be run has a line before it that
says why: ``<!-- not run: … -->``.
"""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from typing import Any

from rivet_workflows.registry import registry

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_NOT_RUN = re.compile(r"<!-- not run: .+ -->")


def python_of(page: Path) -> str:
    """The Python of the page, each line where it stands there, so that tracebacks point into the page."""
    lines, inside, before = [], False, ""
    for line in page.read_text(encoding="utf-8").splitlines():
        fence = line.startswith("```")
        lines.append(line if inside and not fence else "")
        if fence:
            inside = line == "```python" and not _NOT_RUN.fullmatch(before)
        before = line
    return "\n".join(lines)


def run_page(name: str, namespace: dict[str, Any]) -> None:
    """Run the page's Python in a test module. Its actors are left in ``actors_declared``, for the fixture."""
    page = DOCS / name
    source = python_of(page)
    # Who looks for the source of an example (tracebacks, our own checks) finds its Python, and not the prose around it.
    linecache.cache[str(page)] = (len(source), None, source.splitlines(keepends=True), str(page))
    before = registry.snapshot()
    # What other folders' tests have declared, as they were collected, is not in the way of the page's names.
    known = {actor: kind for actor, kind in before.items() if not kind.cls.__module__.startswith("tests.")}
    registry.restore(known)
    try:
        exec(compile(source, str(page), "exec"), namespace)
        namespace["actors_declared"] = [
            kind for actor, kind in registry.snapshot().items() if actor not in known
        ]
    finally:
        registry.restore(before)
