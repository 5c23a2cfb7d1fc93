"""A workflow function as it would run in another process: its sets iterate the other way round.

The order of a set of texts is another one in each process, so within one process no replay can find a workflow that
depends on it. Here the source of ``run`` is compiled again with every ``for`` over a set turned round; helpers outside
of ``run`` stay as they are. Where there is no source, the function itself is used.

Pure: reads source and code objects, changes neither.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from tokenize import TokenError
from types import CellType, CodeType, FunctionType
from typing import Any

__all__ = ["reordered"]

_NAME = "__rivet_other_order__"


def other_order(iterable: Any) -> Iterable[Any]:
    """A set's elements in the reverse of their order; anything else as it is."""
    return list(iterable)[::-1] if isinstance(iterable, set | frozenset) else iterable


def reordered(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with its sets turned round; ``function`` itself where that cannot be done, or changes nothing."""
    if isinstance(function, partial):
        return partial(reordered(function.func), *function.args, **function.keywords)
    plain = getattr(function, "__func__", function)
    if not isinstance(plain, FunctionType):
        return function
    code = _compiled(plain.__code__)
    if code is None:
        return function
    cells = dict(zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=True))
    cells[_NAME] = CellType(other_order)
    closure = tuple(cells[name] for name in code.co_freevars)
    made = FunctionType(code, plain.__globals__, plain.__name__, plain.__defaults__, closure)
    made.__kwdefaults__ = plain.__kwdefaults__
    made.__qualname__ = plain.__qualname__
    made.__module__ = plain.__module__
    bound = getattr(function, "__self__", None)
    return made if bound is None else made.__get__(bound)


class _Turn(ast.NodeTransformer):
    """Wraps what is iterated over."""

    def __init__(self) -> None:
        self.count = 0

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        node.iter = self._wrapped(node.iter)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        if not node.is_async:
            node.iter = self._wrapped(node.iter)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in ("list", "tuple", "enumerate", "zip", "iter"):
            node.args = [arg if isinstance(arg, ast.Starred) else self._wrapped(arg) for arg in node.args]
        return node

    def visit_Starred(self, node: ast.Starred) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            node.value = self._wrapped(node.value)
        return node

    def _wrapped(self, iterated: ast.expr) -> ast.expr:
        if isinstance(iterated, ast.List | ast.Tuple | ast.Dict | ast.Constant):
            return iterated
        self.count += 1
        call = ast.Call(ast.Name(_NAME, ast.Load()), [iterated], [])
        return ast.copy_location(call, iterated)


@lru_cache(maxsize=512)
def _compiled(original: CodeType) -> CodeType | None:
    """The code of the turned function; None where there is no source, or nothing to turn. Kept by code, which a class
    that each test declares anew has in common."""
    try:
        lines, first = inspect.getsourcelines(original)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, TokenError):
        return None
    made = tree.body[0] if len(tree.body) == 1 else None
    if not isinstance(made, ast.AsyncFunctionDef | ast.FunctionDef) or made.name != original.co_name:
        return None
    turn = _Turn()
    made.body = [turn.visit(statement) for statement in made.body]
    if not turn.count:
        return None
    made.decorator_list = []
    _strip(made)
    # A function around it, whose parameters are the variables it closes over.
    free = [*original.co_freevars, _NAME]
    around = ast.parse(f"def around({', '.join(free)}):\n    pass").body[0]
    assert isinstance(around, ast.FunctionDef)
    around.body = [made]
    module = ast.fix_missing_locations(ast.Module([around], []))
    ast.increment_lineno(made, first - 1)
    code = compile(module, original.co_filename, "exec", dont_inherit=True)
    found = _code_named(_code_named(code, "around"), made.name)
    if found is None or not set(found.co_freevars) <= set(free):
        return None
    return found


def _strip(function: ast.AsyncFunctionDef | ast.FunctionDef) -> None:
    """Defaults and annotations are the original's; evaluated again they could differ."""
    arguments = function.args
    function.returns = None
    for arg in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        arg.annotation = None
    none = ast.Constant(None)
    arguments.defaults = [none for _ in arguments.defaults]
    arguments.kw_defaults = [None if default is None else none for default in arguments.kw_defaults]


def _code_named(code: CodeType | None, name: str) -> CodeType | None:
    for const in code.co_consts if code is not None else ():
        if isinstance(const, CodeType) and const.co_name == name:
            return const
    return None
