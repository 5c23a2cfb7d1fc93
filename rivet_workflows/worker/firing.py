"""Carries out what is due of the schedules: on threads of the runner's, one at a time on each, never on the core's.

A worker fires every actor type it has code for, held here or not: the action runs as a client's would.
When the next is due is told to the core's thread, which sleeps no longer than until then.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rivet_workflows import codec
from rivet_workflows.client import bells
from rivet_workflows.client.actions import find_action, run_action
from rivet_workflows.client.fires import ScheduledFire
from rivet_workflows.client.moments import from_micros
from rivet_workflows.client.scheduling import arguments_for
from rivet_workflows.client.workercalls import order
from rivet_workflows.crashpoints import crashpoint
from rivet_workflows.exceptions import ActionNotFound, ActorBusy, ActorNotFound
from rivet_workflows.records import ScheduleKind
from rivet_workflows.registry import registry
from rivet_workflows.store.errors import Trouble, classify
from rivet_workflows.store.fires import INTERRUPTED, DueSchedule, TakenFire
from rivet_workflows.worker.attempt import describe
from rivet_workflows.worker.connections import drop
from rivet_workflows.worker.patience import OUTAGES
from rivet_workflows.worker.ports import WorkerStore
from rivet_workflows.worker.runner import FIRE_THREADS

logger = logging.getLogger("rivet_workflows.worker")

#: Due schedules that one look brings.
BATCH = 20
#: Seconds between attempts to record the end of a fire while the database is away: nothing rings when it is back.
AWAY = 0.5
#: Seconds in which the action of a one-shot must have been run by the worker that holds the actor, where it runs there.
PATIENCE = 24 * 3600.0


class _Interrupted(Exception):
    """Leaves the transaction of a fire that counts as interrupted already."""


def fire_due(
    store: WorkerStore, worker_id: int, actor_names: Iterable[str], stopping: Callable[[], bool] = bool
) -> int:
    """Fire what is due of these actor types, the longest due first, until nothing is left to be had; how many.

    What others fire, or have locked, just now is left to them.
    """
    names = list(actor_names)
    done = 0
    while not stopping():
        got = 0
        for due in store.due_schedules(names, BATCH):
            if stopping():
                break
            got += fire(store, worker_id, due, stopping)
        if not got:
            break
        done += got
    return done


def fire(store: WorkerStore, worker_id: int, due: DueSchedule, stopping: Callable[[], bool] = bool) -> bool:
    """Fire one schedule, if it is still to be had. What its action raises is recorded or logged, not raised."""
    if due.kind is ScheduleKind.AT:
        return _fire_once(store, due)
    taken = store.take_recurring(due, worker_id)
    if taken is None:
        return False
    if taken.skipped:
        logger.info(
            "A fire of %r of actor %s is skipped: the one before still runs", taken.name, taken.actor_id
        )
        return True
    crashpoint("fire-taken")
    try:
        _carry_out(store, taken)
    except _Interrupted:
        logger.warning("A fire of %r of actor %s was taken for interrupted", taken.name, taken.actor_id)
    except Exception as error:
        # Its transaction could not be committed, or it cannot be told whether it was: only what still runs is changed.
        logger.exception("A fire of %r of actor %s broke off", taken.name, taken.actor_id)
        _record_break(store, taken, error, stopping)
    return True


def _fire_once(store: WorkerStore, due: DueSchedule) -> bool:
    try:
        with store.changing():
            taken = store.take_one_shot(due)
            if taken is None:
                return False
            try:
                with store.atomic():
                    _call(store, taken)
                crashpoint("fire-run")
            except ActorNotFound:
                logger.debug("A schedule of actor %s goes with it", due.actor_id)
            except Exception as error:
                if _passes(error):
                    raise
                logger.exception(
                    "Scheduled action %r of actor %s failed; it is not tried again",
                    taken.action,
                    taken.actor_id,
                )
    except Exception as error:
        if not _passes(error):
            raise
        logger.info("The schedule %s of actor %s stays due: %s", due.id, due.actor_id, error)
        return False
    return True


def _passes(error: BaseException) -> bool:
    """Does it say nothing about the action, and may be another thing in a moment?"""
    if isinstance(error, ActorBusy):
        return True
    return isinstance(error, Exception) and classify(error) in (Trouble.AGAIN, Trouble.LOST)


def _carry_out(store: WorkerStore, taken: TakenFire) -> None:
    """The action's effects and the record of its end, in one transaction. One for the worker that holds the actor is
    waited for first: inside a transaction nobody would see the call."""
    elsewhere = _runs_elsewhere(store, taken)
    failure = _failure_of(store, taken, nullcontext) if elsewhere else None
    with store.changing():
        if not elsewhere:
            failure = _failure_of(store, taken, store.atomic)
        crashpoint("fire-run")
        if not store.finish_fire(taken, failure):
            raise _Interrupted


def _failure_of(
    store: WorkerStore, taken: TakenFire, within: Callable[[], AbstractContextManager[Any]]
) -> str | None:
    try:
        with within():
            _call(store, taken)
    except ActionNotFound as error:
        if store.drop_undefined(taken):
            logger.error("%s. The job %r of actor %s is removed", error, taken.name, taken.actor_id)
        return _text(error)
    except Exception as error:
        if classify(error) is Trouble.LOST:
            raise
        logger.exception("Scheduled action %r of actor %s failed", taken.action, taken.actor_id)
        return _text(error)
    return None


def _runs_elsewhere(store: WorkerStore, taken: TakenFire) -> bool:
    row = store.get(taken.actor_id)
    kind = None if row is None else registry.find(row.name)
    action = None if kind is None else kind.actions.get(taken.action)
    return action is not None and action.on_worker


def _call(store: WorkerStore, taken: TakenFire) -> None:
    row = store.get(taken.actor_id)
    if row is None:
        raise ActorNotFound(f"actor {taken.actor_id} was destroyed")
    kind = registry.get(row.name)
    action = find_action(kind, taken.action)
    told = ScheduledFire(
        kind=taken.kind.label,
        id=taken.name or str(taken.schedule_id),
        name=taken.name,
        scheduled_at=from_micros(taken.scheduled_at),
        fired_at=from_micros(taken.fired_at),
    )
    args = arguments_for(action.func, _list(taken.args), told)
    if action.on_worker and taken.kind is ScheduleKind.AT:
        # The fire and the order for its action are one transaction; nobody waits for its end.
        store.ask_worker(order(taken.actor_id, kind, action, args, {}, patience=PATIENCE))
        bells.announce(work=[taken.actor_id])
        return
    run_action(taken.actor_id, row.name, taken.action, args)


def _record_break(
    store: WorkerStore, taken: TakenFire, error: Exception, stopping: Callable[[], bool]
) -> None:
    text = INTERRUPTED if classify(error) is Trouble.LOST else _text(error)
    while True:
        try:
            with store.changing():
                store.finish_fire(taken, text)
            return
        except OUTAGES:
            if stopping():
                return  # whoever forgets this worker ends its fires
            drop(store.alias)
            time.sleep(AWAY)


def _list(text: str) -> list[Any]:
    found: Any = codec.loads(text)
    return list(found)


def _text(error: BaseException) -> str:
    return json.dumps(describe(error).to_dict())


class Firing:
    """The firing of one worker id, as its session's thread sees it."""

    def __init__(
        self,
        store: WorkerStore,
        worker_id: int,
        actor_names: Iterable[str],
        *,
        submit: Callable[[Callable[[], None]], None],
        done: Callable[[bool], None],
        width: int = FIRE_THREADS,
    ) -> None:
        self._store = store
        self._worker_id = worker_id
        self._names = list(actor_names)
        self._submit = submit
        #: Told when a thread has no more to fire; True: it has fired something, and it is time to look again.
        self._done = done
        self._width = width
        self._lock = threading.Lock()
        self._active = 0
        self._again = False
        self._stopping = False

    @property
    def busy(self) -> bool:
        """A scheduled action runs, or may."""
        return self._active > 0

    def stop(self) -> None:
        """Begin no more of them; what runs goes on to its end."""
        self._stopping = True

    def look(self, now: int) -> int | None:
        """Have what is due fired; when to look again at the latest. A query, of two when something is due."""
        if not self._names or self._stopping:
            return None
        first = self._store.next_fires(self._names)
        due = [name for name, at in first.items() if at <= now]
        later = [at for at in first.values() if at > now]
        if due:
            self._rouse(len(self._store.due_schedules(due, self._width)))
            later += self._store.next_fires(due, now).values()
        return min(later, default=None)

    def next_one_shot(self) -> int | None:
        """When the next one-shot is due: what ``until_idle`` waits for. Recurring ones would never end."""
        return min(self._store.next_fires(self._names, one_shots=True).values(), default=None)

    def _rouse(self, wanted: int) -> None:
        with self._lock:
            self._again = self._again or self._active > 0
            more = max(0, min(wanted, self._width) - self._active)
            self._active += more
        for _ in range(more):
            self._submit(self._work)

    def _work(self) -> None:
        """On a thread of the runner's."""
        done = 0
        try:
            while True:
                done += fire_due(self._store, self._worker_id, self._names, lambda: self._stopping)
                with self._lock:
                    if not self._again or self._stopping:
                        self._active -= 1
                        break
                    self._again = False
        except BaseException:
            with self._lock:
                self._active -= 1
            raise
        finally:
            self._done(done > 0)
