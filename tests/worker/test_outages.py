"""The database fails, loses answers, or locks rows: nothing is lost, nothing is done twice, and it is said."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import OperationalError, connections, transaction

from rivet_workflows import Actor, Queue, action, client
from rivet_workflows.records import Commit, CommitResult
from rivet_workflows.store.errors import UnknownOutcome, WorkerForgotten
from rivet_workflows.worker.atomic import WriteTurn
from rivet_workflows.worker.inbox import Inbox
from tests import sessions, sidedb
from tests.waiting import until
from tests.worker.fleet import Faulty, Total, Workers, sidedb_alias
from tests.worker.support import LONG


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


def lost_answer(verb: Callable[..., Any], *args: Any, **more: Any) -> Any:
    verb(*args, **more)
    raise UnknownOutcome("the connection broke while COMMIT was on its way")


def lost_question(verb: Callable[..., Any], *args: Any, **more: Any) -> Any:
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

    def cut(verb: Callable[..., Any], *args: Any, **more: Any) -> Any:
        verb(*args, **more)
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

    store.fail["commit_group"] = [lambda _verb, items, **_: commit(items)] * 100_000
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

    of_step, take, report = WriteTurn.of_step, Inbox.take, Inbox.reports

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
    monkeypatch.setattr(Inbox, "reports", tell)
    quiet = client.create(Quiet, "q")
    worker = workers.start(habits={"heartbeat": 1, "poll": LONG})
    until(lambda: quiet.status().state == "sleeping")
    writing = client.create(Writing, "w")
    assert reported.wait(LONG)
    worker._inbox.ring([quiet.actor_id])
    together.set()
    until(lambda: writing.status().state == "completed")
    assert ran == [1]
