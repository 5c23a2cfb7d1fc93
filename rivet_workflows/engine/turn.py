"""What the engine gives back after each happening, and what it is told about a step.

Pure data. A :class:`Turn` holds the orders of one happening; the holder of the machine adds up the turns of a
commit, writes them together, and only then calls the functions in ``starts`` (D-11).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..exceptions import ErrorInfo
from ..records import Blocked, Entry, Lifecycle, Prune
from .options import StepOptions


class StepResult(Protocol):
    """How an attempt ended, as the engine needs to know it (the worker's ``StepReport`` is one)."""

    ok: bool
    output: str | None
    value: Any
    error: ErrorInfo | None
    timed_out: bool
    conflict: bool
    reruns: int


@dataclass(slots=True)
class StepOrder:
    """Run this attempt. ``durable``: only after the commit that records its start."""

    seq: int
    attempt: int
    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: StepOptions
    durable: bool = True
    is_rollback: bool = False
    remaining_retries: int = 0


@dataclass(slots=True)
class Failure:
    """A failed attempt, rollback handler or run, for ``on_error`` (R-ERR)."""

    source: str
    error: ErrorInfo
    step_name: str | None = None
    attempt: int | None = None
    max_retries: int | None = None
    remaining_retries: int | None = None
    will_retry: bool | None = None
    retry_delay: float | None = None
    retry_at: int | None = None
    #: The run has not ended: it may not go on, for this reason.
    set_aside: Blocked | None = None


@dataclass(slots=True)
class SelfSend:
    """``ctx.queue.send``: a message of the workflow to its own actor."""

    queue: str
    body: str


@dataclass(slots=True)
class ChildOrder:
    """``ctx.child``: create this actor unless it exists, and tell its end by ``Machine.child_done``. Ordered again
    after every replay, until then."""

    seq: int
    #: Registered name, and the key as its row holds it.
    actor: str
    key: str
    #: The encoded input; None without one.
    input: str | None


@dataclass(slots=True)
class Outcome:
    """The run is over."""

    lifecycle: Lifecycle
    at: int
    output: str | None = None
    error: str | None = None


@dataclass(slots=True)
class SetAside:
    """The actor may not go on until somebody or something changes; nothing is lost."""

    reason: Blocked
    error: ErrorInfo


@dataclass(slots=True)
class Turn:
    """The orders of one happening."""

    #: Entries that are finished, to be inserted into the history.
    rows: list[Entry] = field(default_factory=list)
    prunes: list[Prune] = field(default_factory=list)
    takes: list[int] = field(default_factory=list)
    holds: list[tuple[int, int]] = field(default_factory=list)
    unholds: list[int] = field(default_factory=list)
    completes: list[tuple[int, str]] = field(default_factory=list)
    unanswered: list[int] = field(default_factory=list)
    sends: list[SelfSend] = field(default_factory=list)
    starts: list[StepOrder] = field(default_factory=list)
    children: list[ChildOrder] = field(default_factory=list)
    #: Entries whose running function is not wanted any more.
    cancels: list[int] = field(default_factory=list)
    rolled_back: list[tuple[int, int]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    #: Log lines for the worker, with the actor's name added.
    notes: list[str] = field(default_factory=list)
    #: Open checkpoints ``(seq, scope)`` whose completed steps must be compensated; answer with ``rollback_rows``.
    rollback_scan: list[tuple[int, str]] | None = None
    outcome: Outcome | None = None
    set_aside: SetAside | None = None
    #: The position changed; it goes out with the next commit.
    dirty: bool = False
    #: It must be committed now.
    must_commit: bool = False
