"""Calling a project's functions, ``def`` or ``async def``, from the thread that holds the transaction."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from asgiref.sync import async_to_sync

__all__ = ["invoke"]


def invoke(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What ``function`` returns. The async ORM inside an ``async def`` works on this thread's connection, so it is
    part of the transaction that is open here."""
    if inspect.iscoroutinefunction(function):
        return async_to_sync(function)(*args, **kwargs)
    return function(*args, **kwargs)
