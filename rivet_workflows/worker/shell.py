"""The worker: what holds the core, the store, the runner and the threads together.

Threads of one process: the core's (it also writes), the steps', the loop of async steps, heartbeat and watchdog, the
listener for bells. All are daemonic: the process may leave whatever users' code does.

Starting, stopping and waiting are for any thread; everything else happens on the core's own.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from django.db import connections

from rivet_workflows import codec, keys
from rivet_workflows.client.actions import run_hook
from rivet_workflows.conf import settings
from rivet_workflows.engine import Machine, Program
from rivet_workflows.exceptions import ActorBusy, ActorNotFound
from rivet_workflows.records import Claimed, Commit, CommitItem, CommitResult
from rivet_workflows.registry import ActorType, registry
from rivet_workflows.store import bells, get_store
from rivet_workflows.store.errors import UnknownOutcome
from rivet_workflows.store.listening import Listener
from rivet_workflows.worker import guard, maintenance
from rivet_workflows.worker.atomic import Atomics, WriteTurn
from rivet_workflows.worker.carry import Carrier
from rivet_workflows.worker.connections import close_all
from rivet_workflows.worker.context import StepEnvironment
from rivet_workflows.worker.control import Control
from rivet_workflows.worker.core import Core, CoreLimits
from rivet_workflows.worker.dbtime import DatabaseTime
from rivet_workflows.worker.failures import FailureTeller
from rivet_workflows.worker.firing import Firing
from rivet_workflows.worker.hookjobs import Wanted
from rivet_workflows.worker.hooks import Hooks
from rivet_workflows.worker.inbox import Inbox
from rivet_workflows.worker.orders import ErrorEvent, StateChange
from rivet_workflows.worker.overrun import RunWatch
from rivet_workflows.worker.patience import OUTAGES, GivenUp, Patience, insist
from rivet_workflows.worker.ports import WorkerStore
from rivet_workflows.worker.programs import engine_limits, make_program
from rivet_workflows.worker.pulse import Pulse
from rivet_workflows.worker.runner import CALL_THREADS, FIRE_THREADS, HOOK_THREADS, StepRunner
from rivet_workflows.worker.session import Habits, Session
from rivet_workflows.worker.stepclient import StepClient
from rivet_workflows.worker.vars import VarsTable

logger = logging.getLogger("rivet_workflows.worker")

R = TypeVar("R")

#: Seconds that a thread may run Python before another gets its turn. With one busy step thread the default of 5 ms
#: makes every hand-over of the core's wait that long: 1,900 steps/s instead of 12,300.
SWITCH_INTERVAL = 0.0005
#: Seconds that the listener waits at a time.
LISTEN = 60.0
#: Seconds that threads get to end after everything is handed back.
LAST_WAIT = 1.0


@dataclass(slots=True, frozen=True, kw_only=True)
class WorkerOptions:
    """What a worker is started with; :meth:`from_settings` has the project's own."""

    concurrency: int
    threads: int
    grace: float
    habits: Habits
    limits: CoreLimits
    #: Seconds that workflow code may compute without an await; None: for ever.
    run_timeout: float | None = None
    #: Names of the actors to run; None: all that have a workflow.
    actors: tuple[str, ...] | None = None

    @classmethod
    def from_settings(
        cls,
        *,
        concurrency: int | None = None,
        grace: float | None = None,
        actors: tuple[str, ...] | None = None,
        burst: bool = False,
        until_idle: bool = False,
    ) -> WorkerOptions:
        """The project's settings, with what the command line says on top."""
        return cls(
            concurrency=concurrency or settings.CONCURRENCY,
            threads=settings.STEP_THREADS,
            grace=settings.GRACE if grace is None else grace,
            habits=Habits(
                settings.LEASE, settings.HEARTBEAT, settings.POLL_INTERVAL, burst=burst, until_idle=until_idle
            ),
            limits=CoreLimits(
                engine=engine_limits(settings),
                group_size=settings.GROUP_SIZE,
                max_parked=settings.MAX_PARKED,
                evict_after=round(settings.EVICT_AFTER * 1e6),
                # A few for each place in which a step can run: more would only keep them from other workers.
                max_active=4 * ((concurrency or settings.CONCURRENCY) + settings.STEP_THREADS),
            ),
            run_timeout=settings.RUN_TIMEOUT,
            actors=actors,
        )


class Worker:
    """One worker process's worth of work. ``start``, then ``wait``; ``stop`` and ``leave`` from anywhere."""

    def __init__(
        self, options: WorkerOptions, store: WorkerStore, *, ended: Callable[[], None] = lambda: None
    ) -> None:
        self.options = options
        self.control = Control()
        self._ended = ended
        self._store = store
        self._inbox = Inbox()
        self._time = DatabaseTime()
        self._vars = VarsTable()
        self._env = StepEnvironment(
            catalog=registry.get,
            load_state=self._load_state,
            lock_state=self._lock_state,
            now=self._time.now,
            vars=self._vars,
            client=StepClient,
        )
        self._turn = WriteTurn(store.vendor == "sqlite")
        self._runner = StepRunner(
            self._env,
            self._inbox.reports,
            threads=options.threads,
            concurrency=options.concurrency,
            exhausted=self._exhausted,
            hooks_exhausted=self._hooks_exhausted,
            atomics=Atomics(
                store.alias,
                self._commit_atomic,
                self._resolve_atomic,
                self._inbox.committed,
                self._turn,
                self._keep_state,
                connect=lambda: self._insist(lambda: connections[store.alias].ensure_connection()),
            ),
        )
        self._db = Patience(store.alias, self.control.pause, self._prepare_connection, self._turn.of_core)
        self._failures = FailureTeller(self._runner, registry.get, _run_error_hook)
        self._run_watch = RunWatch(options.run_timeout, _whose)
        self._thread = threading.Thread(target=self._serve, name="rivet-core", daemon=True)
        self._ready = threading.Event()
        #: Threads still run users' code: the interpreter's exit might wait for them for ever.
        self.left_running = False

    # -- from any thread

    def start(self) -> None:
        """Begin, on threads of its own; returns at once."""
        sys.setswitchinterval(SWITCH_INTERVAL)
        self._thread.start()

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait until the worker is registered; False when it is not within ``timeout`` seconds."""
        return self._ready.wait(timeout)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end; the exit code, or None when ``timeout`` seconds have passed."""
        self._thread.join(timeout)
        return None if self._thread.is_alive() else self.control.exit_code

    def stop(self, reason: str = "stopped", grace: float | None = None, exit_code: int = 0) -> None:
        """Claim nothing more, let running steps finish for ``grace`` seconds, hand the rest back."""
        self.control.stop(self.options.grace if grace is None else grace, reason, exit_code)
        self._inbox.wake()

    def leave(self, exit_code: int = 1) -> None:
        """Interrupt running steps, hand back what can be handed back at once."""
        self.control.leave(exit_code)
        self._inbox.wake()

    # -- the step threads

    def _commit_atomic(self, item: CommitItem) -> CommitResult:
        """In the open transaction of an atomic step; waits for locked rows, as nothing else would come of waiting."""
        (result,) = self._store.commit_group([item], wait=True)
        return result

    def _keep_state(self, actor_id: UUID, change: StateChange) -> bool:
        """Lock the state, before the core runs ahead on what the step did; False when it is not what the step read, or
        the lock is not to be had.

        The state before the run, as an action that broadcasts locks them: else each could wait for the other.
        """
        try:
            version, _ = self._lock_state(actor_id)
        except (ActorBusy, ActorNotFound, *OUTAGES):
            return False
        return change.prepared is not None and change.prepared.version == version

    def _resolve_atomic(self, item: CommitItem, error: BaseException) -> CommitResult:
        """The transaction of an atomic step ended in an error: was it committed?"""
        if not isinstance(error, (UnknownOutcome, *OUTAGES)):
            return CommitResult(item.actor_id, Commit.REFUSED, f"{type(error).__name__}: {error}")
        try:
            (result,) = self._insist(lambda: self._store.resolve([item]))
        except OUTAGES:
            return CommitResult(item.actor_id, Commit.STALE)
        return result

    def _insist(self, verb: Callable[[], R]) -> R:
        return insist(self._store.alias, verb, lambda: not self.control.leaving)

    # -- the core's thread

    def _serve(self) -> None:
        guard.install()
        self._run_watch.start()
        try:
            self._prepare_connection_patiently()
            lost = True
            while lost and not self.control.stopping:
                lost = self._one_session()
        except GivenUp:
            logger.warning("Leaving: the database does not answer")
        except BaseException:
            logger.exception("The worker has failed; what it held goes to others when its lease ends")
            self.control.exit_code = 1
            self._runner.abandon()
        finally:
            self.left_running = not self._runner.stop(LAST_WAIT if not self.control.leaving else 0.1)
            self._run_watch.stop()
            close_all()
            self._ended()

    def _one_session(self) -> bool:
        """Work under one id until that is over; True when it was lost and another must follow."""
        codes = self._codes()
        registered = time.monotonic()
        worker_id = self._db(self._store.register_worker, socket.gethostname(), os.getpid(), codes)
        session = self._make_session(worker_id, codes)
        pulse = Pulse(
            self._store,
            worker_id,
            interval=self.options.habits.heartbeat,
            lease=self.options.habits.lease,
            beat=self._beaten,
            lost=session.lose,
        )
        pulse.start(registered)
        listener = Listener(self._store.alias, worker_id=worker_id)
        if not listener.has_bell:
            session.poll_often()
        threading.Thread(target=self._listen, args=[listener], name="rivet-listener", daemon=True).start()
        self._announce(worker_id, codes)
        self._ready.set()
        try:
            session.run()
        finally:
            listener.close()
            pulse.stop()
        if session.lost is not None:
            return True
        if session.handed_back:
            self._db(self._store.forget_worker, worker_id)
        logger.info("Worker %d has ended: %s", worker_id, self.control.reason or "told to leave")
        return False

    def _make_session(self, worker_id: int, codes: dict[str, str]) -> Session:
        core = Core(worker_id, _program, codec, self.options.limits, self._run_watch)
        self._vars.clear()
        hooks = Hooks(registry.get, self._vars, self._failures)
        carrier = Carrier(
            core,
            worker_id,
            store=self._store,
            runner=self._runner,
            inbox=self._inbox,
            env=self._env,
            vars=self._vars,
            hooks=hooks,
            patience=self._db,
            failures=self._failures,
            now=self._time.now,
            ring=self._ring,
        )
        session = Session(
            worker_id,
            core,
            carrier,
            store=self._store,
            runner=self._runner,
            inbox=self._inbox,
            patience=self._db,
            time=self._time,
            control=self.control,
            types=codes,
            serves=[name for name in self._fired() if registry.get(name).serves],
            firing=Firing(
                self._store,
                worker_id,
                self._fired(),
                submit=self._runner.fire,
                done=lambda more: self._inbox.poll() if more else self._inbox.wake(),
            ),
            hooks=hooks,
            habits=self.options.habits,
            maintain=lambda stopping: maintenance.run_once(get_store(self._store.alias), stopping),
        )
        self._turn.serve = session.serve_atomics
        return session

    def _codes(self) -> dict[str, str]:
        """The actors to run, each with the hash of its code."""
        wanted = self.options.actors
        return {
            kind.name: kind.code
            for kind in registry.all()
            if kind.run is not None and (wanted is None or kind.name in wanted)
        }

    def _fired(self) -> list[str]:
        """The actors whose schedules are fired here: also those without a workflow."""
        wanted = self.options.actors
        return [kind.name for kind in registry.all() if wanted is None or kind.name in wanted]

    def _announce(self, worker_id: int, codes: dict[str, str]) -> None:
        options = self.options
        logger.info(
            "Worker %d (%s, pid %d) runs %s on %r (%s); at most %d database connections",
            worker_id,
            socket.gethostname(),
            os.getpid(),
            ", ".join(codes) or "no actors: none has a workflow",
            self._store.alias,
            self._store.vendor,
            # Core, heartbeat, listener, errands; fires, calls, hooks; per def step; per async step that uses the ORM.
            5 + FIRE_THREADS + CALL_THREADS + HOOK_THREADS + options.threads + options.concurrency,
        )

    def _ring(self, items: Sequence[CommitItem]) -> None:
        """Tell those who wait for these actors, and the receivers of what was sent."""
        bells.ring_items(self._store.alias, items)

    def _listen(self, listener: Listener) -> None:
        """The listener's own thread."""
        while not listener.closed:
            heard = listener.wait(LISTEN)
            if heard.work:
                self._inbox.ring(heard.work)
            if heard.everything:
                self._inbox.poll()

    # -- the database

    def _prepare_connection(self) -> None:
        """A new connection of the core's: tuned for its statements, its clock read."""
        self._store.tune_connection()
        self._time.read(self._store.clock.now)

    def _prepare_connection_patiently(self) -> None:
        self._db(self._prepare_connection)

    def _beaten(self, now: int, asked: float, answered: float) -> None:
        self._time.observe(now, asked, answered)
        self._inbox.sweep()

    def _load_state(self, actor_id: UUID) -> tuple[int, str | None]:
        """On a step's thread."""
        return self._insist(lambda: self._store.load_state(actor_id))

    def _lock_state(self, actor_id: UUID) -> tuple[int, str | None]:
        """On a step's thread, in the transaction of an atomic step."""
        return self._store.lock_state(actor_id, settings.ACTION_LOCK_TIMEOUT)

    def _hooks_exhausted(self) -> None:
        logger.critical(
            "All %d threads for hooks are stuck in hooks that ran past HOOK_TIMEOUT; this worker ends with code 1, to "
            "be started again by whatever supervises it",
            2 * HOOK_THREADS,
        )
        self.stop("every thread for hooks is stuck", exit_code=1)

    def _exhausted(self) -> None:
        logger.critical(
            "All %d step threads are stuck in steps that ran past their timeouts; this worker ends with code 1, to be "
            "started again by whatever supervises it",
            2 * self.options.threads,
        )
        self.stop("every step thread is stuck", exit_code=1)


def _program(claimed: Claimed) -> Program:
    return make_program(registry.get(claimed.name), claimed.actor_id, keys.decode(claimed.key))


def _run_error_hook(actor_type: ActorType, event: ErrorEvent, wanted: Wanted) -> None:
    run_hook(event.actor_id, actor_type.name, "on_error", event, wanted=wanted)


def _whose(machine: Machine) -> str:
    owner = machine.program.owner
    return f"{owner.__name__ if owner is not None else 'the workflow'} {machine.actor_id}"
