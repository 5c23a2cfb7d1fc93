"""What the engine gives back after each happening, and what it is told about a step.

Pure data. A :class:`Turn` holds the orders of one happening; the holder of the machine adds up the turns of a
commit, writes them together, and only then calls the functions in ``starts`` (D-11).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


class Turn:
    """The orders of one happening. Lists that few turns have are made when they are first looked at."""

    __slots__ = (
        "cancels",
        "children",
        "completes",
        "dirty",
        "failures",
        "holds",
        "more",
        "must_commit",
        "notes",
        "outcome",
        "prunes",
        "rollback_scan",
        "rolled_back",
        "rows",
        "sends",
        "set_aside",
        "starts",
        "takes",
        "unanswered",
        "unholds",
    )

    prunes: list[Prune]
    takes: list[int]
    holds: list[tuple[int, int]]
    unholds: list[int]
    completes: list[tuple[int, str]]
    unanswered: list[int]
    sends: list[SelfSend]
    children: list[ChildOrder]
    #: Entries whose running function is not wanted any more.
    cancels: list[int]
    rolled_back: list[tuple[int, int]]
    failures: list[Failure]
    #: Log lines for the worker, with the actor's name added.
    notes: list[str]

    def __init__(self) -> None:
        #: Entries that are finished, to be inserted into the history.
        self.rows: list[Entry] = []
        self.starts: list[StepOrder] = []
        #: Open checkpoints ``(seq, scope)`` whose completed steps must be compensated; answer with ``rollback_rows``.
        self.rollback_scan: list[tuple[int, str]] | None = None
        self.outcome: Outcome | None = None
        self.set_aside: SetAside | None = None
        #: The position changed; it goes out with the next commit.
        self.dirty = False
        #: It must be committed now.
        self.must_commit = False
        #: Which of the other lists have been made.
        self.more: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        """A list that nobody has looked at yet."""
        if name not in Turn.__slots__:
            raise AttributeError(name)
        self.more += (name,)
        made: list[Any] = []
        setattr(self, name, made)
        return made
