"""A whole worker, its threads and a real database, in this process. Waits are for what happens, never for time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import OperationalError, connections, transaction

from rivet_workflows import Actor, Event, Queue, action, client
from rivet_workflows.records import Commit, CommitResult
from rivet_workflows.store.errors import UnknownOutcome, WorkerForgotten
from rivet_workflows.worker.atomic import WriteTurn
from rivet_workflows.worker.inbox import Inbox
from rivet_workflows.worker.shell import Worker, WorkerOptions
from tests import sessions, sidedb
from tests.sidedb import SideDatabase
from tests.worker.support import LONG


@dataclass
class Total:
    count: int = 0
    label: str = ""


class Faulty:
    """A store whose verbs fail when told to: ``fail["look"] = [error, None, …]``, one item per call."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.fail: dict[str, list[Any]] = {}
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if not callable(verb) or name == "clock":
            return verb

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            plan = self.fail.get(name)
            step = plan.pop(0) if plan else None
            if isinstance(step, BaseException):
                raise step
            if callable(step):
                return step(verb, *args, **kwargs)
            return verb(*args, **kwargs)

        return call


class Workers:
    """Starts workers in this process and sees to it that each of them ends."""

    def __init__(self, side: SideDatabase) -> None:
        self.side = side
        self.all: list[Worker] = []

    def start(self, store: Any = None, *, habits: dict[str, Any] | None = None, **options: Any) -> Worker:
        told = WorkerOptions.from_settings(grace=LONG)
        told = replace(
            told, habits=replace(told.habits, **{"poll": 0.05, "heartbeat": 0.05} | (habits or {}))
        )
        worker = Worker(replace(told, **options), store or self.side.store)
        self.all.append(worker)
        worker.start()
        return worker

    def run_dry(self, store: Any = None, **options: Any) -> None:
        """One worker, until nothing is left to do, timers included."""
        worker = self.start(store, habits={"until_idle": True}, **options)
        assert worker.wait(LONG) == 0

    def end(self) -> None:
        for worker in self.all:
            worker.stop(grace=0)
        for worker in self.all:
            assert worker.wait(LONG) is not None, "a worker does not end"


@pytest.fixture
def workers(side: SideDatabase) -> Iterator[Workers]:
    workers = Workers(side)
    yield workers
    workers.end()


def until(happened: Callable[[], Any]) -> Any:
    """Ask until it has happened. For what is in the database: nothing there can be waited on from outside."""
    pause = threading.Event()
    for _ in range(LONG * 100):
        value = happened()
        if value:
            return value
        pause.wait(0.01)
    raise AssertionError("it has not happened")


def worker_rows() -> int:
    from rivet_workflows.models import Worker as Row

    return Row.objects.using(sidedb_alias()).count()


def owned() -> int:
    from rivet_workflows.models import Run

    return Run.objects.using(sidedb_alias()).filter(owner_id__isnull=False).count()


def sidedb_alias() -> str:
    from rivet_workflows.conf import settings

    return settings.DATABASE


# -- work is done ----------------------------------------------------------------------------------------


@sidedb.each
def test_a_workflow_runs_to_its_end(workers: Workers):
    class Order(Actor):
        state = Total
        paid = Event(int)
        work = Queue(int)

        async def run(self, ctx):
            message = await ctx.queue.next("wait", names=[self.work])
            first = await ctx.step("add", self.add, message.body)
            await ctx.sleep("rest", 0.01)
            return await ctx.step("aadd", self.aadd, first)

        def add(self, step, n):
            step.state.count += n
            step.broadcast("paid", n)
            return n

        async def aadd(self, step, n):
            await asyncio.sleep(0)
            step.state.count += n
            return step.state.count

        @action(read_only=True)
        def total(self, c):
            return c.state.count

    order = client.get_or_create(Order, "o-1")
    order.send(Order.work, 3)
    workers.run_dry()
    assert order.status().state == "completed"
    assert order.result(timeout=0) == 6
    assert order.total() == 6
    assert [event.name for event in workers.side.store.events(order.actor_id)] == ["paid"]
    assert worker_rows() == 0
    assert owned() == 0


@sidedb.each
def test_many_actors_on_two_workers_each_run_once(workers: Workers):
    ran: list[str] = []

    class Many(Actor):
        async def run(self, ctx):
            for n in range(3):
                await ctx.step("mark", self.mark, n)

        def mark(self, step, n):
            ran.append(f"{step.key}-{n}")

    handles = [client.create(Many, str(n)) for n in range(40)]
    workers.start()
    workers.start()
    until(lambda: all(handle.status().state == "completed" for handle in handles))
    assert sorted(ran) == sorted(f"{k}-{n}" for k in range(40) for n in range(3))


@sidedb.each
def test_a_message_wakes_an_actor_at_rest(workers: Workers):
    class Waiting(Actor):
        work = Queue(int)

        async def run(self, ctx):
            return (await ctx.queue.next("wait", names=[self.work])).body

    handle = client.create(Waiting, "w")
    workers.start()
    until(lambda: handle.status().state == "sleeping")
    handle.send(Waiting.work, 7)
    assert handle.result(timeout=LONG) == 7


@sidedb.each
def test_a_message_to_another_actor_goes_with_the_step(workers: Workers):
    class Receiver(Actor):
        work = Queue(int)

        async def run(self, ctx):
            return (await ctx.queue.next("wait", names=[self.work])).body

    class Sender(Actor):
        async def run(self, ctx):
            await ctx.step("send", self.send)

        def send(self, step):
            step.client().get_or_create(Receiver, "r").send("work", step.attempt)
            if step.attempt == 1:
                raise ValueError("the first attempt sends nothing")

    client.create(Sender, "s")
    workers.run_dry()
    assert client.get(Receiver, "r").result(timeout=0) == 2


@sidedb.each
def test_changes_of_step_and_action_merge(workers: Workers):
    inside, go = threading.Event(), threading.Event()

    class Shared(Actor):
        state = Total

        async def run(self, ctx):
            await ctx.step("count", self.count)

        def count(self, step):
            step.state.count = 5
            inside.set()
            assert go.wait(LONG)

        @action
        def rename(self, c, label: str):
            c.state.label = label

        @action(read_only=True)
        def get(self, c):
            return [c.state.count, c.state.label]

    shared = client.create(Shared, "s")
    workers.start()
    assert inside.wait(LONG)
    shared.rename("renamed")
    go.set()
    until(lambda: shared.status().state == "completed")
    assert shared.get() == [5, "renamed"]


@sidedb.each
def test_a_change_of_the_same_field_is_a_conflict_that_is_tried_again(workers: Workers):
    inside, go, seen = threading.Event(), threading.Event(), []

    class Contested(Actor):
        state = Total

        async def run(self, ctx):
            await ctx.step("count", self.count, retry_backoff_base=0.01)

        def count(self, step):
            seen.append(step.state.count)
            step.state.count += 1
            inside.set()
            assert go.wait(LONG)

        @action
        def set(self, c, n: int):
            c.state.count = n

        @action(read_only=True)
        def get(self, c):
            return c.state.count

    contested = client.create(Contested, "s")
    workers.start()
    assert inside.wait(LONG)
    contested.set(10)
    go.set()
    until(lambda: contested.status().state == "completed")
    assert contested.get() == 11
    assert seen == [0, 10]
    error = contested.history()[0].attempts[0].error
    assert error is not None
    assert error.is_a("StateConflict")


@sidedb.each
def test_vars_live_while_the_actor_is_held(workers: Workers):
    class Remembering(Actor):
        vars = dict

        async def run(self, ctx):
            await ctx.step("one", self.one)
            return await ctx.step("two", self.two)

        def one(self, step):
            step.vars["n"] = 1

        def two(self, step):
            return step.vars["n"]

    handle = client.create(Remembering, "r")
    workers.run_dry()
    assert handle.result(timeout=0) == 1


@sidedb.each
def test_the_orm_in_run_is_reported_and_never_reaches_the_database(workers: Workers):
    class Reading(Actor):
        async def run(self, ctx):
            with connections[sidedb_alias()].cursor() as cursor:
                cursor.execute("SELECT 1")

    handle = client.create(Reading, "r")
    workers.run_dry()
    error = handle.status().error
    assert error is not None
    assert error.is_a("NotReplaySafe")


@sidedb.each
def test_on_error_runs_after_the_failure_is_recorded(workers: Workers):
    told, heard = [], threading.Event()

    class Failing(Actor):
        state = Total

        async def run(self, ctx):
            await ctx.step("fail", self.fail, max_retries=1, retry_backoff_base=0.01)

        def fail(self, step):
            raise ValueError("no")

        def on_error(self, c, event):
            told.append(
                (event.source, event.attempt, event.will_retry, len(c.client().get(Failing, "f").history()))
            )
            c.state.count += 1
            if not event.will_retry:
                heard.set()

        @action(read_only=True)
        def failures(self, c):
            return c.state.count

    handle = client.create(Failing, "f")
    workers.start()
    assert heard.wait(LONG)
    assert [(source, attempt, again) for source, attempt, again, _ in told] == [
        ("step", 1, True),
        ("step", 2, False),
    ]
    assert all(entries == 1 for *_, entries in told)
    until(lambda: handle.failures() == 2)


# -- stopping --------------------------------------------------------------------------------------------


@pytest.fixture
def slow() -> Iterator[Any]:
    """An actor that holds a worker in a step until the test lets go."""

    class Slow(Actor):
        inside = threading.Event()
        go = threading.Event()
        attempts: list[int] = []

        async def run(self, ctx):
            await ctx.step("slow", self.slow)

        def slow(self, step):
            self.attempts.append(step.attempt)
            self.inside.set()
            assert self.go.wait(LONG)

    yield Slow
    Slow.go.set()


@sidedb.each
def test_a_stop_lets_running_steps_finish_and_hands_the_rest_back(workers: Workers, slow: Any):
    handle = client.create(slow, "s")
    worker = workers.start()
    assert slow.inside.wait(LONG)
    worker.stop("told to")
    slow.go.set()
    assert worker.wait(LONG) == 0
    assert handle.status().state == "completed"
    assert worker_rows() == 0
    assert owned() == 0


@sidedb.each
def test_at_the_end_of_the_grace_a_step_is_handed_back_and_not_counted(workers: Workers, slow: Any):
    handle = client.create(slow, "s")
    worker = workers.start()
    assert slow.inside.wait(LONG)
    worker.stop(grace=0)
    until(lambda: worker_rows() == 0)
    assert owned() == 0
    slow.go.set()
    assert worker.wait(LONG) == 0
    workers.run_dry()
    assert handle.status().state == "completed"
    assert slow.attempts == [1, 1]


@sidedb.each
def test_a_stop_before_the_start_is_heeded(workers: Workers):
    told = WorkerOptions.from_settings()
    worker = Worker(told, workers.side.store)
    worker.stop("early")
    worker.start()
    assert worker.wait(LONG) == 0
    assert worker_rows() == 0


@sidedb.each
def test_burst_leaves_timers_and_until_idle_waits_for_them(workers: Workers):
    class Timed(Actor):
        async def run(self, ctx):
            await ctx.sleep("rest", ctx.input)

    late = client.create(Timed, "late", input=3600)
    worker = workers.start(habits={"burst": True})
    assert worker.wait(LONG) == 0
    assert late.status().state == "sleeping"
    late.destroy()
    soon = client.create(Timed, "soon", input=0.3)
    workers.run_dry()
    assert soon.status().state == "completed"


# -- others die ------------------------------------------------------------------------------------------


@sidedb.each
def test_the_actors_of_a_dead_worker_are_taken_over(workers: Workers):
    class Left(Actor):
        async def run(self, ctx):
            return await ctx.step("work", self.work)

        def work(self, step):
            return step.attempt

    handle = client.create(Left, "l")
    store = workers.side.store
    dead = store.register_worker("gone", 1, {})
    codes = {"left": "other"}
    assert len(store.claim(dead, codes, 10)[0]) == 1
    from rivet_workflows.models import Worker as Row

    Row.objects.using(store.alias).filter(id=dead).update(heartbeat_at=0)
    workers.start(habits={"lease": LONG})
    assert handle.result(timeout=LONG) == 1
    until(lambda: worker_rows() == 1)


# -- the database fails ----------------------------------------------------------------------------------


@pytest.fixture
def chain() -> Any:
    """An actor of five steps that note that they ran."""

    class Chain(Actor):
        ran: list[int] = []

        async def run(self, ctx):
            for n in range(5):
                await ctx.step("mark", self.mark, n)
            return "done"

        def mark(self, step, n):
            self.ran.append(n)

    return Chain


@pytest.mark.parametrize(
    "verb",
    [
        "register_worker",
        "claim",
        "look",
        "commit_group",
        "release",
        "due_wakes_of_held",
        "wake_diverged",
        "next_wake",
    ],
)
@sidedb.each
def test_an_outage_is_waited_out(workers: Workers, chain: Any, verb: str):
    handle = client.create(chain, "c")
    store = Faulty(workers.side.store)
    store.fail[verb] = [OperationalError("the server has gone away")] * 3
    workers.run_dry(store)
    assert handle.result(timeout=0) == "done"
    assert sorted(chain.ran) == [0, 1, 2, 3, 4]


@sidedb.each
def test_an_outage_as_a_step_ends_costs_it_no_attempt(workers: Workers):
    """Its change of the state waits until the database is back: what the step has done, it does not do again."""

    class Counter(Actor):
        state = Total

        async def run(self, ctx):
            await ctx.step("count", self.count, max_retries=0)

        def count(self, step):
            ran.append(step.attempt)
            step.update(lambda state: setattr(state, "count", state.count + 1))

        @action(read_only=True)
        def get_count(self, c):
            return c.state.count

    ran: list[int] = []
    handle = client.create(Counter, "c")
    store = Faulty(workers.side.store)
    store.fail["load_state"] = [OperationalError("the server has gone away")] * 5
    workers.run_dry(store)
    assert handle.result(timeout=0) is None
    assert (ran, handle.get_count()) == ([1], 1)


@sidedb.each
def test_an_outage_costs_no_step_an_attempt_for_what_the_worker_itself_asks(workers: Workers):
    """BR-108: reading the state, and beginning an atomic step's transaction, are not the step's own queries."""
    attempts: list[tuple[str, int]] = []

    class Counting(Actor):
        state = Total

        async def run(self, ctx):
            await ctx.step("plain", self.count)
            await ctx.step("atomic", self.count, atomic=True)

        def count(self, step):
            attempts.append((step.step_name, step.attempt))
            if step.step_name == "plain":
                step.state.count += 1
                connections[sidedb_alias()].close()

    handle = client.create(Counting, "c")
    store = Faulty(workers.side.store)
    store.fail["load_state"] = [OperationalError("the server has gone away")] * 4
    connect = connections[sidedb_alias()].__class__.connect
    refusals: list[int] = []

    def refuse(connection: Any) -> None:
        """As a server that starts up does to the step's thread, while the worker's own connections are there."""
        if (
            threading.current_thread().name.startswith("rivet-step")
            and len(attempts) == 1
            and len(refusals) < 3
        ):
            refusals.append(1)
            raise OperationalError("connection refused")
        connect(connection)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections[sidedb_alias()].__class__, "connect", refuse)
        workers.run_dry(store)
    assert handle.status().state == "completed"
    assert attempts == [("plain", 1), ("atomic", 1)]


def lost_answer(verb: Callable[..., Any], *args: Any) -> Any:
    verb(*args)
    raise UnknownOutcome("the connection broke while COMMIT was on its way")


def lost_question(verb: Callable[..., Any], *args: Any) -> Any:
    raise UnknownOutcome("the connection broke before COMMIT was on its way")


@pytest.mark.parametrize("lost", [lost_answer, lost_question])
@sidedb.each
def test_a_commit_of_unknown_outcome_is_resolved(workers: Workers, chain: Any, lost: Any):
    handle = client.create(chain, "c")
    store = Faulty(workers.side.store)
    store.fail["commit_group"] = [lost, None, lost, None, None, lost]
    workers.run_dry(store)
    assert handle.result(timeout=0) == "done"
    assert chain.ran == [0, 1, 2, 3, 4]


@sidedb.each
def test_a_claim_whose_answer_was_lost_is_found(workers: Workers, chain: Any):
    handle = client.create(chain, "c")

    def cut(verb: Callable[..., Any], *args: Any) -> Any:
        verb(*args)
        raise OperationalError("the connection broke after COMMIT")

    store = Faulty(workers.side.store)
    store.fail["claim"] = [cut]
    workers.run_dry(store)
    assert handle.result(timeout=0) == "done"


@sidedb.each
def test_a_row_that_is_locked_delays_its_actor_alone(workers: Workers):
    class Timid(Actor):
        async def run(self, ctx):
            await ctx.step("one", self.one)
            return await ctx.step("two", self.one)

        def one(self, step):
            return None

    handles = [client.create(Timid, str(n)) for n in range(5)]
    held = handles[0].actor_id
    store, locked = Faulty(workers.side.store), threading.Event()
    locked.set()

    def commit(items: Any) -> list[CommitResult]:
        free = [item for item in items if not (locked.is_set() and item.actor_id == held)]
        results = workers.side.store.commit_group(free) if free else []
        done = {result.actor_id for result in results}
        return results + [CommitResult(i.actor_id, Commit.BUSY) for i in items if i.actor_id not in done]

    store.fail["commit_group"] = [lambda _verb, items: commit(items)] * 100_000
    workers.start(store)
    until(lambda: all(handle.status().state == "completed" for handle in handles[1:]))
    assert handles[0].status().state != "completed"
    locked.clear()
    assert handles[0].result(timeout=LONG) is None


@sidedb.each
def test_a_lost_lease_begins_a_new_session(workers: Workers, slow: Any):
    handle = client.create(slow, "s")
    store = Faulty(workers.side.store)
    workers.start(store)
    assert slow.inside.wait(LONG)
    store.fail["heartbeat"] = [WorkerForgotten("taken for dead")]
    until(lambda: store.calls.count("register_worker") == 2)
    slow.go.set()
    until(lambda: handle.status().state == "completed")
    assert len(slow.attempts) == 2


@sidedb.each
def test_heartbeats_that_fail_for_a_lease_begin_a_new_session(workers: Workers, slow: Any):
    handle = client.create(slow, "s")
    store = Faulty(workers.side.store)
    workers.start(store, habits={"lease": 0.3})
    assert slow.inside.wait(LONG)
    store.fail["heartbeat"] = [OperationalError("no")] * 1000
    until(lambda: store.calls.count("register_worker") == 2)
    store.fail["heartbeat"] = []
    slow.go.set()
    until(lambda: handle.status().state == "completed")


@sidedb.each
def test_an_error_that_is_no_outage_ends_the_worker_with_code_1(workers: Workers):
    store = Faulty(workers.side.store)
    store.fail["claim"] = [ZeroDivisionError("a fault of ours")]
    assert workers.start(store).wait(LONG) == 1


# -- with the server's own means -------------------------------------------------------------------------


@sidedb.on_servers
def test_cut_connections_cost_nothing(workers: Workers, chain: Any):

    class Stored(Actor):
        state = Total

        async def run(self, ctx):
            for n in range(30):
                await ctx.step("count", self.count, n)
                if n % 10 == 5:
                    await ctx.step("cut", self.cut)

        def count(self, step, n):
            step.state.count += 1

        def cut(self, step):
            sessions.cut(workers.side.url)

        @action(read_only=True)
        def total(self, c):
            return c.state.count

    handle = client.create(Stored, "s")
    actor_id = handle.actor_id
    worker = workers.start(habits={"until_idle": True})
    assert worker.wait(LONG) == 0
    connections[sidedb_alias()].close()
    found = client.get_for_id(actor_id)
    assert found.status().state == "completed"
    assert found.total() == 30
    assert [str(a.error) for entry in found.history() for a in entry.attempts if a.error] == []


@sidedb.on_servers
def test_an_action_in_a_long_transaction_delays_its_own_actor_alone(workers: Workers):

    class Busy(Actor):
        state = Total

        async def run(self, ctx):
            for n in range(3):
                await ctx.step("count", self.count, n)

        def count(self, step, n):
            step.state.count += 1

        @action
        def touch(self, c):
            c.state.label = "touched"

    handles = [client.create(Busy, str(n)) for n in range(50)]
    with ExitStack() as stack:
        stack.enter_context(transaction.atomic(using=sidedb_alias()))
        handles[0].touch()
        workers.start()
        until(lambda: all(handle.status().state == "completed" for handle in handles[1:]))
        assert handles[0].status().state != "completed"
    until(lambda: handles[0].status().state == "completed")


@sidedb.on_servers
def test_steps_share_few_connections(workers: Workers):
    seen: set[int] = set()

    def number() -> int:
        return sessions.own(connections[sidedb_alias()])

    class Asking(Actor):
        async def run(self, ctx):
            for n in range(20):
                await ctx.step("sync", self.sync, n)
                await ctx.step("async", self.asynchronous, n)

        def sync(self, step, n):
            seen.add(number())

        async def asynchronous(self, step, n):
            seen.add(await sync_to_async(number)())

    for n in range(20):
        client.create(Asking, str(n))
    workers.run_dry(threads=3, concurrency=4)
    assert len(seen) <= 3 + 4


@sidedb.on_servers
def test_a_connection_that_a_step_has_broken_is_replaced(workers: Workers):
    class Breaking(Actor):
        async def run(self, ctx):
            await ctx.step("sync", self.sync, retry_backoff_base=0)
            await ctx.step("async", self.asynchronous, retry_backoff_base=0)
            await ctx.step("open", self.left_open)
            return await ctx.step("after", self.use)

        def use(self, step):
            with connections[sidedb_alias()].cursor() as cursor:
                cursor.execute("SELECT 1")
                return cursor.fetchone()[0]

        def sync(self, step):
            with transaction.atomic(using=sidedb_alias()):
                if step.attempt == 1:
                    self.cut(step)
                return self.use(step)

        async def asynchronous(self, step):
            return await sync_to_async(self.sync)(step)

        def left_open(self, step):
            transaction.set_autocommit(False, using=sidedb_alias())
            self.use(step)

        def cut(self, step):
            """As a server that goes away would."""
            sessions.cut(workers.side.url, sessions.own(connections[sidedb_alias()]))

    handle = client.create(Breaking, "b")
    workers.run_dry(threads=1, concurrency=1)
    assert handle.result(timeout=0) == 1


@sidedb.sqlite_only
def test_a_statement_that_cannot_work_ends_the_worker_and_is_not_tried_for_ever(workers: Workers, chain: Any):
    client.create(chain, "c")
    store = Faulty(workers.side.store)
    store.fail["commit_group"] = [OperationalError("no such table: rivet_other")]
    assert workers.start(store).wait(LONG) == 1


@sidedb.each
def test_a_commit_that_keeps_failing_is_told_once_and_goes_through_at_last(
    workers: Workers, chain: Any, caplog: pytest.LogCaptureFixture
):
    handle = client.create(chain, "c")
    store = Faulty(workers.side.store)
    store.fail["commit_group"] = [None, *[OperationalError("could not extend file: no space left")] * 5]
    workers.run_dry(store)
    assert handle.result(timeout=0) == "done"
    assert caplog.text.count("The database does not answer") == 1


@sidedb.sqlite_only
def test_an_atomic_step_and_a_look_in_one_turn_do_not_wait_for_each_other(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
):
    """SQLite has one writer: an atomic step that has returned holds it until it is answered, and a look needs it."""
    starting, comes, reported, together = (threading.Event() for _ in range(4))
    ran: list[int] = []

    class Quiet(Actor):
        work = Queue(int)

        async def run(self, ctx):
            await ctx.queue.next("wait", names=[self.work])

    class Writing(Actor):
        async def run(self, ctx):
            await ctx.step("write", self.write, atomic=True)

        def write(self, step):
            ran.append(step.attempt)

    of_step, take, report = WriteTurn.of_step, Inbox.take, Inbox.report

    def begin_when_the_core_is_through(turn: WriteTurn) -> Any:
        starting.set()
        assert comes.wait(LONG)
        return of_step(turn)

    def take_when_both_are_in(inbox: Inbox, timeout: float | None) -> Any:
        if starting.is_set():
            comes.set()
            assert together.wait(LONG)
        return take(inbox, timeout)

    def tell(inbox: Inbox, *what: Any) -> None:
        report(inbox, *what)
        reported.set()

    monkeypatch.setattr(WriteTurn, "of_step", begin_when_the_core_is_through)
    monkeypatch.setattr(Inbox, "take", take_when_both_are_in)
    monkeypatch.setattr(Inbox, "report", tell)
    quiet = client.create(Quiet, "q")
    worker = workers.start(habits={"heartbeat": 1, "poll": LONG})
    until(lambda: quiet.status().state == "sleeping")
    writing = client.create(Writing, "w")
    assert reported.wait(LONG)
    worker._inbox.ring([quiet.actor_id])
    together.set()
    until(lambda: writing.status().state == "completed")
    assert ran == [1]
