"""A worker in the calling thread: the same core, engine, store and hands as in production, another clock.

It is there only while it is told to run. What it carries out and how is the worker's own
:class:`~rivet_workflows.worker.carry.Carrier`; when it claims, takes over and stops is told by the test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from uuid import UUID

from rivet_workflows import codec
from rivet_workflows.conf import settings
from rivet_workflows.records import Claimed, Commit, CommitItem, CommitResult
from rivet_workflows.registry import registry
from rivet_workflows.store import get_store
from rivet_workflows.store.base import Meanwhile
from rivet_workflows.store.clock import VirtualClock
from rivet_workflows.store.rows import type_id
from rivet_workflows.testing.here import HereLoop
from rivet_workflows.testing.replay import NotDeterministic, ReplayCore
from rivet_workflows.testing.rules import Rules, WorkerDied
from rivet_workflows.testing.runner import HereRunner, StepExecutor
from rivet_workflows.worker.carry import Carrier
from rivet_workflows.worker.context import StepEnvironment
from rivet_workflows.worker.core import Core, CoreLimits
from rivet_workflows.worker.failures import FailureTeller
from rivet_workflows.worker.firing import fire
from rivet_workflows.worker.guard import workflow_code
from rivet_workflows.worker.hooks import Hooks
from rivet_workflows.worker.inbox import Inbox
from rivet_workflows.worker.orders import StepReport, StepToken
from rivet_workflows.worker.programs import engine_limits
from rivet_workflows.worker.shell import _program, _run_error_hook
from rivet_workflows.worker.stepclient import StepClient
from rivet_workflows.worker.vars import VarsTable

__all__ = ["HereWorker"]

#: Actors that one claim takes.
CLAIM_LIMIT = 200
#: Nothing is let go because of its age: the clock moves in leaps, and ``evict`` is the test's.
NEVER = 1 << 60
#: Reads of every turn, as SQL: built by the ORM they took a third of a simple test's time.
_NEXT = "SELECT min(due) FROM rivet_timer WHERE due > %s"
_NEXT_FIRE = "SELECT min(next_at) FROM rivet_schedule WHERE next_at > %s"
_FIRES = "SELECT 1 FROM rivet_schedule WHERE next_at <= %s LIMIT 1"
_CALLS = "SELECT 1 FROM rivet_call WHERE status = 1 LIMIT 1"
_DUE = "SELECT DISTINCT type_id FROM rivet_timer WHERE due <= %s"


class _WatchedStore:
    """The store, with a look at each commit. ``vendor`` asks the carrier for no rest after a group: nobody waits."""

    vendor = "testing"

    def __init__(self, store: Any, committed: Callable[[Sequence[CommitResult]], None]) -> None:
        self._store = store
        self._committed = committed

    def commit_group(
        self,
        items: Sequence[CommitItem],
        *,
        wait: bool = False,
        meanwhile: Meanwhile | None = None,
    ) -> list[CommitResult]:
        # Nothing runs beside it here, so nothing is heard meanwhile.
        results: list[CommitResult] = self._store.commit_group(items, wait=wait)
        self._committed(results)
        return results

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _AtOnce:
    """Stands for :class:`~rivet_workflows.worker.patience.Patience`: an outage in a test is an error."""

    def __call__(self, verb: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return verb(*args, **kwargs)

    def turn(self) -> AbstractContextManager[None]:
        """Nobody else writes."""
        return nullcontext()

    def recover(self, error: Exception) -> None:
        raise error

    def succeeded(self) -> None:
        """There was nothing to get over."""


class HereWorker:
    """One worker after another, as they die and are replaced. Not re-entrant but for a step that waits for others."""

    def __init__(self, clock: VirtualClock, rules: Rules, *, replay: bool) -> None:
        self.clock = clock
        self._replay = replay
        self._store = get_store()
        self._inbox = Inbox()
        self._vars = VarsTable()
        self._env = StepEnvironment(
            catalog=registry.get,
            load_state=self._store.load_state,
            lock_state=self._store.lock_state,
            now=clock.now,
            vars=self._vars,
            client=StepClient,
        )
        self._loop = HereLoop(StepExecutor(self._store.alias))
        self.runner = HereRunner(self._env, rules, self._loop, self._inbox.report, self, self._store.alias)
        self._failures = FailureTeller(self.runner, registry.get, _run_error_hook)  # type: ignore[arg-type]
        self._hooks = Hooks(registry.get, self._vars, self._failures)
        self._limits = CoreLimits(
            engine=engine_limits(settings), max_parked=NEVER, evict_after=NEVER, max_active=NEVER
        )
        self._worker_id: int | None = None
        self._codes: dict[str, str] = {}
        self._core: Core | None = None
        self._carrier: Carrier | None = None
        #: Workers that died and whose actors wait to be taken over.
        self._dead: list[int] = []
        self._rung_in_vain = False
        #: The workflow at fault: there is no going on after that.
        self._found: NotDeterministic | None = None

    # -- what the test does

    def run(self, limit: int) -> None:
        """Until nothing can run at the clock's time. Raises AssertionError after ``limit`` attempts of steps."""
        began = self.runner.count
        if self._core is not None:
            with workflow_code():
                self._core.rung(None, self.clock.now())
        while self._turn():
            if self.runner.count - began > limit:
                raise AssertionError(
                    f"the actors did not come to rest: {limit:,} attempts of steps were run and there is more to do. "
                    "Does a loop never wait?"
                )

    def die(self) -> None:
        """As kill -9: what was in memory is gone. The next worker takes over what is stored."""
        self.runner.abandon()
        self._inbox.take(0)
        self._vars.clear()
        self._hooks.clear()
        if self._worker_id is not None:
            self._dead.append(self._worker_id)
        self._worker_id = self._core = self._carrier = None

    def stop(self) -> None:
        """As SIGTERM: hand everything back, forget the worker."""
        core, carrier = self._core, self._carrier
        if core is not None and carrier is not None:
            with workflow_code():
                core.stop(self.clock.now())
            while self._carry_orders(core, carrier) or self.runner.run_errands() or self._hear(core):
                pass
        if self._worker_id is not None:
            self._store.forget_worker(self._worker_id)
        self._vars.clear()
        self._worker_id = self._core = self._carrier = None

    def deployed(self) -> None:
        """As the workers of a new release start: what other code could not go on with is theirs to try."""
        self._store.wake_diverged(_codes())

    def close(self) -> None:
        """End what still runs. The database is left as it is."""
        self.runner.abandon()
        self._loop.close()
        self._core = self._carrier = None

    @property
    def next_due(self) -> int | None:
        """When something happens by itself, after now."""
        now = self.clock.now()
        times = [self._store.query(sql, [now])[0][0] for sql in (_NEXT, _NEXT_FIRE)]
        if self._core is not None:
            times.append(self._core.next_due)
        return min((at for at in times if at is not None and now < at < NEVER), default=None)

    # -- turns

    def _turn(self) -> bool:
        """Something that is to be done; False when there is nothing."""
        if self._found is not None:
            raise self._found
        try:
            core, carrier = self._core, self._carrier
            if core is not None and carrier is not None:
                self._hear(core)
                if self._carry_orders(core, carrier):
                    self._rung_in_vain = False
                    return True
                if self.runner.work():
                    return True
            return self._look_around() or self._serve_callers() or self._fire()
        except WorkerDied:
            self.die()
            return True

    def _hear(self, core: Core) -> bool:
        mail = self._inbox.take(0)
        now = self.clock.now()
        if mail.slept and self._carrier is not None:
            self._carrier.slept(mail.slept)
        if mail.called and self._carrier is not None:
            self._carrier.called(mail.called)
        if not (mail.for_core or mail.rung):
            return bool(mail.slept)
        with workflow_code():
            mail.tell(core, now)
            if mail.rung:
                core.rung(mail.rung, now)
        self._raise_found(core)
        return True

    def _carry_orders(self, core: Core, carrier: Carrier) -> bool:
        with workflow_code():
            core.tick(self.clock.now())
            orders = core.orders()
        self._raise_found(core)
        if not orders:
            return False
        carrier.carry(orders)
        self._raise_found(core)
        return True

    def _look_around(self) -> bool:
        """Take up what is due: after deaths, of nobody's, and wakes of what is held."""
        if self._dead:
            self._take_over()
            return True
        due = self._due_types()
        if not due:
            return False
        core = self._ready()
        assert self._worker_id is not None
        claimed, _ = self._store.claim(self._worker_id, due, CLAIM_LIMIT)
        if claimed:
            self._take_up(core, claimed)
            return True
        if self._rung_in_vain:
            return False
        held = self._store.due_wakes_of_held(self._worker_id, due)
        self._rung_in_vain = True
        if held:
            with workflow_code():
                core.rung(held, self.clock.now())
        return bool(held)

    def _serve_callers(self) -> bool:
        """Calls of actors that are held as guests, or should be."""
        serves = [kind.name for kind in registry.all() if kind.serves]
        if not serves or not self._store.query(_CALLS):
            return False
        core = self._ready()
        assert self._worker_id is not None
        found = self._store.wanted(self._worker_id, serves, CLAIM_LIMIT)
        with workflow_code():
            core.rung([a for a in found.ours if core.holds(a)], self.clock.now())
        self._store.wake_called(found.asleep)
        self._take_up(core, self._store.take_guests(self._worker_id, found.guests))
        return bool(found)

    def _fire(self) -> bool:
        """Due schedules, once the workflows have come to rest."""
        if not self._store.query(_FIRES, [self.clock.now()]):
            return False
        self._ready()
        assert self._worker_id is not None
        for due in self._store.due_schedules([kind.name for kind in registry.all()], 1):
            if fire(self._store, self._worker_id, due):
                return True
        return False

    def _take_over(self) -> None:
        dead = self._dead[0]
        core = self._ready()
        assert self._worker_id is not None
        claimed = self._store.take_over(self._worker_id, dead, self._codes, CLAIM_LIMIT)
        if claimed:
            self._take_up(core, claimed)
        else:
            self._store.forget_worker(dead)
            self._dead.pop(0)

    def _take_up(self, core: Core, claimed: list[Claimed]) -> None:
        self._rung_in_vain = False
        for one in claimed:
            if self._hooks.wanted(one):
                self._hooks.wake(one)
            else:
                self._hooks.note(one)
        with workflow_code():
            core.loaded(claimed, self.clock.now())
        self._raise_found(core)

    def _due_types(self) -> dict[str, str]:
        """The types that have due wakes: a claim asks for each type it is given."""
        found = {row[0] for row in self._store.query(_DUE, [self.clock.now()])}
        if not found:
            return {}
        return {name: code for name, code in _codes().items() if type_id(name) in found}

    def _raise_found(self, core: Core) -> None:
        """Kept, as the error may be raised into a step that waits for others, and be taken for that step's failure."""
        if isinstance(core, ReplayCore) and core.found is not None:
            self._found = core.found
            self.die()
        if self._found is not None:
            raise self._found

    # -- atomic steps, for the runner

    def answer(self, token: StepToken, report: StepReport) -> CommitItem | None:
        """What an atomic step that has returned commits in its transaction; None: roll it back."""
        core = self._core
        if core is None:
            return None
        with workflow_code():
            core.step_done(token, report, self.clock.now())
            answers = core.take_atomics()
        self._raise_found(core)
        return dict(answers.atomics).get(token)

    def commit(self, item: CommitItem) -> CommitResult:
        """In the step's open transaction."""
        (result,) = self._store.commit_group([item], wait=True)
        return result

    def committed(self, token: StepToken, result: CommitResult) -> None:
        """Told to the core when it listens again."""
        self._inbox.committed(token, result)

    # -- making a worker

    def _ready(self) -> Core:
        """The living worker's core."""
        codes = _codes()
        self._codes = codes
        if self._core is not None:
            return self._core
        self._worker_id = self._store.register_worker("testing", 0, codes)
        self._core = self._make_core(self._worker_id)
        self._carrier = Carrier(
            self._core,
            self._worker_id,
            store=_WatchedStore(self._store, self._committed),
            runner=self.runner,  # type: ignore[arg-type]
            inbox=self._inbox,
            env=self._env,
            vars=self._vars,
            hooks=self._hooks,
            patience=_AtOnce(),  # type: ignore[arg-type]
            failures=self._failures,
            now=self.clock.now,
            ring=self._ring,
        )
        return self._core

    def _make_core(self, worker_id: int) -> Core:
        if not self._replay:
            return Core(worker_id, _program, codec, self._limits)

        def load(actor_id: UUID, epoch: int) -> Claimed | None:
            found = self._store.load(worker_id, [(actor_id, epoch)])
            return found[0] if found else None

        return ReplayCore(worker_id, _program, codec, self._limits, load=load)

    def _committed(self, results: Sequence[CommitResult]) -> None:
        done = {result.actor_id for result in results if result.outcome == Commit.OK}
        if self.runner.doomed & done:
            self.runner.doomed.clear()
            raise WorkerDied

    def _ring(self, items: Sequence[CommitItem]) -> None:
        self._inbox.ring([send.actor_id for item in items for send in item.sends])


def _codes() -> dict[str, str]:
    return {kind.name: kind.code for kind in registry.all() if kind.run is not None}
