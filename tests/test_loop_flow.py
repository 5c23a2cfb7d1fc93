"""Locals that outlive an iteration of ``async for it in ctx.loop(...)``: found, and nothing else is."""

from __future__ import annotations

import ast
import textwrap

import pytest

from rivet_workflows.loop_flow import carried_locals


def carried(source: str) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(source))
    function = tree.body[0]
    assert isinstance(function, ast.AsyncFunctionDef)
    return {found.name: found.how for found in carried_locals(function)}


def in_loop(body: str, *, before: str = "total = 0", after: str = "return None") -> dict[str, str]:
    indented = textwrap.indent(textwrap.dedent(body).strip(), " " * 8)
    loop = f"    async for it in ctx.loop('l'):\n{indented}\n"
    return carried(f"async def run(self, ctx, limit=3):\n    {before}\n{loop}    {after}\n")


@pytest.mark.parametrize(
    "body",
    [
        "total += await it.step('x', f)",
        "total = total + 1",
        "if total > 3:\n    break\ntotal = 5",
        "print(total)\ntotal = 1",
        "if a():\n    total = 1\nuse(total)",
        "for x in (1, 2):\n    total += x",
        "for x in xs:\n    total = x\nuse(total)",
        "try:\n    total = f()\nexcept E:\n    use(total)",
        "use([total for x in xs])\ntotal = 1",
        "use(lambda: total)\ntotal = 1",
        "match x:\n    case 1:\n        total = 1\nuse(total)",
        "with f(total) as y:\n    total = y",
        "while total < 3:\n    total += 1",
        "async def g(b):\n    nonlocal total\n    total += 1\nawait it.join('j', g=g)",
        "(total := total + 1)",
        "a, total = total, 1",
        "del total\nuse(total)\ntotal = 1",
    ],
)
def test_a_local_that_is_read_before_the_iteration_assigns_it_is_carried(body: str) -> None:
    assert in_loop(body) == {"total": "read"}


def test_a_parameter_is_a_local_too() -> None:
    assert in_loop("limit -= 1") == {"limit": "read"}


@pytest.mark.parametrize(
    "body",
    [
        "use(total)",
        "total = await it.step('x', f)\nuse(total)",
        "total = 0\nfor x in (1, 2):\n    total += x\nuse(total)",
        "count = 0\ncount += 1",
        "if a():\n    total = 1\nelse:\n    total = 2\nuse(total)",
        "if a():\n    break\nelse:\n    total = 2\nuse(total)",
        "if not (total := f()):\n    break\nuse(total)",
        "while True:\n    total = f()\n    break\nuse(total)",
        "try:\n    total = f()\nexcept E:\n    continue\nuse(total)",
        "try:\n    total = f()\nexcept E:\n    total = None\nfinally:\n    g()\nuse(total)",
        "with f() as total:\n    use(total)",
        "for total in xs:\n    use(total)",
        "use([total for total in xs])",
        "use({total: 1 for total in xs})",
        "use(lambda total: total)",
        "match f():\n    case [total]:\n        pass\n    case _:\n        total = 1\nuse(total)",
        "it.loop_state.total += 1",
        "total: int = 5\nuse(total)",
        "def g(total):\n    return total\nuse(g)",
        "import total\nuse(total)",
        "async for message in it.loop('inner'):\n    total = message\n    break\nuse(total)",
    ],
)
def test_what_an_iteration_assigns_itself_or_only_reads_is_not(body: str) -> None:
    assert in_loop(body) == {}


def test_a_name_that_is_bound_in_the_loop_alone_is_not() -> None:
    assert in_loop("if a():\n    seen = 1\nelse:\n    use(seen)") == {}


def test_the_loop_target_is_new_in_each_iteration() -> None:
    assert in_loop("it = wrap(it)", before="it = None") == {}


def test_an_inner_loop_is_looked_at_by_itself() -> None:
    body = "count = 0\nasync for inner in it.loop('i'):\n    count += 1\n    if count > 3:\n        break"
    assert in_loop(body) == {"count": "read"}


def test_other_async_iterations_are_nobodys_business() -> None:
    source = """
    async def run(self, ctx):
        total = 0
        async for x in other():
            total += x
    """
    assert carried(source) == {}


@pytest.mark.parametrize(
    "body", ["items.append(1)", "items[0] = 1", "items[0][1] += 1", "del items[0]", "items.pop().run()"]
)
def test_a_container_that_the_iterations_fill_is_told_apart(body: str) -> None:
    assert in_loop(body, before="items = []") == {"items": "filled"}
    assert in_loop(body, before="items: list[int] = list()") == {"items": "filled"}
    assert in_loop("items = []\n" + body, before="items = []") == {}
    assert in_loop(body, before="items = fetch()") == {}


def test_a_value_left_over_from_an_earlier_iteration_is_told_apart() -> None:
    left = "m = await it.queue.next('n')\nif m.last:\n    break\nif m.big:\n    best = m"
    assert in_loop(left, before="best = None", after="return best") == {"best": "left"}
    assert in_loop(left, before="best = None") == {}
    found = "m = await it.queue.next('n')\nif m.big:\n    best = m\n    break"
    assert in_loop(found, before="best = None", after="return best") == {}
    last = "best = await it.queue.next('n')\nif best.last:\n    break"
    assert in_loop(last, before="best = None", after="return best") == {}
