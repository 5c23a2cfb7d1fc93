"""What is read from loaded workflow code: the hash that tells a deploy, and what is declared removed (D-03)."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from rivet_workflows.engine.source import code_hash, removed_names, workflow_code


def compiled(text: str, module: str = "shop.flows") -> dict[str, Any]:
    """The names of a module with this text."""
    names: dict[str, Any] = {"__name__": module}
    exec(compile(text, "<shop>", "exec"), names)
    return names


def run_of(text: str) -> Callable[..., Any]:
    run: Callable[..., Any] = compiled(text)["run"]
    return run


BASE = """
async def run(ctx):
    async def branch(b):
        return await b.step("charge", charge, 1)
    return await ctx.join("j", a=branch), helper(2), "text", frozenset(["a", "b", "c"]), x in {"p", "q", "r"}

def helper(n):
    return n + 1
"""


def test_comments_and_formatting_do_not_change_the_hash() -> None:
    assert code_hash(run_of(BASE)) == code_hash(run_of("# new\n\n\n" + BASE.replace("(2)", "( 2 )")))
    assert len(code_hash(run_of(BASE))) == 16
    assert int(code_hash(run_of(BASE)), 16)


def test_everything_that_runs_changes_the_hash() -> None:
    changes = [
        ("1)", "2)"),
        ('"charge"', '"charges"'),
        ("b.step", "b.try_step"),
        ("n + 1", "n - 1"),
        ("n + 1", "n + 3"),
        ("a=branch", "b=branch"),
        ("branch", "other"),
        ('"text"', '"t"'),
        ('"r"}', '"s"}'),
        ("helper(2)", "helper(3)"),
        ("n + 1", "m + 1"),
    ]
    hashes = {code_hash(run_of(BASE.replace(old, new))) for old, new in changes}
    assert len(hashes | {code_hash(run_of(BASE))}) == len(changes) + 1


def test_the_order_in_which_a_set_is_written_is_no_change() -> None:
    """As constants sets iterate in another order in each process."""
    other = BASE.replace('{"p", "q", "r"}', '{"r", "p", "q"}')
    assert code_hash(run_of(BASE)) == code_hash(run_of(other))


def test_names_that_no_text_holds_are_hashed_too() -> None:
    assert len(code_hash(run_of('async def run(ctx):\n    return "\\ud800"\n'))) == 16


def test_what_the_code_names_belongs_to_it() -> None:
    names = compiled(
        """
import json
from functools import wraps

def used(n): return deeper(n)
def deeper(n): return n and used(n - 1)
def unused(n): return n
def wrapper(f):
    @wraps(f)
    def inner(*a): return f(*a)
    return inner
@wrapper
def decorated(n): return (lambda: n)()

class Flow:
    async def run(self, ctx):
        return used(1), self.method(), json.dumps(1), decorated(2)
    def method(self): return self.last()
    def last(self): return 1
    def never(self): return 2
"""
    )
    names["json"].dumps  # of another module: not part of the workflow
    flow = names["Flow"]
    found = [code.co_qualname for code in workflow_code(flow().run, flow)]
    assert found == [
        "Flow.last",
        "Flow.method",
        "Flow.run",
        "decorated",
        "decorated.<locals>.<lambda>",
        "deeper",
        "used",
    ]
    assert [code.co_qualname for code in workflow_code(flow.run)] == [
        "Flow.run",
        "decorated",
        "decorated.<locals>.<lambda>",
        "deeper",
        "used",
    ]


def test_functions_of_other_modules_are_not_part_of_it() -> None:
    run = run_of("async def run(ctx):\n    return helper(1)\n")
    run.__globals__["helper"] = compiled("def helper(n): return n", "other")["helper"]
    assert [code.co_qualname for code in workflow_code(run)] == ["run"]


def test_what_is_no_python_function_has_no_code() -> None:
    assert workflow_code(len) == ()
    assert workflow_code(functools.partial(print)) == ()
    assert removed_names(len) == frozenset()
    assert isinstance(code_hash(len), str)


def test_functions_that_are_named_alike_are_hashed_in_the_order_of_the_text() -> None:
    text = """
def make():
    def helper(n): return n
    one = helper
    def helper(n): return -n
    return one, helper
one, two = make()
async def run(ctx): return one(1), two(2)
"""
    lines = [code.co_firstlineno for code in workflow_code(run_of(text)) if code.co_name == "helper"]
    assert lines == sorted(lines)
    assert len(lines) == 2


def test_removals_are_found_wherever_the_code_makes_them() -> None:
    run = run_of(
        """
async def run(ctx):
    await ctx.removed("old", "step")
    if ctx.name:
        async for it in ctx.loop("l"):
            await it.removed("wait-work#2", "message")
    await ctx.join("j", a=lambda b: b.removed("in-a-branch", "sleep"))
    await helper(ctx, "loop")
    ctx.removal("no", "step")
    removed("neither", "step")

async def helper(c, kind):
    await c.removed("kind-unknown", kind)
    await c.removed(kind, kind)
"""
    )
    assert removed_names(run) == {
        ("old", "step"),
        ("wait-work#2", "message"),
        ("in-a-branch", "sleep"),
        ("kind-unknown", None),
    }


def test_methods_that_the_actors_code_names_belong_to_it() -> None:
    text = """
class Flow:
    async def run(self, ctx):
        await self.clean(ctx)
    async def clean(self, ctx):
        await ctx.removed("old", "step")
"""
    flow = compiled(text)["Flow"]
    assert removed_names(flow.run, flow) == {("old", "step")}
    other = compiled(text.replace("old", "older"))["Flow"]
    assert code_hash(flow.run, flow) != code_hash(other.run, other)


def test_what_is_named_twice_hides_nothing() -> None:
    names = ("async def run(ctx): return first, again, last", "def first(): ...", "def again(): ...")
    run = run_of("\n".join([*names, "def last(): return again"]))
    found = [code.co_qualname for code in workflow_code(run)]
    assert found == ["again", "first", "last", "run"]


def test_an_unbound_method_a_bound_one_and_a_decorated_one_are_read_alike() -> None:
    class Flow:
        async def run(self, ctx: Any) -> None:
            await ctx.removed("old", "step")

    @functools.wraps(Flow.run)
    async def decorated(*args: Any) -> None:
        await Flow.run(*args)

    for run in (Flow.run, Flow().run, decorated, types.MethodType(Flow.run, Flow())):
        assert removed_names(run) == {("old", "step")}
