"""What can be read from loaded workflow code: its hash, and which old entries it declares removed. Pure.

The code *objects* are read, never the source file: the file on disk may already be that of the next deploy, so an
old worker would accept what only the new code declares (measured: an old loaded function was shown with the new
file's text). Works alike on CPython 3.11 to 3.14, and for code without any source.
"""

from __future__ import annotations

import dis
import hashlib
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import CodeType, FrameType, FunctionType
from typing import Any

_NOT_PROJECTS = ("rivet_workflows", "django", "asyncio")
#: Who calls it runs the workflow and is no part of it.
_CALLS_WORKFLOWS = "rivet_workflows.engine.tasks"


def _is_projects(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).split(".")[0] not in _NOT_PROJECTS


def line_of_call() -> str | None:
    """``file:line`` of the workflow's code that is running: the nearest frame that is neither ours nor Django's. None
    where the engine does something by itself."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") != _CALLS_WORKFLOWS:
        if _is_projects(frame):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def line_of_wait(coro: Any) -> str | None:
    """``file:line`` of the workflow's code in which a suspended coroutine waits."""
    line = None
    while (frame := getattr(coro, "cr_frame", None)) is not None:
        if _is_projects(frame):
            line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        coro = coro.cr_await
    return line


def line_of_raise(exc: BaseException) -> str | None:
    """``file:line`` of the workflow's code from which an exception came."""
    line, at = None, exc.__traceback__
    while at is not None:
        if _is_projects(at.tb_frame):
            line = f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}"
        at = at.tb_next
    return line


def placed(text: str, line: str | None) -> str:
    """What is wrong, and where in the project's files."""
    return text if line is None else f"{text} (at {line})"


def _function(value: Any) -> FunctionType | None:
    value = getattr(value, "__func__", value)
    value = getattr(value, "__wrapped__", value)
    return value if isinstance(value, FunctionType) else None


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _nested(const)


@lru_cache(maxsize=1024)
def workflow_code(run: Callable[..., Any], owner: type | None = None) -> tuple[CodeType, ...]:
    """The code objects of ``run``, of what is nested in it, and of the functions of its module, and methods of its
    actor class, that it names, transitively."""
    start = _function(run)
    if start is None:
        return ()
    seen: dict[FunctionType, None] = {}
    queue = [start]
    while queue:
        function = queue.pop()
        if function in seen:
            continue
        seen[function] = None
        for code in _nested(function.__code__):
            for name in code.co_names:
                for found in (function.__globals__.get(name), getattr(owner, name, None)):
                    other = _function(found)
                    if other is not None and other.__module__ == start.__module__ and other not in seen:
                        queue.append(other)
    ordered = sorted(seen, key=lambda f: (f.__module__, f.__qualname__, f.__code__.co_firstlineno))
    return tuple(code for function in ordered for code in _nested(function.__code__))


def _constant_text(value: Any) -> str:
    if isinstance(value, CodeType):
        return value.co_qualname
    if isinstance(value, frozenset):  # iterates in another order in another process
        return f"frozenset({sorted(map(repr, value))})"
    return repr(value)


@lru_cache(maxsize=1024)
def code_hash(run: Callable[..., Any], owner: type | None = None) -> str:
    """16 hex digits that change when the workflow's code does. Comments and formatting do not count."""
    digest = hashlib.sha256()
    for code in workflow_code(run, owner):
        constants = [_constant_text(value) for value in code.co_consts]
        digest.update(repr((code.co_code, code.co_names, constants)).encode())
    return digest.hexdigest()[:16]


@lru_cache(maxsize=1024)
def removed_names(run: Callable[..., Any], owner: type | None = None) -> frozenset[tuple[str, str | None]]:
    """``(name, kind)`` of every ``….removed("name", "kind")`` in the workflow's code whose name is a literal.

    ``kind`` is None where it is not a literal. Used to look ahead (D-03), only when something new is about to run
    while old entries have not been met.
    """
    found: set[tuple[str, str | None]] = set()
    for code in workflow_code(run, owner):
        instructions = list(dis.get_instructions(code))
        for index, instruction in enumerate(instructions):
            if instruction.opname not in ("LOAD_ATTR", "LOAD_METHOD") or instruction.argval != "removed":
                continue
            constants = [
                i.argval
                for i in instructions[index + 1 : index + 6]
                if i.opname == "LOAD_CONST" and isinstance(i.argval, str)
            ]
            if constants:
                found.add((constants[0], constants[1] if len(constants) > 1 else None))
    return frozenset(found)
