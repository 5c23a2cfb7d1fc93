"""Which locals of a workflow outlive an iteration of a native loop, read from the syntax tree. Pure.

``async for it in ctx.loop(...)``: a replay enters the last iteration alone (D-06), so a local that an earlier
iteration gave its value has another one then, silently. The analysis is the usual one of definite assignment: a
name is *carried* when the body assigns it, may read it before it has, and the function binds it outside.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_MUTATORS = frozenset(
    {"append", "extend", "insert", "add", "update", "setdefault", "pop", "popitem", "remove", "discard"}
    | {"clear", "appendleft", "popleft", "sort", "reverse"}
)
_CONTAINERS = frozenset({"list", "dict", "set", "deque", "defaultdict", "Counter", "OrderedDict"})


@dataclass(frozen=True, slots=True)
class Carried:
    """``name`` outlives an iteration; ``how``: ``read`` before it is assigned, ``filled`` as a container, ``left``
    with an earlier iteration's value after the loop."""

    how: str
    name: str
    line: int
    loop_line: int
    target: str


def carried_locals(function: FunctionNode) -> list[Carried]:
    """All locals carried across iterations of the native loops of ``function``, nested functions left out."""
    found: list[Carried] = []
    for node in own_nodes(function):
        if isinstance(node, ast.AsyncFor) and is_loop_call(node.iter):
            found.extend(_of_loop(function, node))
    return found


def is_loop_call(node: ast.AST) -> bool:
    """``<anything>.loop(...)``"""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "loop"


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a function's own scope; nested functions and classes as one node each."""
    stack = list(ast.iter_child_nodes(function))
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, _SCOPES):
            stack.extend(ast.iter_child_nodes(node))


def parameters(function: FunctionNode | ast.Lambda) -> set[str]:
    """The names of the function's parameters."""
    a = function.args
    every = [*a.posonlyargs, *a.args, *a.kwonlyargs, *(x for x in (a.vararg, a.kwarg) if x is not None)]
    return {arg.arg for arg in every}


def _of_loop(function: FunctionNode, loop: ast.AsyncFor) -> Iterator[Carried]:
    inside = set(ast.walk(loop))
    outside = parameters(function)
    containers: set[str] = set()
    read_later: set[str] = set()
    for node in own_nodes(function):
        if node not in inside and getattr(node, "lineno", loop.lineno) < loop.lineno:
            outside |= _bound_by(node)
            containers |= _containers_of(node)
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Load)
            and node.lineno > (loop.end_lineno or 0)
        ):
            read_later.add(node.id)

    flow = _Flow()
    end = flow.block(loop.body, flow.enter(loop.target))
    if end.alive:
        flow.ends_may |= end.may
    target = ast.unparse(loop.target)
    for name, line in flow.reads.items():
        if name in flow.stored and name in outside:
            yield Carried("read", name, line, loop.lineno, target)
    for name, line in _filled(loop).items():
        if name in containers and name not in flow.stored:
            yield Carried("filled", name, line, loop.lineno, target)
    for name, line in flow.stored.items():
        left = name in flow.ends_may and any(name not in state.must for state in flow.breaks)
        if left and name in outside and name in read_later and name not in flow.reads:
            yield Carried("left", name, line, loop.lineno, target)


def _bound_by(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return {node.id}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.ExceptHandler) and node.name:
        return {node.name}
    return set()


def _containers_of(node: ast.AST) -> set[str]:
    """Names that the statement binds to a new container."""
    if isinstance(node, ast.Assign):
        value, targets = node.value, node.targets
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        value, targets = node.value, [node.target]
    else:
        return set()
    made = isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)
    if isinstance(value, ast.Call):
        called = value.func
        name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
        made = name in _CONTAINERS
    return {t.id for t in targets if isinstance(t, ast.Name)} if made else set()


def _filled(loop: ast.AsyncFor) -> dict[str, int]:
    """Names of what the body changes in place: ``x.append(…)``, ``x[k] = …``, ``x[k] += …``, ``del x[k]``."""
    found: dict[str, int] = {}
    for statement in loop.body:
        for node in ast.walk(statement):
            inner: ast.AST | None = None
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in _MUTATORS
            ):
                inner = node.func.value
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
                inner = node.value
            while isinstance(inner, ast.Subscript):
                inner = inner.value
            if isinstance(inner, ast.Name):
                found.setdefault(inner.id, inner.lineno)
    return found


@dataclass(slots=True)
class _State:
    """At one point of an iteration: names it has assigned for sure, names it may have; dead after ``break``."""

    must: set[str] = field(default_factory=set)
    may: set[str] = field(default_factory=set)
    alive: bool = True

    def copy(self) -> _State:
        return _State(set(self.must), set(self.may), self.alive)


def _merge(*states: _State) -> _State:
    living = [s for s in states if s.alive]
    if not living:
        return _State(alive=False)
    return _State(set.intersection(*(s.must for s in living)), set.union(*(s.may for s in living)))


class _Flow:
    """Walks the body of a loop once, in order of execution."""

    def __init__(self) -> None:
        self.reads: dict[str, int] = {}
        self.stored: dict[str, int] = {}
        self.ends_may: set[str] = set()
        self.breaks: list[_State] = []
        #: Breaks of the inner plain loops that are being walked, innermost last.
        self.inner: list[list[_State]] = []

    def enter(self, target: ast.expr) -> _State:
        state = _State()
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                state.must.add(node.id)
        return state

    def block(self, statements: list[ast.stmt], state: _State) -> _State:
        for statement in statements:
            if not state.alive:
                break
            state = self.statement(statement, state)
        return state

    def statement(self, node: ast.stmt, state: _State) -> _State:
        handler = getattr(self, f"_{type(node).__name__.lower()}", None)
        if handler is not None:
            return handler(node, state)  # type: ignore[no-any-return]
        for child in ast.iter_child_nodes(node):
            self.expression(child, state)
        return state

    # -- names

    def read(self, name: str, line: int, state: _State) -> None:
        if name not in state.must:
            self.reads.setdefault(name, line)

    def bind(self, target: ast.AST, state: _State) -> None:
        if isinstance(target, ast.Name):
            self.store(target.id, target.lineno, state)
        elif isinstance(target, ast.Tuple | ast.List):
            for part in target.elts:
                self.bind(part, state)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, state)
        else:
            self.expression(target, state)

    def store(self, name: str, line: int, state: _State) -> None:
        self.stored.setdefault(name, line)
        state.must.add(name)
        state.may.add(name)

    # -- expressions, in order of evaluation

    def expression(self, node: ast.AST, state: _State) -> None:
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                self.read(node.id, node.lineno, state)
        elif isinstance(node, ast.NamedExpr):
            self.expression(node.value, state)
            self.bind(node.target, state)
        elif isinstance(node, ast.Lambda):
            self._closure(node, [node.body], state)
        elif isinstance(node, _COMPREHENSIONS):
            self._comprehension(node, state)
        else:
            for child in ast.iter_child_nodes(node):
                self.expression(child, state)

    def _comprehension(self, node: ast.AST, state: _State) -> None:
        inner = state.copy()
        for generator in node.generators:  # type: ignore[attr-defined]
            self.expression(generator.iter, inner)
            inner.must |= {n.id for n in ast.walk(generator.target) if isinstance(n, ast.Name)}
            for condition in generator.ifs:
                self.expression(condition, inner)
        for part in ("elt", "key", "value"):
            if getattr(node, part, None) is not None:
                self.expression(getattr(node, part), inner)

    def _closure(self, node: FunctionNode | ast.Lambda, body: list[ast.AST], state: _State) -> None:
        """A nested function: what it reads from outside counts as read here; what is ``nonlocal`` as both."""
        for default in [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]:
            self.expression(default, state)
        nodes = [n for part in body for n in ast.walk(part)]
        outer = {name for n in nodes if isinstance(n, ast.Nonlocal) for name in n.names}
        local = parameters(node) | {name for n in nodes for name in _bound_by(n)} - outer
        for n in nodes:
            if isinstance(n, ast.Name) and n.id not in local:
                if isinstance(n.ctx, ast.Load) or n.id in outer:
                    self.read(n.id, n.lineno, state)
                if n.id in outer and isinstance(n.ctx, ast.Store):
                    self.stored.setdefault(n.id, n.lineno)
                    state.may.add(n.id)

    # -- statements

    def _assign(self, node: ast.Assign, state: _State) -> _State:
        self.expression(node.value, state)
        for target in node.targets:
            self.bind(target, state)
        return state

    def _annassign(self, node: ast.AnnAssign, state: _State) -> _State:
        if node.value is not None:
            self.expression(node.value, state)
            self.bind(node.target, state)
        return state

    def _augassign(self, node: ast.AugAssign, state: _State) -> _State:
        if isinstance(node.target, ast.Name):
            self.read(node.target.id, node.lineno, state)
        self.expression(node.value, state)
        self.bind(node.target, state)
        return state

    def _delete(self, node: ast.Delete, state: _State) -> _State:
        for target in node.targets:
            if isinstance(target, ast.Name):
                state.must.discard(target.id)
            else:
                self.expression(target, state)
        return state

    def _functiondef(self, node: FunctionNode, state: _State) -> _State:
        for decorator in node.decorator_list:
            self.expression(decorator, state)
        self._closure(node, list(node.body), state)
        self.store(node.name, node.lineno, state)
        return state

    _asyncfunctiondef = _functiondef

    def _classdef(self, node: ast.ClassDef, state: _State) -> _State:
        self.store(node.name, node.lineno, state)
        return state

    def _import(self, node: ast.Import | ast.ImportFrom, state: _State) -> _State:
        for alias in node.names:
            self.store((alias.asname or alias.name).split(".")[0], node.lineno, state)
        return state

    _importfrom = _import

    def _if(self, node: ast.If, state: _State) -> _State:
        self.expression(node.test, state)
        return _merge(self.block(node.body, state.copy()), self.block(node.orelse, state.copy()))

    def _for(self, node: ast.For | ast.AsyncFor, state: _State) -> _State:
        self.expression(node.iter, state)
        inner = state.copy()
        self.bind(node.target, inner)
        return self._repeated(node, state, inner, endless=is_loop_call(node.iter))

    _asyncfor = _for

    def _while(self, node: ast.While, state: _State) -> _State:
        self.expression(node.test, state)
        endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
        return self._repeated(node, state, state.copy(), endless=endless)

    def _repeated(
        self, node: ast.For | ast.AsyncFor | ast.While, before: _State, inner: _State, *, endless: bool
    ) -> _State:
        self.inner.append([])
        end = self.block(node.body, inner)
        breaks = self.inner.pop()
        if endless:
            return _merge(*breaks)
        done = _State(set(before.must), before.may | end.may | inner.may)
        return _merge(self.block(node.orelse, done), *breaks)

    def _with(self, node: ast.With | ast.AsyncWith, state: _State) -> _State:
        for item in node.items:
            self.expression(item.context_expr, state)
            if item.optional_vars is not None:
                self.bind(item.optional_vars, state)
        return self.block(node.body, state)

    _asyncwith = _with

    def _try(self, node: ast.Try | ast.TryStar, state: _State) -> _State:
        before = state.copy()
        done = self.block(node.orelse, self.block(node.body, state))
        ends = [done]
        for handler in node.handlers:
            # Anywhere in the body may have raised: what it assigns may, but need not, be assigned.
            caught = _State(set(before.must), before.may | {n for s in node.body for n in self._stored_in(s)})
            if handler.type is not None:
                self.expression(handler.type, caught)
            if handler.name:
                caught.must.add(handler.name)
            ends.append(self.block(handler.body, caught))
        merged = _merge(*ends)
        if not node.finalbody:
            return merged
        if not merged.alive:
            self.block(node.finalbody, before)
            return merged
        return self.block(node.finalbody, merged)

    _trystar = _try

    @staticmethod
    def _stored_in(statement: ast.stmt) -> set[str]:
        return {name for node in ast.walk(statement) for name in _bound_by(node)}

    def _match(self, node: ast.Match, state: _State) -> _State:
        self.expression(node.subject, state)
        ends = []
        exhaustive = False
        for case in node.cases:
            inner = state.copy()
            for pattern in ast.walk(case.pattern):
                name = getattr(pattern, "name", None) or getattr(pattern, "rest", None)
                if isinstance(pattern, ast.pattern) and isinstance(name, str):
                    self.store(name, pattern.lineno, inner)
            if case.guard is not None:
                self.expression(case.guard, inner)
            irrefutable = isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None
            exhaustive = exhaustive or (irrefutable and case.guard is None)
            ends.append(self.block(case.body, inner))
        return _merge(*ends) if exhaustive else _merge(*ends, state)

    def _return(self, node: ast.Return | ast.Raise, state: _State) -> _State:
        for child in ast.iter_child_nodes(node):
            self.expression(child, state)
        return _State(alive=False)

    _raise = _return

    def _break(self, node: ast.Break, state: _State) -> _State:
        (self.inner[-1] if self.inner else self.breaks).append(state.copy())
        return _State(alive=False)

    def _continue(self, node: ast.Continue, state: _State) -> _State:
        if not self.inner:
            self.ends_may |= state.may
        return _State(alive=False)
