"""What the pages name is there: files, headings, tests, patterns, routes, frames, states."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from rivet_workflows import ActorState, NoWorker, urls
from rivet_workflows.client.remote import _STATUS
from rivet_workflows.realtime import frames
from rivet_workflows.replay_lint import lint
from tests.docs.pages import DOCS, ROOT

PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for link in _LINK.findall(without_code(page)):
            if not link.startswith("http"):
                yield page, link


@pytest.mark.parametrize(("page", "link"), list(links()), ids=lambda part: getattr(part, "name", part))
def test_every_link_leads_somewhere(page: Path, link: str) -> None:
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    assert target.exists()
    assert not anchor or anchor in anchors(target)


def test_every_page_with_python_is_run() -> None:
    run = {
        name
        for module in Path(__file__).parent.glob("test_page_*.py")
        for name in re.findall(r'run_page\("(.+?)"', module.read_text())
    }
    assert {page.name for page in DOCS.glob("*.md") if "```python" in page.read_text()} == run


def test_every_page_is_in_the_index() -> None:
    index = text_of("index.md")
    assert [page.name for page in DOCS.glob("*.md") if f"({page.name}" not in index] == ["index.md"]


def test_the_tests_that_show_a_promise_are_there() -> None:
    named = _TEST.findall(text_of("guarantees.md"))
    assert len(named) > 20
    for file, test in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        defined = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert test in defined, f"{file} has no {test}"


def test_the_gallery_is_complete() -> None:
    page = text_of("patterns.md")
    for module in (ROOT / "demo_project/patterns").glob("*.py"):
        if module.stem in ("base", "tests"):
            continue
        for node in ast.parse(module.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and {"Actor", "Pattern"} & {ast.unparse(b) for b in node.bases}:
                assert f"[{node.name}](../demo_project/patterns/{module.name})" in page, node.name


def test_the_routes_are_all_there() -> None:
    page = text_of("rest-and-realtime.md")
    for route in urls.urlpatterns:
        address = re.sub(r"<(?:\w+:)?(?:actor_)?(\w+)>", r"{\1}", str(route.pattern))
        inspector, last = address.rpartition("inspector/")[0::2]
        known = f"inspector/{last}`" in page or (inspector and f"`{last}`" in page) or address in page
        assert known, address


def test_the_errors_are_all_there() -> None:
    page = text_of("rest-and-realtime.md")
    for error, status in _STATUS.items():
        if error is NoWorker:
            continue  # of actions on the worker, which are not built yet
        code = getattr(error, "code", "")
        row = next(
            row for row in page.splitlines() if row.startswith("| ") and str(status) in row.split("|")[1]
        )
        assert "UserError" in row or f"`{code}`" in row


def test_the_frames_are_understood() -> None:
    block = re.search(r"```json\n(.*?)```", text_of("rest-and-realtime.md"), re.DOTALL)
    assert block is not None
    parsed = [frames.parse(line) for line in block[1].splitlines()]
    assert [type(frame).__name__ for frame in parsed] == ["Subscribe", "Unsubscribe", "Call", "Send"]


def test_the_states_are_all_there() -> None:
    page = text_of("calling.md")
    for state in ActorState:
        assert f"`{state}`" in page


def test_our_own_checks_find_what_is_wrong_on_purpose_and_nothing_else() -> None:
    for module in Path(__file__).parent.glob("test_page_*.py"):
        for actor in getattr(import_module(f"tests.docs.{module.stem}"), "actors_declared", ()):
            on_purpose = ["W010"] if actor.name == "lottery" else []
            assert [finding.id for finding in lint(actor)] == on_purpose, (module.stem, actor.name)
