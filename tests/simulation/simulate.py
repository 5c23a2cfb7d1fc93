"""A fleet of workers in one thread, a seeded scheduler that hurts it, and checkers that watch.

``simulate(seed)`` runs one world to its end, or raises :class:`Violation`. What runs is the product's engine, core,
carrier and session, over a store in memory or, each tenth seed, on SQLite. The same seed gives the same run to the last
choice; every choice of the scheduler has dice of its own, so that one can be left out without changing the others.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from rivet_workflows import codec
from rivet_workflows.engine import Limits, Program
from rivet_workflows.exceptions import ActorBusy, ErrorInfo
from rivet_workflows.records import Claimed, CommitItem, Outgoing
from rivet_workflows.store.clock import VirtualClock
from rivet_workflows.worker.core import CoreLimits
from rivet_workflows.worker.orders import ChildStart, StepReport, StepStart

from . import checks, control
from .faults import Died, FaultyStore
from .memory_worker import MemoryStore
from .sqlite import sqlite_store
from .steps import SimStep, run
from .worker import HEARTBEAT, LEASE, Worker
from .workflows import WORKFLOWS, undo

START = 1_800_000_000_000_000
STATE = {"n": 0, "got": [], "undone": [], "acted": 0}
#: Starts without an end after which an actor is set aside: the world's crashes must not come to that by chance.
MAX_STARTS = 15
#: Simulated seconds in which, left alone, all that is due gets done: the slowest poll, and a lease.
REST, END = 50, 600

Violation = checks.Violation


@dataclass
class Known:
    """What the world knows of an actor that it has made."""

    id: UUID
    kind: str
    key: str
    #: Bodies sent, with their messages' ids.
    sent: list[int] = field(default_factory=list)
    message_ids: list[int] = field(default_factory=list)
    #: Actions that changed its state.
    acted: int = 0
    closed: bool = False
    cancelled: bool = False
    destroyed: bool = False
    pruned: bool = False
    paused: bool = False

    @property
    def name(self) -> str:
        return f"{self.kind} {short(self.id)}"


class World:
    """See the module. ``steps``: the numbers of the scheduler's choices that are made."""

    def __init__(self, seed: int, steps: Sequence[int], store: Any, clock: VirtualClock) -> None:
        self.seed = seed
        self.steps = steps
        self.clock = clock
        self.store = store
        self.rng = rng = random.Random(seed)
        self.workers: list[Worker] = []
        self.asleep: list[Worker] = []
        self.actors: dict[UUID, Known] = {}
        self.trace: list[str] = []
        #: Outside effects by idempotency key.
        self.ledger: Counter[str] = Counter()
        #: Steps that have lost their state to an action once; more could use up their retries.
        self.conflicts: set[str] = set()
        self.writers: dict[tuple[UUID, int], int] = {}
        self.commits: dict[UUID, int] = {}
        self.epochs: dict[UUID, int] = {}
        self.broken: list[str] = []
        #: What had ended by then has lost its history.
        self.pruned_until = 0
        #: No more faults: the end, in which everything must come to rest.
        self.calm = False
        self.hooked = rng.sample(sorted(WORKFLOWS), rng.randint(0, 4))
        self.limits = CoreLimits(
            engine=Limits(max_starts=MAX_STARTS),
            group_size=rng.choice([1, 3, 200]),
            max_parked=rng.choice([0, 2, 1000]),
            evict_after=rng.choice([0, 1_000_000, 60_000_000]),
            max_active=rng.choice([2, 500]),
        )
        kinds = [kind for kind, expect in WORKFLOWS.items() if not expect.child]
        self.kinds = [kind for kind in kinds if kind != "killer" or rng.random() < 0.1]
        self.choices = self._choices()

    def _choices(self) -> dict[Callable[[], None], int]:
        memory = isinstance(self.store, MemoryStore)
        return {
            self.create: 6,
            self.send: 6,
            self.pass_time: 10,
            self.beat: 10,
            self.turn: 60,
            self.end_attempt: 40,
            self.end_errand: 25,
            self.end_atomic: 15,
            self.crash: 2,
            self.pause: 1,
            self.resume: 2,
            self.stop: 1,
            self.deploy: 1,
            self.lock: 2 if memory else 0,
            self.unlock: 4 if memory else 0,
            self.act_on_state: 4,
            lambda: control.operate(self): 3,
            lambda: checks.replay(self): 3,
        }

    # -- the scheduler -----------------------------------------------------------------------------

    @property
    def events(self) -> int:
        return len(self.trace)

    def note(self, text: str) -> None:
        self.trace.append(f"{(self.clock.at - START) / 1e6:9.3f} {text}")

    def run(self) -> World:
        for _ in range(self.rng.randint(1, 3)):
            self.new_worker()
        actions, weights = list(self.choices), list(self.choices.values())
        for number in self.steps:
            self.rng = random.Random(self.seed * 1_000_003 + number)
            self.guarded(self.rng.choices(actions, weights=weights)[0])
        self.finish()
        return self

    def guarded(self, action: Callable[[], Any]) -> Any:
        """Whatever it does, the checkers have the last word."""
        result = action()
        if self.broken:
            raise Violation(self.broken[0])
        return result

    def in_worker(self, worker: Worker, action: Callable[[], Any]) -> Any:
        """What may take the process down."""
        try:
            return action()
        except Died as exc:
            self.note(f"worker {worker.id} dies {exc}")
            self.replace(worker)
            return None

    def replace(self, worker: Worker) -> None:
        """It is gone; another starts."""
        if worker in self.workers:
            self.workers.remove(worker)
            self.new_worker()

    def new_worker(self, version: str | None = None) -> None:
        version = version or ("v1" if self.rng.random() < 0.6 else "v2")
        worker: list[Worker] = []

        def committed(item: CommitItem) -> None:
            checks.committed(self, worker[0].writes_as, item)

        store = FaultyStore(
            self.store,
            lambda: None if self.calm or not worker else self.rng,
            committed,
            lambda text: self.note(f"worker {worker[0].id} {text}"),
        )
        worker.append(Worker(self, store, version))
        self.workers.append(worker[0])
        self.note(f"worker {worker[0].id} starts with {version}")

    # -- what workers ask of the world -------------------------------------------------------------

    def types(self, version: str) -> dict[str, str]:
        return {
            name: version if expect.next_run is not None else "only" for name, expect in WORKFLOWS.items()
        }

    def program(self, claimed: Claimed, version: str) -> Program:
        expect = WORKFLOWS[claimed.name]
        return Program(
            run=expect.next_run if version == "v2" and expect.next_run is not None else expect.run,
            code=self.types(version)[claimed.name],
            handler_path=lambda f: f.__name__,
            find_handler=lambda _path: undo,
        )

    def call(self, worker: Worker, start: StepStart) -> StepReport:
        """A step's function, as its start is ordered; how it ends is told later."""
        return run(Step(self, worker, start))

    def create_child(self, store: Any, start: ChildStart) -> UUID:
        row, _ = store.create_actor(start.actor, start.key, input=start.input, state=codec.dumps(STATE))
        if row.id not in self.actors:
            # Its creator may have died before it could say so, and it have ended and been pruned since.
            pruned = row.finished_at is not None and row.finished_at <= self.pruned_until
            self.actors[row.id] = Known(row.id, start.actor, start.key, pruned=pruned)
            self.note(f"create {start.actor} {short(row.id)}, child of {short(start.actor_id)}")
        child: UUID = row.id
        return child

    def ring(self, actor_ids: Iterable[UUID]) -> None:
        """Bells are lost now and then."""
        for actor_id in actor_ids:
            holders = [worker for worker in self.workers if worker.core.holds(actor_id)]
            for worker in holders or self.workers:
                if self.calm or self.rng.random() < 0.8:
                    worker.inbox.ring([actor_id])

    # -- what happens ------------------------------------------------------------------------------

    def create(self) -> None:
        if sum(not WORKFLOWS[known.kind].child for known in self.actors.values()) >= 8:
            return
        kind, number = self.rng.choice(self.kinds), len(self.actors)
        row, _ = self.store.create_actor(kind, f'["{number}"]', state=codec.dumps(STATE))
        self.actors[row.id] = Known(row.id, kind, row.key)
        self.note(f"create {kind} {short(row.id)}")
        self.ring([row.id])

    def send(self) -> None:
        wanting = [
            known
            for known in self.actors.values()
            if WORKFLOWS[known.kind].messages and not (known.closed or known.destroyed)
        ]
        if not wanting:
            return
        known = self.rng.choice(wanting)
        if self.rng.random() < 0.08:
            self.close(known)
            return
        number = len(known.sent)
        (sent,) = self.store.send([Outgoing(known.id, "work", str(number), wants_reply=True)])
        known.sent.append(number)
        known.message_ids.append(sent.id)
        self.note(f"send {number} to {short(known.id)}")
        self.ring([known.id])

    def close(self, known: Known) -> None:
        known.closed = True
        self.store.send([Outgoing(known.id, "control", '"stop"')])
        self.note(f"send stop to {short(known.id)}")
        self.ring([known.id])

    def pass_time(self) -> None:
        self.clock.advance(self.rng.choice([1_000, 50_000, 400_000, 2_000_000]))

    def one(self) -> Worker:
        return self.rng.choice(self.workers)

    def beat(self) -> None:
        for worker in list(self.workers):
            self.in_worker(worker, worker.beat)

    def turn(self) -> None:
        worker = self.one()
        if self.rng.random() < 0.9:
            worker.watch()
        self.turn_of(worker)

    def turn_of(self, worker: Worker) -> None:
        if self.in_worker(worker, worker.turn) is False:
            self.note(f"worker {worker.id} ends")
            self.replace(worker)

    def end_attempt(self) -> None:
        worker = self.one()
        if not worker.runner.attempts:
            return
        token = self.rng.choice(list(worker.runner.attempts))
        start, _ = worker.runner.attempts[token]
        report = None
        if self.rng.random() < 0.03 and start.idempotency_key not in self.conflicts:
            self.conflicts.add(start.idempotency_key)
            error = ErrorInfo.from_exception(ValueError("conflict"))
            report = StepReport(False, error=error, conflict=True)
        self.note(
            f"worker {worker.id} ends {start.name}:{token.seq} of {short(token.actor_id)}"
            + (" in a conflict" if report else "")
        )
        worker.runner.end(token, report)

    def end_errand(self) -> None:
        worker = self.one()
        if worker.runner.errands:
            which = self.rng.randrange(len(worker.runner.errands))
            self.in_worker(worker, lambda: worker.run_errand(which))

    def end_atomic(self) -> None:
        worker = self.one()
        ready = [token for token, item in worker.runner.open.items() if item is not None]
        if ready:
            token = self.rng.choice(ready)
            self.in_worker(worker, lambda: worker.runner.commit_open(token))

    def crash(self) -> None:
        worker = self.one()
        self.note(f"worker {worker.id} dies")
        self.replace(worker)

    def pause(self) -> None:
        if len(self.workers) > 1:
            worker = self.one()
            self.workers.remove(worker)
            self.asleep.append(worker)
            self.note(f"worker {worker.id} is stopped in its tracks")

    def resume(self) -> None:
        if self.asleep:
            worker = self.asleep.pop()
            self.workers.append(worker)
            self.note(f"worker {worker.id} goes on")

    def stop(self) -> None:
        """SIGTERM: what runs may end for some seconds."""
        worker = self.one()
        self.note(f"worker {worker.id} is told to stop")
        worker.control.stop(self.rng.choice([0.0, 1.0, 30.0]), "told to")

    def deploy(self) -> None:
        """The next release, beside the old one."""
        self.note("deploy v2")
        for worker in list(self.workers):
            worker.control.stop(1.0, "a release")
        self.new_worker("v2")

    def lock(self) -> None:
        if self.store.rows:
            self.rng.choice(list(self.store.rows.values())).locked = True

    def unlock(self) -> None:
        for row in self.store.rows.values():
            row.locked = False

    def act_on_state(self) -> None:
        """A call: an action changes the state, and tells of it, while steps run."""
        alive = [known for known in self.actors.values() if not known.destroyed]
        if not alive:
            return
        known = self.rng.choice(alive)
        with suppress(ActorBusy), self.store.atomic():
            version, text = self.store.lock_state(known.id)
            state: Any = codec.loads(text)
            state["acted"] += 1
            assert self.store.save_state(known.id, version, codec.dumps(state))
            known.acted += 1
            if self.rng.random() < 0.3:
                self.store.add_events(known.id, [("acted", str(known.acted))])

    # -- the end -----------------------------------------------------------------------------------

    def finish(self) -> None:
        """No more harm: all that is due gets done without another message; then everything ends."""
        self.workers += self.asleep
        self.asleep = []
        self.unlock_all()
        self.calm = True
        self.note("calm")
        for version in ("v1", "v2"):
            self.new_worker(version)
        for known in self.actors.values():
            control.let_go_on(self, known)
        # Each death that a step causes is noticed when the lease is over, and they are tried one after the other.
        killers = sum(known.kind == "killer" for known in self.actors.values())
        self.settle(REST + killers * MAX_STARTS * (LEASE + 2))
        checks.nothing_is_left(self)
        for known in list(self.actors.values()):
            if WORKFLOWS[known.kind].messages and not (known.closed or known.destroyed):
                self.close(known)
        self.settle(END)
        for known in self.actors.values():
            checks.at_the_end(self, known)

    def unlock_all(self) -> None:
        if isinstance(self.store, MemoryStore):
            self.unlock()

    def settle(self, seconds: float) -> None:
        """Let the fleet work for this long, or until every run is over; its sleeps take no time."""
        until = self.clock.at + round(seconds * 1e6)
        while self.clock.at < until and not checks.all_over(self):
            for worker in list(self.workers):
                self.guarded(partial(self.work, worker))
            rest = min((worker.session.rest() for worker in self.workers), default=1.0)
            self.clock.advance(max(1_000, round(rest * 1e6)))

    def work(self, worker: Worker) -> None:
        """A turn, and the end of all that runs."""
        runner = worker.runner
        if worker.monotonic() - worker.beat_at >= HEARTBEAT:
            worker.watch()
            worker.beat()
        elif worker.inbox.empty and worker.session.rest() > 0 and not worker.session.over():
            return
        self.turn_of(worker)
        for token in list(runner.attempts):
            runner.end(token)
        for _ in range(len(runner.errands)):
            self.in_worker(worker, lambda: worker.run_errand(0))
        for token in [token for token, item in runner.open.items() if item is not None]:
            runner.commit_open(token)


class Step(SimStep):
    """The context of a step: the world watches what it does."""

    def __init__(self, world: World, worker: Worker, start: StepStart) -> None:
        super().__init__(world.store, start)
        self._world = world
        self._worker = worker

    def effect(self, value: Any) -> None:
        checks.effect(self._world, self._worker, self.start)
        self._world.ledger[self.idempotency_key] += 1

    def not_before(self, when: float) -> None:
        early = when - self._world.clock.at / 1e6
        if early > 1e-6:
            self._world.broken.append(f"a timer of {short(self.start.token.actor_id)} is {early:.3f} s early")

    def kill_process(self) -> None:
        raise Died("by a step")


def short(actor_id: UUID) -> str:
    return actor_id.hex[-6:]


def attempt(seed: int, steps: Sequence[int], sqlite: bool) -> tuple[World, BaseException | None]:
    """Run one world; with what went wrong, if anything."""
    clock = VirtualClock(START)
    place = sqlite_store(clock) if sqlite else nullcontext(MemoryStore(clock.now))
    with place as store:
        world = World(seed, steps, store, clock)
        try:
            world.run()
        except Violation as exc:
            return world, exc
        except Exception as exc:
            return world, Violation(f"{type(exc).__name__}: {exc}").with_traceback(exc.__traceback__)
        return world, None


def on_sqlite(seed: int) -> bool:
    """Each tenth world has a real database."""
    return seed % 10 == 0


def simulate(seed: int, size: int = 400, *, sqlite: bool | None = None) -> World:
    """One world. Raises :class:`Violation`."""
    world, error = attempt(seed, range(size), on_sqlite(seed) if sqlite is None else sqlite)
    if error is not None:
        raise error
    return world
