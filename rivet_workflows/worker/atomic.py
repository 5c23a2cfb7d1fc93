"""Atomic steps: the function's own ORM writes commit together with the record of the step (exactly once).

The step thread opens a transaction on the actors' database and calls the function. What it returned goes to the core,
which advances the engine and hands back everything the actor has pending; the thread writes that in its own
transaction, fenced as any commit is, and commits. No row of the engine is locked while the user's code runs.

Whether a timeout or the end of the function comes first is decided in memory, before anything is written. Where the
transaction cannot be committed it is rolled back whole, and the core has the step run again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import connections, transaction

from rivet_workflows.records import Commit, CommitItem, CommitResult
from rivet_workflows.worker.orders import StateChange, StepReport, StepToken

if TYPE_CHECKING:
    from rivet_workflows.worker.attempt import Attempt

logger = logging.getLogger("rivet_workflows.worker")

#: Seconds that a step thread waits for the core to say what to commit; it answers in milliseconds or is gone.
ANSWER = 60.0


class NotCovered(RuntimeError):
    """An atomic step wrote to another database than the one its transaction is on."""


class Handover:
    """What the core wants committed in the transaction of one attempt; None: roll it back."""

    def __init__(self) -> None:
        self._answered = threading.Event()
        self._lock = threading.Lock()
        self._item: CommitItem | None = None
        self._given_up = False

    @property
    def item(self) -> CommitItem | None:
        return self._item

    def answer(self, item: CommitItem | None) -> bool:
        """False: it comes too late, the transaction was rolled back."""
        with self._lock:
            if self._given_up:
                return False
            self._item = item
            self._answered.set()
            return True

    def wait(self) -> CommitItem | None:
        if not self._answered.wait(ANSWER):
            with self._lock:
                self._given_up = not self._answered.is_set()
            if self._given_up:
                logger.error("The core did not say what an atomic step is to commit; it is rolled back")
        return self._item


class WriteTurn:
    """Who may write, where a database has one writer (SQLite).

    The core's thread must not wait for the write lock that an atomic step holds, since the step waits for the core: so
    a step takes its turn before its transaction begins, and the core, while it waits for its own, goes on answering.
    """

    def __init__(self, needed: bool) -> None:
        self._lock = threading.Lock() if needed else None
        #: Answers atomic steps that have returned; set by the session.
        self.serve: Callable[[], None] = lambda: None

    @contextmanager
    def of_step(self) -> Iterator[None]:
        """The whole transaction of an atomic step."""
        if self._lock is None:
            yield
            return
        with self._lock:
            yield

    @contextmanager
    def of_core(self) -> Iterator[None]:
        """One verb of the core's thread."""
        if self._lock is None:
            yield
            return
        while not self._lock.acquire(timeout=0.002):
            self.serve()
        try:
            yield
        finally:
            self._lock.release()


class Atomics:
    """The store's part in atomic steps, as the step threads use it. ``committed`` is told what became of each,
    ``connect`` sees to it before a transaction that there is a connection."""

    def __init__(
        self,
        alias: str,
        commit: Callable[[CommitItem], CommitResult],
        resolve: Callable[[CommitItem, BaseException], CommitResult] | None = None,
        committed: Callable[[StepToken, CommitResult], None] = lambda _token, _result: None,
        turn: WriteTurn | None = None,
        keep: Callable[[UUID, StateChange], bool] = lambda _actor_id, _change: True,
        connect: Callable[[], None] = lambda: None,
    ) -> None:
        self.alias = alias
        self.keep = keep
        self.connect = connect
        self.turn = turn or WriteTurn(False)
        self.commit = commit
        self.resolve = resolve or (
            lambda item, error: CommitResult(item.actor_id, Commit.REFUSED, str(error))
        )
        self.committed = committed


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one attempt: a report to deliver, or what became of its commit; neither when it was late."""

    report: StepReport | None = None
    result: CommitResult | None = None

    @property
    def stays(self) -> bool:
        """Is its transaction to be committed?"""
        return self.result is not None and self.result.outcome is Commit.OK


@contextmanager
def covered(alias: str) -> Iterator[None]:
    """Refuse writes on other databases: they would not be part of the step's transaction."""

    def refuse(
        execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]
    ) -> Any:
        if sql.lstrip()[:6].upper() not in ("SELECT", "PRAGMA", "EXPLAI", "SHOW"):
            raise NotCovered(
                f"this step is atomic on {alias!r}, and {context['connection'].alias!r} would not be covered: what is "
                "written there stays when the step is rolled back. Write there in a step of its own"
            )
        return execute(sql, params, many, context)

    with ExitStack() as stack:
        for other in connections:
            if other != alias:
                stack.enter_context(connections[other].execute_wrapper(refuse))
        yield


def run_atomic(
    attempt: Attempt,
    *,
    alias: str,
    settle: Callable[[], bool],
    hand_over: Callable[[StepReport], Handover],
    commit: Callable[[CommitItem], CommitResult],
    keep: Callable[[UUID, StateChange], bool] = lambda _actor_id, _change: True,
) -> Outcome:
    """One attempt in a transaction of its own.

    ``settle``: decide that this end counts, False when a timeout was first. ``keep``: have nobody else change the state
    any more; False when somebody did since the step read it. Raises what the database raises as the
    transaction commits: then nobody knows yet whether it did.
    """

    def body() -> Outcome:
        try:
            with covered(alias):
                value = attempt.call()
            report = attempt.succeeded(value)
        except BaseException as error:
            report = attempt.failed(error)
        if not report.ok:
            # D-12: a failed attempt of an atomic step leaves nothing.
            report.effects = None
            return Outcome(report if settle() else None)
        change = report.effects.state if report.effects else None
        kept = change is None or keep(attempt.start.token.actor_id, change)
        if not settle():
            return Outcome()
        if not kept:
            return Outcome(StepReport(ok=False, lost=True))
        report.atomic = True
        item = hand_over(report).wait()
        return Outcome() if item is None else Outcome(result=commit(item))

    outcome = None
    try:
        with transaction.atomic(using=alias):
            outcome = body()
            if not outcome.stays:
                transaction.set_rollback(True, using=alias)
    except Exception:
        if outcome is None or outcome.stays:
            raise
        # It could not be rolled back in good order either: the connection is gone, and all that it had not committed.
        logger.info("The transaction of step %r ended with its connection", attempt.start.name, exc_info=True)
    return outcome
