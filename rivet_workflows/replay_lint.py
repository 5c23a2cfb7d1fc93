"""What in a workflow's code a replay cannot repeat, found by reading it: clocks, chance, I/O, carried locals.

Reads the source of the loaded class's ``run`` and of the functions and methods of its module that ``run`` names,
step functions left out: those may do anything. Names are looked up in the loaded module, so ``from time import
time as now`` is seen for what it is, and a local called ``time`` is not taken for it. Without source (zip, exec,
a shell) nothing is found. A help, no proof: what it misses, the testing kit's replay finds.
"""

from __future__ import annotations

import ast
import builtins
import datetime
import inspect
import linecache
import os
import random
import sys
import time
import uuid
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any

from rivet_workflows.loop_flow import (
    Carried,
    FunctionNode,
    carried_locals,
    is_loop_call,
    own_nodes,
    parameters,
)
from rivet_workflows.registry import ActorType

__all__ = ["Finding", "lint"]

_CLOCK = (time.time, time.time_ns, time.monotonic, time.monotonic_ns, time.perf_counter, time.perf_counter_ns)
_DATES = (datetime.datetime.now, datetime.datetime.utcnow, datetime.datetime.today, datetime.date.today)
_IDS = (uuid.uuid1, uuid.uuid4, os.urandom, *([uuid.uuid7] if hasattr(uuid, "uuid7") else []))
#: Modules whose functions talk to the outside, submodules included.
_OUTSIDE = (
    *(
        "requests",
        "httpx",
        "aiohttp",
        "urllib.request",
        "urllib3",
        "http.client",
        "socket",
        "smtplib",
        "ftplib",
    ),
    *("subprocess", "redis", "boto3", "botocore", "psycopg", "sqlite3", "MySQLdb"),
    *("django.core.mail", "django.core.cache"),
)
#: The package's own ways into other actors: at once refused in ``run``.
_OURS = "rivet_workflows.client"
_FOREIGN = frozenset({"asyncio", "anyio", "trio", "asgiref"})
_INSTEAD = {
    "sleep": "await ctx.sleep(name, seconds)",
    "gather": "await ctx.join(name, first=…, second=…)",
    "wait": "ctx.join or ctx.race",
    "TaskGroup": "await ctx.join(name, first=…, second=…)",
    "create_task": "await ctx.join(name, first=…, second=…)",
    "ensure_future": "await ctx.join(name, first=…, second=…)",
    "wait_for": "timeout= on the step or wait",
    "timeout": "timeout= on the step or wait",
    "to_thread": "await ctx.step(name, function): a def runs in a thread",
    "sync_to_async": "await ctx.step(name, function): a def runs in a thread",
}
_STEP_CALLS = frozenset({"step", "try_step"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One place in a workflow's code. ``id`` without the app's prefix; ``E`` is an error, ``W`` a warning."""

    id: str
    message: str
    hint: str
    filename: str
    line: int


def lint(actor_type: ActorType) -> list[Finding]:
    """All findings in the workflow of one actor type, in order of file and line."""
    if not isinstance(actor_type.run, FunctionType):
        return []
    found: list[Finding] = []
    waiting: list[FunctionType] = [actor_type.run]
    seen: set[FunctionType] = set()
    while waiting:
        function = waiting.pop()
        if function in seen:
            continue
        seen.add(function)
        node = _node_of(function)
        if node is not None:
            reader = _Reader(function, node, actor_type)
            found.extend(reader.findings())
            waiting.extend(reader.named)
    return sorted(set(found), key=lambda f: (f.filename, f.line, f.id, f.message))


@lru_cache(maxsize=256)
def _functions_of(filename: str, text: str) -> dict[tuple[str, int], FunctionNode]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return {}
    found: dict[tuple[str, int], FunctionNode] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found[node.name, first] = node
    return found


def _node_of(function: FunctionType) -> FunctionNode | None:
    """The syntax tree of a loaded function; None where there is no source, or a newer one."""
    code = function.__code__
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    return _functions_of(code.co_filename, text).get((code.co_name, code.co_firstlineno))


class _Reader:
    """Reads one function of the workflow, what is nested in it included."""

    def __init__(self, function: FunctionType, node: FunctionNode, actor_type: ActorType) -> None:
        self.function = function
        self.node = node
        self.actor_type = actor_type
        #: Functions of the same module that are workflow code too.
        self.named: list[FunctionType] = []
        self.found: list[Finding] = []
        first = next(iter(function.__code__.co_varnames), "")
        method = inspect.getattr_static(actor_type.cls, function.__name__, None) is function
        self.self_name = first if method or first == "self" else None
        self.cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
        self.imports = _local_imports(node)
        self.steps = _nested_step_names(node)

    def findings(self) -> list[Finding]:
        self._scope(self.node, set())
        return self.found

    def _add(self, id: str, line: int, problem: str, hint: str) -> None:
        if any(found.id == id and found.line == line and id in ("W010", "E011") for found in self.found):
            return  # the parts of one chain of calls: the whole is told already
        where = self.function.__qualname__
        filename = self.function.__code__.co_filename
        self.found.append(Finding(id, f"{where}, line {line}: {problem}", hint, filename, line))

    # -- the walk

    def _scope(self, node: FunctionNode, outer: set[str]) -> None:
        """One function's own scope; ``outer`` are names that enclosing functions bind."""
        for carried in carried_locals(node):
            self._carried(carried)
        bound = {n.id for n in own_nodes(node) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
        bound |= {n.name for n in own_nodes(node) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
        local = outer | parameters(node) | bound
        for statement in node.body:
            self._visit(statement, local)

    def _visit(self, node: ast.AST, local: set[str]) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name not in self.steps:
                self._scope(node, local)
            return
        if isinstance(node, ast.ClassDef):
            return
        if isinstance(node, ast.Lambda):
            self._visit(node.body, local | parameters(node))
            return
        if isinstance(node, ast.For):
            self._iterated(node.iter)
        if isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp):
            for part in node.generators:
                self._iterated(part.iter)
        if isinstance(node, ast.Call):
            self._call(node, local)
            return
        if isinstance(node, ast.Name | ast.Attribute):
            self._name(node, local)
        for child in ast.iter_child_nodes(node):
            self._visit(child, local)

    def _call(self, node: ast.Call, local: set[str]) -> None:
        target = self._resolve(node.func, local)
        step = isinstance(node.func, ast.Attribute) and node.func.attr in _STEP_CALLS
        if not step:
            self._impure(node, target, local)
        skipped = {self._step_function(node, local)} if step else set()
        self._visit(node.func, local)
        for argument in node.args:
            if argument not in skipped:
                self._visit(argument, local)
        for keyword in node.keywords:
            if not (step and keyword.arg == "rollback"):
                self._visit(keyword.value, local)
        if is_loop_call(node):
            self._callable_loop(node)

    def _name(self, node: ast.Name | ast.Attribute, local: set[str]) -> None:
        """A function of the same module that the workflow names is workflow code."""
        found = self._resolve(node, local)
        found = getattr(found, "__wrapped__", found)
        if not isinstance(found, FunctionType) or found.__module__ != self.function.__module__:
            return
        if not hasattr(found, "__rivet_step__") and not hasattr(found, "__rivet_action__"):
            self.named.append(found)

    def _resolve(self, node: ast.AST, local: set[str]) -> Any:
        """What a dotted name stands for in the loaded module, or None. Runs no code of descriptors."""
        if isinstance(node, ast.Name):
            if node.id in self.imports:
                return self.imports[node.id]
            if node.id in local:
                return None
            if node.id in self.cells:
                return _cell(self.cells[node.id])
            return self.function.__globals__.get(node.id, getattr(builtins, node.id, None))
        if not isinstance(node, ast.Attribute):
            return None
        if isinstance(node.value, ast.Name) and node.value.id == self.self_name:
            return inspect.getattr_static(self.actor_type.cls, node.attr, None)
        base = self._resolve(node.value, local)
        if isinstance(base, ModuleType):
            return base.__dict__.get(node.attr)
        if isinstance(base, type) and base.__module__ in ("datetime", "uuid", "random", "time"):
            return getattr(base, node.attr, None)
        return None

    def _step_function(self, node: ast.Call, local: set[str]) -> ast.expr | None:
        """The function among the arguments of ``ctx.step(name, function, …)`` or ``ctx.step(function, …)``."""
        if not node.args:
            return None
        first = node.args[0]
        nested = isinstance(first, ast.Name) and first.id in self.steps
        if nested or isinstance(first, ast.Lambda) or callable(self._resolve(first, local)):
            return first
        return node.args[1] if len(node.args) > 1 else None

    # -- the rules

    def _carried(self, found: Carried) -> None:
        name, keep = found.name, f"keep it in {found.target}.loop_state: ctx.loop(name, state=…)"
        loop = f"the loop of line {found.loop_line}"
        again = "a replay enters only the last iteration again, and would go on with another value"
        if found.how == "read":
            self._add(
                "E010",
                found.line,
                f"the local {name!r} is carried across the iterations of {loop}; {again}.",
                keep,
            )
        elif found.how == "filled":
            self._add("W013", found.line, f"{name!r} is filled by the iterations of {loop}; {again}.", keep)
        else:
            self._add(
                "W014",
                found.line,
                f"after {loop}, {name!r} may have the value of an iteration before the last; {again}.",
                keep,
            )

    def _callable_loop(self, node: ast.Call) -> None:
        """``ctx.loop(name, body)`` whose nested ``body`` changes a local of the workflow."""
        names = {a.id for a in node.args if isinstance(a, ast.Name)}
        for inner in ast.walk(self.node):
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and inner.name in names:
                for statement in own_nodes(inner):
                    if isinstance(statement, ast.Nonlocal):
                        for name in statement.names:
                            self._carried(
                                Carried("read", name, statement.lineno, node.lineno, "the iteration")
                            )

    def _iterated(self, node: ast.expr) -> None:
        called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        if isinstance(node, ast.Set | ast.SetComp) or called in ("set", "frozenset"):
            self._add(
                "W011",
                node.lineno,
                "a set iterates in another order in another process.",
                "Iterate sorted(…) of it.",
            )

    def _impure(self, node: ast.Call, target: Any, local: set[str]) -> None:
        shown = ast.unparse(node.func)
        root = self._root(node.func, local)
        module = getattr(root, "__name__", "") if isinstance(root, ModuleType) else _module_of(target or root)
        top = module.split(".")[0]
        leaf = getattr(target, "__name__", shown.rsplit(".", 1)[-1])
        if top in _FOREIGN:
            self._add(
                "E011",
                node.lineno,
                f"{shown}() belongs to an event loop, and there is none in a workflow.",
                f"Instead: {_INSTEAD.get(leaf, 'do it in a step: await ctx.step(name, function)')}.",
            )
        elif target is time.sleep:
            self._add("E011", node.lineno, f"{shown}() stops the worker.", f"Instead: {_INSTEAD['sleep']}.")
        elif (
            _in(target, _CLOCK)
            or _in(target, _DATES)
            or (leaf == "now" and module == "django.utils.timezone")
        ):
            self._add("W010", node.lineno, f"{shown}() gives another time on replay.", "Instead: ctx.now().")
        elif _in(target, _IDS) or module == "secrets":
            self._add(
                "W010", node.lineno, f"{shown}() gives another value on replay.", "Instead: ctx.uuid4()."
            )
        elif module == "random" and target is not random.Random:
            self._add(
                "W010", node.lineno, f"{shown}() gives another value on replay.", "Instead: ctx.random."
            )
        elif module == _OURS or module.startswith(_OURS + "."):
            self._add(
                "W010", node.lineno, f"{shown}() reaches another actor, again at each replay.", _IN_A_STEP
            )
        elif target is open or any(module == m or module.startswith(f"{m}.") for m in _OUTSIDE):
            self._add("W010", node.lineno, f"{shown}() does I/O, again at each replay.", _IN_A_STEP)
        elif self._uses_manager(node.func, local):
            self._add("W010", node.lineno, f"{shown}() uses the database, again at each replay.", _IN_A_STEP)

    def _root(self, node: ast.AST, local: set[str]) -> Any:
        """Of ``package.module.function`` the module, else what the leftmost name stands for."""
        while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
            found = self._resolve(node, local)
            if isinstance(found, ModuleType):
                return found
            node = node.func if isinstance(node, ast.Call) else node.value
        return self._resolve(node, local)

    def _uses_manager(self, node: ast.AST, local: set[str]) -> bool:
        """``Model.objects.…``, under any name of the manager."""
        while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
            inner = node.func if isinstance(node, ast.Call) else node.value
            if isinstance(node, ast.Attribute):
                model = self._resolve(inner, local)
                if _is_model(model) and node.attr in {m.name for m in model._meta.managers} | _MANAGERS:
                    return True
            node = inner
        return False


_MANAGERS = {"_default_manager", "_base_manager"}
_IN_A_STEP = "Do it in a step: await ctx.step(name, function)."


def _nested_step_names(function: FunctionNode) -> set[str]:
    """Nested functions that are passed to steps: they are not workflow code."""
    nested = {n.name for n in ast.walk(function) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    found: set[str] = set()
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _STEP_CALLS
        ):
            for given in node.args[:2]:
                found |= {n.id for n in ast.walk(given) if isinstance(n, ast.Name)}
    return found & nested


def _local_imports(function: FunctionNode) -> dict[str, Any]:
    """What imports inside the function bind, as far as it is loaded already."""
    found: dict[str, Any] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.split(".")[0]
                found[alias.asname or name] = sys.modules.get(name)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                module = getattr(sys.modules.get(node.module), "__dict__", {})
                found[alias.asname or alias.name] = module.get(alias.name)
    return found


def _in(target: Any, known: tuple[Any, ...]) -> bool:
    # Bound builtins such as datetime.now are made afresh at each look, and equal one another.
    return target is not None and any(target is k or target == k for k in known if type(target) is type(k))


def _module_of(thing: Any) -> str:
    if isinstance(thing, ModuleType):
        return thing.__name__
    if isinstance(getattr(thing, "__self__", None), random.Random) or thing is random.SystemRandom:
        return "random"
    module = getattr(thing, "__module__", None)
    return module if isinstance(module, str) else ""


def _is_model(thing: Any) -> bool:
    return isinstance(thing, type) and hasattr(thing, "_meta") and hasattr(thing, "_default_manager")


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None
