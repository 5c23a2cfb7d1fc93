"""The examples of the page on testing, collected as if they stood here."""

from __future__ import annotations

from pathlib import Path

import pytest

from rivet_workflows.registry import registry

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"


def examples() -> str:
    """The Python of the page, each line where it stands there."""
    lines, inside = [], False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        fence = line.startswith("```")
        lines.append(line if inside and not fence else "")
        inside = line == "```python" if fence else inside
    return "\n".join(lines)


_before = registry.snapshot()
exec(compile(examples(), str(PAGE), "exec"))
_declared = [kind for name, kind in registry.snapshot().items() if name not in _before]
registry.restore(_before)


@pytest.fixture(autouse=True)
def actors_of_the_page():
    """Registered for these tests alone."""
    before = registry.snapshot()
    for kind in _declared:
        registry.add(kind)
    yield
    registry.restore(before)


@pytest.fixture
def rivet_mode():
    return "replay"
