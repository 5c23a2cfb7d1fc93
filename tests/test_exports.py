"""What a project imports from the package itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rivet_workflows

SOURCE = Path(rivet_workflows.__file__)


def _names_for_type_checkers() -> set[str]:
    block = next(node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If))
    return {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}


def test_every_exported_name_is_there() -> None:
    for name in rivet_workflows.__all__:
        assert getattr(rivet_workflows, name) is not None
    assert set(rivet_workflows.__all__) <= set(dir(rivet_workflows))


def test_type_checkers_see_the_names_that_the_program_sees() -> None:
    assert _names_for_type_checkers() == set(rivet_workflows.__all__) == set(rivet_workflows._HOME)
    assert rivet_workflows.__all__ == sorted(rivet_workflows.__all__)


def test_all_errors_are_exported() -> None:
    from rivet_workflows import exceptions

    assert set(exceptions.__all__) <= set(rivet_workflows.__all__)


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = rivet_workflows.Nothing


def test_actors_can_be_declared_before_django_is_set_up() -> None:
    code = (
        "import sys, rivet_workflows\n"
        "assert 'django' not in sys.modules and 'pydantic' not in sys.modules\n"
        "from rivet_workflows import Actor, Queue, action, UserError\n"
        "class Early(Actor):\n"
        "    work = Queue(str)\n"
        "    async def run(self, ctx): ...\n"
        "    @action\n"
        "    def get(self, c): ...\n"
        "from rivet_workflows.registry import registry\n"
        "assert registry.get('early').queues\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=SOURCE.parent.parent, env={"PATH": ""}, timeout=50
    )
