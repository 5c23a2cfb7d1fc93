"""The scheduler through happenings and orders: what a user may rely on, with dictionaries for tables."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from rivet_workflows import codec
from rivet_workflows.engine import Limits, Program
from rivet_workflows.records import (
    Blocked,
    Called,
    Claimed,
    Commit,
    CommitResult,
    Lifecycle,
    Looked,
    Release,
    WorkerCall,
)
from rivet_workflows.worker.core import Core, CoreLimits
from rivet_workflows.worker.orders import ChildEnd, ChildStart, Orders, StepReport
from tests.worker.by_hand import HandWorker
from tests.worker.world import START, World, count, echo, plus, sleepy, three


def test_many_actors_run_to_their_end_in_groups():
    world = World(three)
    actors = [world.actor(n) for n in range(1, 51)]
    worker = world.worker()
    worker.until_idle()
    assert [world.output(a) for a in actors] == [3] * 50
    assert worker.core.held == 0


def test_a_step_starts_only_after_the_commit_that_records_its_start():
    world = World(three)
    actor = world.actor()
    worker = world.worker()
    worker.claim()
    orders = worker.core.orders()
    assert orders.commits
    assert not orders.starts
    worker.core.committed(world.store.commit_group(orders.commits), world.time)
    assert [s.name for s in worker.core.orders().starts] == ["plus"]
    assert '"z":1' in world.store.rows[actor].inflight


def test_a_dead_workers_actor_goes_on_elsewhere_and_finished_steps_do_not_run_again():
    world = World(three)
    actor = world.actor()
    first = world.worker()
    first.claim()
    first.settle()
    first.finish(first.attempts[0])
    first.settle()
    assert first.attempts, "the second step has started, and now the process is gone"
    second = world.worker()
    assert second.take_over(first.id) == 1
    second.until_idle()
    assert world.output(actor) == 3
    assert len(first.calls) + len(second.calls) == 3


def test_the_late_commit_of_a_former_owner_writes_nothing():
    world = World(three)
    actor = world.actor()
    first, second = world.worker(), world.worker()
    first.claim()
    first.settle()
    paused = first.attempts[0]
    second.take_over(first.id)
    second.until_idle()
    history = dict(world.store.rows[actor].history)
    first.finish(paused)
    first.settle()
    assert world.store.rows[actor].history == history
    assert first.core.held == 0


@pytest.mark.parametrize("written", [False, True])
def test_an_answer_that_calls_a_commit_stale_is_checked_against_what_is_stored(written: bool):
    """Whatever makes a store say so, an actor that is this worker's own is not left lying, nor is anything doubled."""

    def tell(step: Any) -> None:
        step.broadcast("told", "once")

    async def run(ctx: Any) -> int:
        await ctx.step("tell", tell)
        return int(await ctx.step("plus", plus, 1))

    world = World(run)
    actor = world.actor()
    worker = world.worker()
    worker.claim()
    worker.settle()
    worker.finish(worker.attempts[0])
    orders = worker.core.orders()
    if written:
        worker.commit(orders.commits)
    worker.core.committed([CommitResult(actor, Commit.STALE)], world.store.now())
    worker.until_idle()
    assert world.output(actor) == 2
    assert [name for _, name in worker.calls] == ["tell", "plus"]
    assert len(world.store.rows[actor].events) == 1


def test_a_worker_that_has_lost_its_lease_runs_no_atomic_step_again():
    """Another has run it meanwhile, perhaps to its end."""

    async def run(ctx: Any) -> None:
        await ctx.step("count", count, atomic=True)

    world = World(run)
    actor = world.actor(state='{"n":0}')
    first, second = world.worker(), world.worker()
    first.claim()
    first.settle()
    (start,) = first.attempts
    first.core.stop(world.store.now())
    first.core.stop(world.store.now(), lost=True)
    second.take_over(first.id)
    second.until_idle()
    first.attempts.clear()
    first.core.step_done(start.token, StepReport(ok=False, lost=True), world.store.now())
    first.settle()
    assert first.attempts == []
    assert first.core.held == 0
    assert world.state(actor) == {"n": 1}


def test_an_actor_that_was_taken_away_and_claimed_again_before_it_was_read_is_held():
    world = World(three)
    actor = world.actor()
    worker = world.worker()
    worker.claim()
    (item,) = worker.core.orders().commits
    world.store.release([Release(actor, 1, world.time)])
    worker.core.committed(worker.commit([item]), world.store.now())
    reloads = worker.core.orders().reloads
    worker.claim()
    worker.core.missing(reloads, world.store.now())
    worker.until_idle()
    assert world.output(actor) == 3


def test_a_worker_that_stops_hands_over_how_often_an_atomic_step_has_run_again():
    async def run(ctx: Any) -> None:
        await ctx.step("count", count, atomic=True)

    world = World(run)
    actor = world.actor(state='{"n":0}')
    first, second = world.worker(), world.worker()
    first.claim()
    first.settle()
    lost = StepReport(ok=False, lost=True)
    for _ in range(2):
        (start,) = first.attempts
        first.attempts.clear()
        first.core.step_done(start.token, lost, world.store.now())
        first.carry()
    first.core.step_done(first.attempts.pop().token, lost, world.store.now())
    first.core.stop(world.store.now())
    first.settle()
    assert first.core.held == 0
    second.until_idle()
    ((entry),) = world.store.rows[actor].history.values()
    assert [reruns for *_, reruns in json.loads(entry.attempts or "[]")] == [3]


def test_a_waiting_actor_is_let_go_and_woken_by_a_message():
    world = World(echo, CoreLimits(evict_after=1_000_000))
    actor = world.actor()
    worker = world.worker()
    worker.until_idle()
    assert worker.core.held == 1
    world.pass_time(2)
    worker.until_idle()
    assert worker.core.held == 0
    assert world.store.rows[actor].owner is None
    for body in "abc":
        world.store.put(actor, "q", codec.dumps(body))
    worker.until_idle()
    assert world.output(actor) == ["a", "b", "c"]


def test_what_was_let_go_of_counts_as_ours_until_it_is_given_back():
    """After an outage a worker looks for actors that are its own and that it does not know: these are none."""
    world = World(echo, CoreLimits(evict_after=1_000_000))
    actor = world.actor()
    worker = world.worker()
    worker.until_idle()
    world.pass_time(2)
    worker.core.tick(world.time)
    assert (worker.core.holds(actor), worker.core.giving_back) == (False, {actor})
    worker.settle()
    assert worker.core.giving_back == set()


def test_more_messages_than_one_look_shows_are_all_received():
    async def drain(ctx: Any) -> int:
        got = 0
        while got < 55:
            got += len(await ctx.queue.next_batch("more", count=7))
        return got

    world = World(drain)
    actor = world.actor()
    for n in range(55):
        world.store.put(actor, "q", str(n))
    world.worker().until_idle()
    assert world.output(actor) == 55


def test_a_sleep_survives_release_and_is_never_early():
    world = World(sleepy, CoreLimits(evict_after=0))
    actor = world.actor()
    worker = world.worker()
    worker.until_idle()
    assert worker.core.held == 0
    world.pass_time(9.9)
    worker.until_idle()
    assert world.store.rows[actor].lifecycle is Lifecycle.LIVE
    world.pass_time(0.2)
    worker.until_idle()
    assert world.output(actor) == "awake"


def test_a_parked_sleep_wakes_in_the_worker():
    world = World(sleepy)
    actor = world.actor()
    worker = world.worker()
    worker.until_idle()
    assert worker.core.next_due == START + 10_000_000
    world.pass_time(10)
    worker.until_idle()
    assert world.output(actor) == "awake"


def test_a_locked_actor_delays_itself_alone():
    world = World(three)
    slow = world.actor(1)
    others = [world.actor(n) for n in range(2, 52)]
    worker = world.worker()
    worker.claim()
    world.store.rows[slow].locked = True
    for _ in range(200):
        worker.settle()
        for start in list(worker.attempts):
            worker.finish(start)
    assert [world.output(a) for a in others] == [3] * 50
    assert world.store.rows[slow].lifecycle is Lifecycle.LIVE
    world.store.rows[slow].locked = False
    world.pass_time(1)
    worker.until_idle()
    assert world.output(slow) == 3


def test_a_step_that_never_reports_back_is_set_aside_after_a_few_tries(caplog):
    caplog.set_level("INFO", "rivet_workflows")
    world = World(three, CoreLimits(engine=Limits(max_starts=3)))
    actor = world.actor()
    worker = world.worker()
    worker.claim()
    worker.settle()
    for _ in range(5):
        dead, worker = worker, world.worker()
        worker.take_over(dead.id)
        worker.settle()
    assert world.store.rows[actor].blocked is Blocked.POISONED
    told = [e.error.message for w in world.workers for e in w.errors]
    assert any("never reported back" in message for message in told)
    assert "unwound" not in caplog.text


def test_a_clean_hand_back_counts_no_try():
    world = World(three, CoreLimits(engine=Limits(max_starts=2)))
    actor = world.actor()
    for _ in range(6):
        worker = world.worker()
        worker.claim()
        worker.settle()
        start = worker.attempts[0]
        worker.core.stop(world.time)
        worker.core.step_done(start.token, StepReport(False, abandoned=True), world.time)
        worker.settle()
        assert worker.core.held == 0
    world.worker().until_idle()
    assert world.output(actor) == 3


def test_a_worker_that_stops_begins_no_step_whose_start_is_on_record():
    """It may have lost its lease while it slept, and another have run the step to its end."""
    world = World(three, CoreLimits(engine=Limits(max_starts=1)))
    actor = world.actor()
    first = world.worker()
    first.claim()
    first.core.committed(world.store.commit_group(first.core.orders().commits), world.time)
    first.core.stop(world.time)
    first.settle()
    assert (first.attempts, first.core.held) == ([], 0)
    world.worker().until_idle()
    assert world.output(actor) == 3


def test_stop_hands_back_everything_and_loses_nothing():
    world = World(echo)
    actors = [world.actor(n) for n in range(1, 21)]
    worker = world.worker()
    worker.until_idle()
    for actor in actors:
        world.store.put(actor, "q", '"x"')
    worker.core.rung(actors, world.time)
    worker.settle()
    worker.core.stop(world.time)
    while worker.settle() or worker.attempts:
        for start in list(worker.attempts):
            worker.finish(start)
    assert worker.core.held == 0
    assert all(world.store.rows[a].owner is None for a in actors)
    for actor in actors:
        world.store.put(actor, "q", '"y"')
        world.store.put(actor, "q", '"z"')
    world.worker().until_idle()
    assert [world.output(a) for a in actors] == [["x", "y", "z"]] * 20


def test_code_that_does_not_fit_is_set_aside_with_nothing_changed_and_goes_on_with_code_that_does():
    async def renamed(ctx: Any) -> int:
        return await ctx.step("other", plus, 41)  # type: ignore[no-any-return]

    world = World(three, CoreLimits(evict_after=0))
    actor = world.actor()
    worker = world.worker()
    worker.claim()
    worker.settle()
    worker.finish(worker.attempts[0])
    worker.settle()
    before = world.store.rows[actor].inflight
    world.run, world.code = renamed, "v2"
    second = world.worker()
    second.take_over(worker.id)
    second.until_idle()
    row = world.store.rows[actor]
    assert row.blocked is Blocked.DIVERGED
    assert row.blocked_code == "v2"
    assert row.inflight == before
    world.run, world.code = three, "v3"
    world.store.wake_row(actor)
    world.worker().until_idle()
    assert world.output(actor) == 3


def test_rows_that_cannot_be_read_set_aside_that_actor_alone():
    world = World(three)
    bad = world.actor(1)
    world.store.rows[bad].inflight = "{not json"
    good = [world.actor(n) for n in range(2, 12)]
    world.worker().until_idle()
    assert world.store.rows[bad].blocked is Blocked.UNREADABLE
    assert world.store.rows[bad].inflight == "{not json"
    assert [world.output(a) for a in good] == [3] * 10


def test_a_step_that_kills_its_process_takes_no_innocent_actor_down_with_it():
    world = World(three, CoreLimits(engine=Limits(max_starts=5)))
    culprit = world.actor(1)
    innocent = [world.actor(n) for n in range(2, 12)]
    worker = world.worker()
    for _ in range(200):
        worker.claim()
        worker.settle()
        if any(start.token.actor_id == culprit for start in worker.attempts):
            # The process dies with everything that runs in it.
            dead, worker = worker, world.worker()
            worker.take_over(dead.id)
            worker.settle()
        elif worker.attempts:
            worker.finish(worker.attempts[0])
    world.finish_all(worker)
    assert world.store.rows[culprit].blocked is Blocked.POISONED
    assert [world.output(a) for a in innocent] == [3] * 10


def test_actors_that_wait_to_be_tried_apart_are_handed_back_by_a_stop():
    world = World(three)
    actors = [world.actor(n) for n in range(1, 6)]
    worker = world.worker()
    worker.claim()
    worker.settle()
    for _ in range(2):
        dead, worker = worker, world.worker()
        worker.take_over(dead.id)
        worker.settle()
    assert len(worker.attempts) == 1, "the others wait for their turn"
    assert worker.core.held == 5
    worker.core.stop(world.time)
    worker.finish(worker.attempts[0])
    worker.settle()
    assert worker.core.held == 0
    last = world.worker()
    last.until_idle()
    assert [world.output(a) for a in actors] == [3] * 5


# -- children


def begun(worker: HandWorker, start: ChildStart, child: uuid.UUID) -> None:
    """The shell's answer: the child is there, and its end will wake the parent."""
    worker.core.child_begun(start, child, None, worker.store.now())


def told(worker: HandWorker, actor: uuid.UUID, child: uuid.UUID) -> None:
    worker.core.children_ended(actor, {child: ChildEnd(True, output="7")}, worker.store.now())


async def parent(ctx: Any) -> Any:
    return await ctx.child("child", "test", "c")


async def parent_or_message(ctx: Any) -> Any:
    async def child(b: Any) -> Any:
        return await b.child("child", "test", "c")

    async def message(b: Any) -> Any:
        return (await b.queue.next("wait", names=["go"])).body

    return (await ctx.race("first", child=child, message=message)).value


@pytest.mark.parametrize("run", [parent, parent_or_message])
def test_a_child_that_ends_while_its_parent_still_hears_of_its_beginning_is_not_missed(run: Any) -> None:
    world, child = World(run), uuid.UUID(int=9)
    worker, actor = world.worker(), world.actor()
    worker.claim()
    worker.settle()
    (start,) = worker.children
    worker.core.rung([actor], world.time)
    worker.settle()  # its wake is gone now
    begun(worker, start, child)
    worker.settle()
    assert worker.child_looks == [(actor, [child])]
    told(worker, actor, child)
    worker.settle()
    assert world.output(actor) == 7


@pytest.mark.parametrize("run", [parent, parent_or_message])
def test_whatever_takes_a_parents_wake_away_reads_how_its_children_are(run: Any) -> None:
    world, child = World(run), uuid.UUID(int=9)
    worker, actor = world.worker(), world.actor()
    worker.claim()
    worker.settle()
    begun(worker, worker.children[0], child)
    worker.settle()
    assert worker.core.idle
    worker.child_looks.clear()
    world.store.wake_row(actor)
    worker.core.rung([actor], world.time)
    assert not worker.core.idle
    worker.settle()
    assert worker.child_looks == [(actor, [child])]
    assert not world.store.due_wakes_of_held(worker.id)
    worker.core.children_ended(actor, {}, world.time)
    assert worker.core.idle


@pytest.mark.parametrize("run", [parent, parent_or_message])
@pytest.mark.parametrize("limits", [CoreLimits(evict_after=1_000_000), CoreLimits(max_parked=0)])
def test_a_parent_is_not_let_go_while_the_ends_of_its_children_are_read(run: Any, limits: CoreLimits) -> None:
    world, child = World(run, limits), uuid.UUID(int=9)
    worker, actor = world.worker(), world.actor()
    worker.claim()
    worker.settle()
    begun(worker, worker.children[0], child)
    if limits.max_parked:
        worker.settle()
    world.pass_time(2)
    world.store.wake_row(actor)  # the child has ended
    worker.core.rung([actor], world.time)
    worker.settle()
    if not world.store.timers:
        told(worker, actor, child)
        worker.settle()
        assert world.output(actor) == 7
    else:
        assert world.worker().claim() == 1


def test_a_worker_that_stops_before_a_child_is_begun_leaves_it_to_another() -> None:
    world = World(parent)
    worker, actor = world.worker(), world.actor()
    worker.claim()
    results = world.store.commit_group(worker.core.orders().commits)
    worker.core.stop(world.time)
    worker.core.committed(results, world.time)
    worker.settle()
    assert worker.core.held == 0
    second = world.worker()
    assert second.claim() == 1
    second.settle()
    assert [child.actor_id for child in second.children] == [actor]


def test_an_end_that_is_heard_of_late_counts_though_the_child_is_known_to_have_begun() -> None:
    """Two orders for one child: its parent was made again from what is stored while the first was carried out."""
    world, child = World(parent), uuid.UUID(int=9)
    worker, actor = world.worker(), world.actor()
    worker.claim()
    worker.settle()
    (start,) = worker.children
    begun(worker, start, child)
    worker.core.child_begun(start, child, ChildEnd(True, output="7"), world.time)
    begun(worker, start, child)
    worker.settle()
    assert world.output(actor) == 7


class TestCallers:
    """Actions that run where the actor is held."""

    def held(self, *, guest: bool = False, limits: CoreLimits | None = None) -> tuple[Core, Claimed]:
        def programs(_: Claimed) -> Program:
            return Program(run=echo, serves=True)

        core = Core(1, programs, codec, limits)
        claimed = Claimed(uuid.UUID(int=1), "test", '["k"]', None, START, 5, 0, 1, "", guest=guest)
        core.loaded([claimed], START)
        return core, claimed

    def call(self, claimed: Claimed, n: int) -> WorkerCall:
        return WorkerCall(claimed.actor_id, "act", "", START, id=n)

    def come_to_rest(self, core: Core) -> Orders:
        """Carry out what has to do with the workflow; the rest."""
        rest = Orders()
        while orders := core.orders():
            core.committed([CommitResult(item.actor_id, Commit.OK) for item in orders.commits], START)
            core.looked([Looked(look.actor_id, look.names, [], True, START) for look in orders.looks], START)
            core.called([Called(actor_id, epoch, True) for actor_id, epoch in orders.call_looks], START)
            for name in ("calls", "call_looks", "releases", "gone"):
                getattr(rest, name).extend(getattr(orders, name))
        return rest

    @pytest.mark.parametrize("guest", [False, True])
    def test_callers_are_asked_for_at_once_and_whenever_a_bell_rings(self, guest):
        core, claimed = self.held(guest=guest)
        held = (claimed.actor_id, 5)
        assert held in self.come_to_rest(core).call_looks
        core.rung([claimed.actor_id], START)
        assert self.come_to_rest(core).call_looks == [held]

    @pytest.mark.parametrize("guest", [False, True])
    def test_one_at_a_time_in_their_order_and_each_once(self, guest):
        core, claimed = self.held(guest=guest)
        self.come_to_rest(core)
        first, second = self.call(claimed, 1), self.call(claimed, 2)
        for _ in range(2):
            core.called([Called(claimed.actor_id, 5, True, [first, second])], START)
        assert [start.call for start in self.come_to_rest(core).calls] == [first]
        core.call_done(claimed.actor_id, 5, 1, START)
        assert [start.call for start in self.come_to_rest(core).calls] == [second]
        core.call_done(claimed.actor_id, 5, 2, START)
        rest = self.come_to_rest(core)
        assert (rest.calls, rest.call_looks) == ([], [(claimed.actor_id, 5)])

    @pytest.mark.parametrize("guest", [False, True])
    def test_an_actor_is_not_let_go_while_a_call_runs(self, guest):
        core, claimed = self.held(guest=guest, limits=CoreLimits(max_parked=0))
        core.called([Called(claimed.actor_id, 5, True, [self.call(claimed, 1)])], START)
        assert not self.come_to_rest(core).releases
        assert not core.idle
        core.call_done(claimed.actor_id, 5, 1, START)
        assert [release.epoch for release in self.come_to_rest(core).releases] == [5]
        assert core.held == 0

    def test_a_worker_that_stops_ends_what_runs_and_begins_nothing(self):
        core, claimed = self.held()
        self.come_to_rest(core)
        core.called([Called(claimed.actor_id, 5, True, [self.call(claimed, n) for n in (1, 2)])], START)
        self.come_to_rest(core)
        core.stop(START)
        core.called([Called(claimed.actor_id, 5, True, [self.call(claimed, 3)])], START)
        assert core.held == 1
        core.call_done(claimed.actor_id, 5, 1, START)
        rest = self.come_to_rest(core)
        assert (rest.calls, core.held, len(rest.releases)) == ([], 0, 1)

    def test_a_worker_that_cannot_wait_hands_back_all_the_same(self):
        core, claimed = self.held()
        core.called([Called(claimed.actor_id, 5, True, [self.call(claimed, 1)])], START)
        core.stop(START)
        self.come_to_rest(core)
        assert core.held == 1
        core.leave_calls(START)
        assert core.held == 0
        core.call_done(claimed.actor_id, 5, 1, START)  # late: nobody listens

    def test_an_actor_that_was_taken_away_is_forgotten(self):
        core, claimed = self.held(guest=True)
        core.called([Called(claimed.actor_id, 5, False)], START)
        assert core.held == 0
        assert self.come_to_rest(core).gone == [(claimed.actor_id, 5)]
