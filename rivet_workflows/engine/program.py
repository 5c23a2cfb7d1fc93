"""What the engine is handed with an actor: its code, its limits, and how values become text. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..records import Entry
from . import source
from .options import DEFAULTS, StepOptions


class Codec(Protocol):
    """Values to text and back; the engine knows nothing else about them."""

    def dumps(self, value: Any, *, what: str = ...) -> str: ...

    def loads(self, text: str) -> Any: ...

    def fingerprint(self, text: str) -> str: ...

    def roundtrip(self, value: Any, *, what: str = ...) -> tuple[Any, str]: ...

    def roundtrip_call(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, what: str
    ) -> tuple[tuple[Any, ...], dict[str, Any], str]: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that turn endless growth into a clear error. Sizes are bytes of encoded text."""

    max_scope_entries: int = 10_000
    #: How often a step may be started without ever reporting back before its actor is set aside.
    max_starts: int = 5
    max_value: int = 1_048_576
    #: A step's recorded input is cut here; its hash covers the whole (D-02).
    input_shown: int = 8_192
    #: Attempts whose errors are kept of one step: the first few and the last ones.
    attempts_shown: int = 20
    #: Iterations of a loop in one go without a single recorded call.
    max_idle_iterations: int = 100_000
    #: Entries that one turn may record before it is committed and others get theirs.
    max_turn_rows: int = 1_000


def _no_handler(path: str) -> Callable[..., Any]:
    raise LookupError(f"rollback handler {path!r} cannot be found")


@dataclass(slots=True)
class Program:
    """One actor's workflow as code: ``run(ctx)`` already bound to its actor."""

    run: Callable[[Any], Coroutine[Any, Any, Any]]
    owner: type | None = None
    #: Hash of the loaded code; a refusal is recorded with it (D-03).
    code: str = ""
    unique_names: bool = False
    strict_args: bool = False
    removed: Mapping[str, str] = field(default_factory=dict)
    step_defaults: StepOptions = DEFAULTS
    #: A queue name or Queue attribute to the queue's name; raises QueueNotFound.
    queue_name: Callable[[Any], str] = str
    #: The body of an outgoing message, validated for its queue; raises ValidationFailed.
    check_body: Callable[[str, Any], Any] = lambda _queue, body: body
    #: Dotted path of a rollback handler, checked to resolve; and back.
    handler_path: Callable[[Callable[..., Any]], str] = lambda f: f"{f.__module__}:{f.__qualname__}"
    find_handler: Callable[[str], Callable[..., Any]] = _no_handler
    #: An actor class or name to its name, and a key to its text, for ``ctx.child``.
    actor_name: Callable[[Any], str] = str
    actor_key: Callable[[Any], str] = lambda key: json.dumps(list(key) if isinstance(key, tuple) else [key])
    #: Callers may ask for actions of it where it is held.
    serves: bool = False
    #: ``ctx.log``: anything with the methods of a logger.
    log: Any = None

    def declares_removed(self, entry: Entry) -> bool:
        """The code says that this old entry was removed: on the class, or anywhere ahead in it (D-03, D-04)."""
        kind = entry.kind.label
        ahead = source.removed_names(self.run, self.owner)
        return any(
            self.removed.get(name) == kind or (name, kind) in ahead or (name, None) in ahead
            for name in (entry.name, f"{entry.name}#{entry.occurrence}")
        )
