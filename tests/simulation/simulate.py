"""A fleet of workers in one thread, a seeded scheduler that hurts it, and checkers that watch.

``simulate(seed)`` runs one world to its end and raises :class:`Violation` with the seed and a trace. The same seed
gives the same run, to the last choice. What runs is the real engine and the real core.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from typing import Any

from rivet_workflows import codec
from rivet_workflows.engine import Limits, Machine, Program
from rivet_workflows.records import Blocked, Claimed, EntryStatus
from rivet_workflows.worker.core import CoreLimits
from rivet_workflows.worker.orders import StepReport

from . import worker as sim
from .memory import MemoryStore, Row
from .workflows import WORKFLOWS, undo

START = 1_800_000_000_000_000
LEASE = 6_000_000
STATE = {"n": 0, "got": [], "undone": []}


class Violation(AssertionError):
    """Something that must never happen has happened."""


class UnknownOutcome(Exception):
    """The answer to a COMMIT was lost."""


class World:
    def __init__(self, seed: int, size: int = 400) -> None:
        self.seed = seed
        self.size = size
        self.rng = random.Random(seed)
        self.time = START
        self.store = Store(self)
        self.workers: list[Worker] = []
        self.asleep: list[Worker] = []
        self.sent: dict[uuid.UUID, list[int]] = {}
        self.kinds: dict[uuid.UUID, str] = {}
        self.closed: set[uuid.UUID] = set()
        self.trace: list[str] = []
        #: Outside effects by idempotency key.
        self.ledger: Counter[str] = Counter()
        #: Steps that have lost their state to an action once; more could use up their retries.
        self.conflicts: set[str] = set()
        #: No more faults: the end, in which everything must come to rest.
        self.calm = False
        self.events = 0
        self.limits = CoreLimits(
            engine=Limits(max_starts=10_000),
            group_size=self.rng.choice([1, 3, 200]),
            max_parked=self.rng.choice([0, 2, 1000]),
            evict_after=self.rng.choice([0, 1_000_000, 60_000_000]),
            max_active=self.rng.choice([2, 500]),
        )

    # -- the world -----------------------------------------------------------------------------

    def note(self, text: str) -> None:
        self.events += 1
        self.trace.append(f"{(self.time - START) / 1e6:9.3f} {text}")

    def program(self, claimed: Claimed) -> Program:
        return Program(
            run=WORKFLOWS[claimed.name].run,
            code="v1",
            handler_path=lambda f: f.__name__,
            find_handler=lambda _path: undo,
        )

    def run(self) -> World:
        for _ in range(self.rng.randint(1, 3)):
            self.new_worker()
        try:
            for _ in range(self.size):
                self.act()
            self.finish()
        except Violation:
            raise
        except Exception as exc:
            raise Violation(f"{type(exc).__name__}: {exc}") from exc
        return self

    def act(self) -> None:
        rng = self.rng
        choices = {
            self.create: 3 if len(self.kinds) < 8 else 0,
            self.send: 6,
            self.pass_time: 10,
            self.beat: 10,
            self.claim: 10,
            self.carry: 60,
            self.finish_one: 40,
            self.take_over: 4,
            self.crash: 2,
            self.pause: 1,
            self.resume: 2,
            self.stop: 1,
            self.lock: 2,
            self.unlock: 4,
            self.poll: 5,
            self.replay: 4,
            self.act_on_state: 3,
        }
        chosen = rng.choices(list(choices), weights=list(choices.values()))[0]
        chosen()

    def create(self) -> None:
        actor_id = uuid.UUID(int=self.rng.getrandbits(128))
        kind = self.rng.choice(sorted(WORKFLOWS))
        self.kinds[actor_id] = kind
        self.sent[actor_id] = []
        self.store.create(actor_id, kind, state=codec.dumps(STATE))
        self.note(f"create {kind} {short(actor_id)}")

    def send(self) -> None:
        wanting = [a for a, kind in self.kinds.items() if WORKFLOWS[kind].messages and a not in self.closed]
        if not wanting:
            return
        actor_id = self.rng.choice(wanting)
        if self.rng.random() < 0.08:
            self.close(actor_id)
            return
        number = len(self.sent[actor_id])
        self.sent[actor_id].append(number)
        self.store.send(actor_id, "work", str(number), wants_reply=True)
        self.note(f"send {number} to {short(actor_id)}")
        self.ring(actor_id)

    def close(self, actor_id: uuid.UUID) -> None:
        self.closed.add(actor_id)
        self.store.send(actor_id, "control", '"stop"')
        self.ring(actor_id)

    def ring(self, actor_id: uuid.UUID) -> None:
        """Bells are lost now and then."""
        for worker in self.workers:
            if worker.core.holds(actor_id) and self.rng.random() < 0.8:
                worker.core.rung([actor_id], self.time)

    def pass_time(self) -> None:
        self.time += self.rng.choice([1_000, 50_000, 400_000, 2_000_000])

    def new_worker(self) -> None:
        worker = Worker(self.store, self.program, dict.fromkeys(WORKFLOWS, "v1"), self.limits)
        worker.world = self
        self.workers.append(worker)
        self.note(f"worker {worker.id} starts")

    def one(self) -> Worker | None:
        return self.rng.choice(self.workers) if self.workers else None

    def beat(self) -> None:
        for worker in self.workers:
            self.store.heartbeat(worker.id)

    def claim(self) -> None:
        worker = self.one()
        if worker is not None and worker.core.room:
            claimed, _ = self.store.claim(worker.id, worker.types, self.rng.randint(1, 5))
            for one in claimed:
                self.note(f"worker {worker.id} claims {short(one.actor_id)} epoch {one.epoch}")
            worker.core.loaded(claimed, self.time)

    def carry(self) -> None:
        worker = self.one()
        if worker is not None:
            worker.carry()

    def finish_one(self) -> None:
        worker = self.one()
        if worker is None or not worker.attempts:
            return
        start = self.rng.choice(worker.attempts)
        chance = self.rng.random()
        if chance < 0.03 and start.idempotency_key not in self.conflicts:
            self.conflicts.add(start.idempotency_key)
            self.note(f"{start.name} of {short(start.token.actor_id)} conflicts")
            worker.finish(start, error=ValueError("conflict"), conflict=True)
        else:
            self.note(
                f"worker {worker.id} ends {start.name}:{start.token.seq} of {short(start.token.actor_id)}"
            )
            worker.finish(start)

    def take_over(self) -> None:
        worker = self.one()
        if worker is None:
            return
        for dead in self.store.dead_workers(LEASE):
            if dead != worker.id:
                claimed = self.store.take_over(worker.id, dead, worker.types, self.rng.randint(1, 4))
                for one in claimed:
                    self.note(f"worker {worker.id} takes over {short(one.actor_id)} from {dead}")
                worker.core.loaded(claimed, self.time)
                self.store.forget_worker(dead)

    def crash(self) -> None:
        worker = self.one()
        if worker is not None:
            self.workers.remove(worker)
            self.note(f"worker {worker.id} dies")
            self.new_worker()

    def pause(self) -> None:
        worker = self.one()
        if worker is not None and len(self.workers) > 1:
            self.workers.remove(worker)
            self.asleep.append(worker)
            self.note(f"worker {worker.id} is stopped in its tracks")

    def resume(self) -> None:
        if self.asleep:
            worker = self.asleep.pop()
            self.workers.append(worker)
            self.note(f"worker {worker.id} goes on")

    def stop(self) -> None:
        worker = self.one()
        if worker is None:
            return
        self.note(f"worker {worker.id} is told to stop")
        worker.core.stop(self.time)
        for _ in range(100):
            for start in list(worker.attempts):
                if self.rng.random() < 0.5:
                    worker.finish(start)
                else:
                    worker.attempts.remove(start)
                    worker.core.step_done(start.token, StepReport(False, abandoned=True), self.time)
            if not worker.settle() and not worker.attempts:
                break
        self.workers.remove(worker)
        self.new_worker()

    def lock(self) -> None:
        if self.store.rows:
            self.rng.choice(list(self.store.rows.values())).locked = True

    def unlock(self) -> None:
        for row in self.store.rows.values():
            row.locked = False

    def poll(self) -> None:
        worker = self.one()
        if worker is not None:
            worker.core.rung(self.store.due_wakes_of_held(worker.id), self.time)

    def act_on_state(self) -> None:
        """An action changes the state while steps run."""
        if self.store.rows:
            row = self.rng.choice(list(self.store.rows.values()))
            state: Any = codec.loads(row.state)
            state["acted"] = state.get("acted", 0) + 1
            row.state, row.state_version = codec.dumps(state), row.state_version + 1

    def replay(self) -> None:
        """What is stored replays without any new effect."""
        if self.store.rows:
            self.check_replay(self.rng.choice(list(self.store.rows.values())))

    def check_replay(self, row: Row) -> None:
        if row.blocked is not Blocked.NO or not row.inflight:
            return
        claimed = self.store._claimed(row)
        machine = Machine(self.program(claimed), claimed, codec, self.limits.engine)
        turn = machine.start(self.time)
        if turn.set_aside is not None:
            raise Violation(f"replay of {row.name} {short(row.id)} is set aside: {turn.set_aside.error}")
        early = [entry for entry in turn.rows if entry.kind.label not in ("sleep", "loop", "message")]
        if early and not any(e.kind.label in ("sleep", "message") for e in turn.rows):
            raise Violation(f"replay of {row.name} {short(row.id)} records {early}")
        machine.dispose()

    # -- the end -------------------------------------------------------------------------------

    def finish(self) -> None:
        """No more harm: everything must come to its end."""
        self.workers = [*self.workers, *self.asleep]
        self.asleep = []
        self.unlock()
        self.calm = True
        for actor_id, kind in self.kinds.items():
            if WORKFLOWS[kind].messages and actor_id not in self.closed:
                self.close(actor_id)
        for _ in range(3_000):
            self.beat()
            self.take_over()
            self.poll_all()
            moved = False
            for worker in self.workers:
                moved = worker.claim() > 0 or moved
                moved = worker.carry() or moved
                for start in list(worker.attempts):
                    worker.finish(start)
                    moved = True
            if all(row.blocked for row in self.store.rows.values()):
                break
            if not moved:
                self.time += 500_000
        for row in self.store.rows.values():
            self.check(row)

    def poll_all(self) -> None:
        for worker in self.workers:
            ids = self.store.due_wakes_of_held(worker.id)
            if ids:
                worker.core.rung(ids, self.time)

    def check(self, row: Row) -> None:
        where = f"{row.name} {short(row.id)}"
        if row.blocked is not Blocked.OVER:
            raise Violation(
                f"{where} is stuck: {row.blocked.name} owner={row.owner} {row.inflight} {row.messages}"
            )
        numbers = [number for _, _, number in row.audit]
        if numbers != list(range(len(numbers))):
            raise Violation(f"{where}: commit numbers {numbers}")
        owners: dict[int, set[Any]] = {}
        for owner, epoch, _ in row.audit:
            owners.setdefault(epoch, set()).add(owner)
        if any(len(found) > 1 for found in owners.values()):
            raise Violation(f"{where}: two owners in one epoch {owners}")
        output = None if row.output is None else codec.loads(row.output)
        row.decoded_state = lambda: codec.loads(row.state)  # type: ignore[attr-defined]
        try:
            WORKFLOWS[row.name].check(row, output, self.sent[row.id])
        except AssertionError as exc:
            raise Violation(f"{where}: {exc}") from exc


def short(actor_id: uuid.UUID) -> str:
    return actor_id.hex[:6]


class Store(MemoryStore):
    """Loses answers to COMMIT, and sometimes the commit itself, while the world is not calm."""

    def __init__(self, world: World) -> None:
        super().__init__(lambda: world.time)
        self.world = world

    def commit_group(self, items: Any) -> Any:
        rng = self.world.rng
        chance = 1.0 if self.world.calm else rng.random()
        if chance < 0.04:
            self.world.note("commit lost")
            raise UnknownOutcome
        results = super().commit_group(items)
        for item, result in zip(items, results, strict=True):
            self.world.note(
                f"commit {short(item.actor_id)} epoch {item.epoch} no {item.commit_no}: {result.outcome.name} "
                f"rows {[(e.seq, e.name) for e in item.rows]}"
            )
        if chance < 0.08:
            self.world.note("answer to commit lost")
            raise UnknownOutcome
        return results


class SimStep(sim.SimStep):
    def effect(self, value: Any) -> None:
        token = self.start.token
        row = self._worker.store.rows[token.actor_id]
        entry = row.history.get(token.seq)
        if entry is not None and entry.status is EntryStatus.COMPLETED and not self.start.is_rollback:
            raise Violation(f"completed step {entry.name} (entry {entry.seq}) of {row.name} runs again")
        if self.start.is_rollback and entry is not None and entry.rolled_back_at is not None:
            raise Violation(f"rollback of {entry.name} runs again")
        self._worker.world.ledger[self.idempotency_key] += 1

    def not_before(self, when: float) -> None:
        if self._worker.store.now() / 1e6 < when - 1e-6:
            raise Violation(f"awake {when - self._worker.store.now() / 1e6:.3f} s too early")


class Worker(sim.SimWorker):
    world: Any
    Step = SimStep

    def commit(self, items: Any) -> Any:
        try:
            return self.store.commit_group(items)
        except UnknownOutcome:
            return self.store.resolve(items)


def simulate(seed: int, size: int = 400) -> World:
    """One world. Raises :class:`Violation`, whose text ends with the trace."""
    world = World(seed, size)
    try:
        return world.run()
    except Violation as exc:
        tail = "\n".join(world.trace[-60:])
        raise Violation(f"seed {seed}: {exc}\n{tail}") from exc
