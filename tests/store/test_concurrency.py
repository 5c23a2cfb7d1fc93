"""Several connections at once: locks that others hold, races, lost answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connections, transaction

from rivet_workflows.exceptions import ActorBusy
from rivet_workflows.models import Actor, History, Message, Timer
from rivet_workflows.records import Claimed, Commit, Look, Outgoing, Release, StateWrite
from rivet_workflows.store.errors import Trouble, UnknownOutcome, classify
from rivet_workflows.store.store import Store
from tests import sessions
from tests.store.conftest import TYPES, in_threads, item, row
from tests.waiting import until

Pair = tuple[Store, Store]


def take(store: Store, count: int, **more: Any) -> list[Claimed]:
    """Make and claim some actors."""
    for n in range(count):
        store.create_actor("order", f'["take-{n}"]', **more)
    claimed, _ = store.claim(store.register_worker("h", 1, TYPES), TYPES, count)
    assert len(claimed) == count
    return sorted(claimed, key=lambda c: c.actor_id)


def outcomes(results: Any) -> list[Commit]:
    return [result.outcome for result in results]


def closing(target: Callable[[], Any]) -> Callable[[], Any]:
    """For a thread of a pool: its connection is closed in the end."""

    def run() -> Any:
        try:
            return target()
        finally:
            connections.close_all()

    return run


def quick(store: Store) -> None:
    """Have this connection give up at once where SQLite makes everybody wait."""
    if store.vendor == "sqlite":
        store.execute("PRAGMA busy_timeout = 50")


def test_a_locked_actor_alone_waits_and_fifty_others_go_on(pair: Pair) -> None:
    left, right = pair
    claimed = take(left, 51)
    if left.vendor == "sqlite":
        pytest.skip("one writer at a time: its transaction delays everybody, see the next test")
    with transaction.atomic(using=right.alias):
        right.lock_run(claimed[20].actor_id)
        group = [item(c, rows=[row(1)]) for c in claimed]
        expected = [Commit.OK] * 20 + [Commit.BUSY] + [Commit.OK] * 30
        assert outcomes(left.commit_group(group)) == expected
        assert outcomes(left.release([Release(claimed[20].actor_id, claimed[20].epoch)])) == [Commit.BUSY]
    assert outcomes(left.commit_group([group[20]])) == [Commit.OK]


def test_a_locked_database_makes_the_group_busy(pair: Pair) -> None:
    left, right = pair
    claimed = take(left, 2)
    if left.vendor != "sqlite":
        pytest.skip("rows are locked there")
    quick(left)
    group = [item(c, rows=[row(1)]) for c in claimed]
    with transaction.atomic(using=right.alias):
        right.create_actor("order", '["new"]')
        assert outcomes(left.commit_group(group)) == [Commit.BUSY] * 2
    assert outcomes(left.commit_group(group)) == [Commit.OK] * 2


def test_an_action_in_a_long_transaction_meets_only_state_writers(pair: Pair) -> None:
    left, right = pair
    if left.vendor == "sqlite":
        pytest.skip("one writer at a time")
    claimed = take(left, 3, state="1")
    with transaction.atomic(using=right.alias):
        version, _ = right.lock_state(claimed[0].actor_id)
        right.save_state(claimed[0].actor_id, version, "2")
        assert outcomes(left.commit_group([item(claimed[0], rows=[row(1)])])) == [Commit.OK]
        first = item(claimed[0], state=StateWrite(1, "9"), rows=[row(2)])
        second = item(claimed[1], state=StateWrite(1, "9"))
        assert outcomes(left.commit_group([first, second])) == [Commit.BUSY, Commit.OK]
    assert outcomes(left.commit_group([first])) == [Commit.CONFLICT]
    assert left.load_state(claimed[0].actor_id) == (2, "2")


def test_whoever_waits_too_long_for_an_actor_hears_that_it_is_busy(pair: Pair) -> None:
    left, right = pair
    (c,) = take(left, 1)
    if left.vendor == "sqlite":
        pytest.skip("SQLite's own timeout rules")
    with transaction.atomic(using=right.alias):
        right.lock_run(c.actor_id)
        with transaction.atomic(using=left.alias):
            with pytest.raises(ActorBusy):
                left.lock_run(c.actor_id, timeout=0.05)
            assert left.get(c.actor_id) is not None
        with pytest.raises(ActorBusy):
            left.cancel(c.actor_id, timeout=0.05)
    assert left.cancel(c.actor_id)


def test_a_lock_outside_a_transaction_is_refused(pair: Pair) -> None:
    left, _ = pair
    with pytest.raises(transaction.TransactionManagementError):
        left.lock_state(take(left, 1)[0].actor_id)


def test_of_twenty_creators_one_creates(pair: Pair) -> None:
    left, _ = pair

    def create() -> tuple[Any, bool]:
        with transaction.atomic(using=left.alias):
            actor, created = left.create_actor("order", '["same"]')
            left.send([Outgoing(actor.id, "q", "1")])
        return actor.id, created

    results = in_threads(*[create] * 20)
    assert len({actor_id for actor_id, _ in results}) == 1
    assert sum(created for _, created in results) == 1
    assert Actor.objects.using(left.alias).count() == 1
    assert left.queue_size(results[0][0]) == 20


def test_eight_claimers_share_the_actors_without_overlap(pair: Pair) -> None:
    left, _ = pair
    with transaction.atomic(using=left.alias):
        ids = {left.create_actor("order", f'["{n}"]')[0].id for n in range(200)}
        for n, actor_id in enumerate(sorted(ids)):
            left.send([Outgoing(actor_id, "q", "1")] * (n % 3))

    def claim_all() -> list[Any]:
        worker = left.register_worker("h", 1, TYPES)
        got, dry = [], 0
        while dry < 2:
            some, more = left.claim(worker, TYPES, 7)
            got += some
            dry = 0 if some or more else dry + 1
        return got

    got = [c for claimed in in_threads(*[claim_all] * 8) for c in claimed]
    # What a claimer passed over because another had locked it, and then let go, is there for the next.
    got += claim_all()
    assert len(got) == 200
    assert {c.actor_id for c in got} == ids
    assert {c.epoch for c in got} == {1}


def test_heirs_share_a_dead_workers_actors(pair: Pair) -> None:
    left, _ = pair
    ids = {c.actor_id for c in take(left, 60)}
    (dead,) = left.dead_workers(-(10**12))

    def inherit() -> list[Claimed]:
        worker = left.register_worker("heir", 1, TYPES)
        got, dry = [], 0
        while dry < 2:
            some = left.take_over(worker, dead, TYPES, 7)
            got += some
            dry = 0 if some else dry + 1
        return got

    got = [c for some in in_threads(*[inherit] * 4) for c in some] + inherit()
    assert len(got) == 60
    assert {(c.actor_id, c.epoch) for c in got} == {(i, 2) for i in ids}


def test_two_groups_in_unlike_order_do_not_wait_for_each_other(pair: Pair) -> None:
    left, _ = pair
    claimed = take(left, 40)

    def commit(reverse: bool) -> int:
        done, left_over = 0, [item(c, rows=[row(c.commit_no + 1)]) for c in claimed[:: -1 if reverse else 1]]
        while left_over:
            results = left.commit_group(left_over)
            done += sum(r.outcome is Commit.OK for r in results)
            left_over = [i for i, r in zip(left_over, results, strict=True) if r.outcome is Commit.BUSY]
        return done

    for c in claimed:
        c.commit_no = 0
    items = [c.commit_no for c in claimed]
    assert set(items) == {0}
    done = in_threads(lambda: commit(False), lambda: commit(True))
    # Each actor was committed by one of the two: the other found its commit number taken.
    assert sum(done) >= 40
    assert History.objects.using(left.alias).count() == sum(done)


@pytest.mark.parametrize("landed", [True, False])
def test_a_lost_answer_is_resolved(pair: Pair, monkeypatch: pytest.MonkeyPatch, landed: bool) -> None:
    left, _ = pair
    if left.vendor != "postgresql":
        pytest.skip("in process, or without the seam")
    claimed = take(left, 3)
    group = [item(c, rows=[row(1)]) for c in claimed]
    fast = left.fast  # type: ignore[attr-defined]

    def cut(sql: str, params: Any = (), _meanwhile: Any = None) -> Any:
        if landed:
            fast(sql, params)
        raise OperationalError("the connection is lost")

    with monkeypatch.context() as patch:
        patch.setattr(left, "fast", cut)
        with pytest.raises(UnknownOutcome):
            left.commit_group(group)
    assert outcomes(left.resolve(group)) == [Commit.OK if landed else Commit.BUSY] * 3
    assert outcomes(left.commit_group(group)) == [Commit.STALE if landed else Commit.OK] * 3
    assert History.objects.count() == 3


def test_a_server_process_killed_in_a_commit(pair: Pair) -> None:
    left, right = pair
    if left.vendor == "sqlite":
        pytest.skip("needs a server that can be told to end a connection")
    (c,) = take(left, 1)
    group = [item(c, rows=[row(1)])]

    with ThreadPoolExecutor(1) as pool, transaction.atomic(using=right.alias):
        right.lock_run(c.actor_id)
        future = pool.submit(closing(lambda: left.commit_group(group, wait=True)))
        until(lambda: sessions.waiting_for(right.connection))
        sessions.end(right.connection, sessions.waiting_for(right.connection)[0])
        with pytest.raises(UnknownOutcome):
            future.result(20)
    assert outcomes(left.resolve(group)) == [Commit.BUSY]
    assert outcomes(left.commit_group(group)) == [Commit.OK]


def test_resolving_waits_for_a_commit_that_is_still_under_way(pair: Pair) -> None:
    left, right = pair
    if left.vendor == "sqlite":
        pytest.skip("needs row locks that can be seen to be waited for")
    (c,) = take(left, 1)
    group = [item(c, rows=[row(1)])]
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(using=right.alias):
            assert outcomes(right.commit_group(group)) == [Commit.OK]
            future = pool.submit(closing(lambda: left.resolve(group)))
            until(lambda: sessions.waiting_for(right.connection))
            assert not future.done()
        assert outcomes(future.result(20)) == [Commit.OK]


def test_a_straggler_waits_for_its_row(pair: Pair) -> None:
    left, right = pair
    if left.vendor == "sqlite":
        pytest.skip("needs row locks that can be seen to be waited for")
    (c,) = take(left, 1, state="1")
    group = [item(c, rows=[row(1)], state=StateWrite(1, "2"))]
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(using=right.alias):
            right.lock_run(c.actor_id)
            future = pool.submit(closing(lambda: left.commit_group(group, wait=True)))
            until(lambda: sessions.waiting_for(right.connection))
        assert outcomes(future.result(20)) == [Commit.OK]


def test_a_key_that_another_transaction_is_sending_is_sent_once_by_a_commit_that_waits_for_it(
    pair: Pair,
) -> None:
    left, right = pair
    if left.vendor == "sqlite":
        pytest.skip("one writer at a time")
    one, two = take(left, 2)
    keyed = Outgoing(two.actor_id, "q", "1", dedupe_hash="k", dedupe_until=2**62)
    group = [item(one, rows=[row(1)], sends=[keyed])]
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(using=right.alias):
            right.send([keyed])
            future = pool.submit(closing(lambda: left.commit_group(group, wait=True)))
            until(lambda: sessions.waiting_for(right.connection))
        assert outcomes(future.result(20)) == [Commit.OK]
    assert Message.objects.filter(actor_id=two.actor_id).count() == 1


@pytest.fixture
def strict(pair: Pair) -> Iterator[Pair]:
    """The left one's project has its transactions see one moment: what others commit meanwhile is not in it."""
    left, right = pair
    if left.vendor != "mysql":
        pytest.skip("elsewhere the database refuses what it cannot show")
    with pytest.MonkeyPatch.context() as patch:
        options = {**left.connection.settings_dict["OPTIONS"], "isolation_level": "repeatable read"}
        left.connection.close()
        patch.setitem(left.connection.settings_dict, "OPTIONS", options)
        yield left, right
        left.connection.close()


def test_br_029_an_actor_made_since_a_strict_transaction_began_is_found_by_it(strict: Pair) -> None:
    left, right = strict
    with transaction.atomic(using=left.alias):
        assert left.find("order", '["x"]') is None
        made, _ = right.create_actor("order", '["x"]', input="1")
        found, created = left.create_actor("order", '["x"]')
        assert (found.id, found.input, created) == (made.id, "1", False)
        assert left.send([Outgoing(found.id, "q", "1")])[0].id


def test_br_029_a_key_sent_since_a_strict_transaction_began_is_known_to_it(strict: Pair) -> None:
    left, right = strict
    actor, _ = right.create_actor("order", '["x"]')
    keyed = Outgoing(actor.id, "q", "1", dedupe_hash="k", dedupe_until=2**62)
    with transaction.atomic(using=left.alias):
        assert left.get(actor.id) is not None
        (first,) = right.send([keyed])
        (again,) = left.send([keyed])
        assert (again.id, again.duplicate) == (first.id, True)


def test_br_029_a_row_that_the_database_will_not_give_a_strict_transaction_is_a_reason_to_begin_again(
    strict: Pair,
) -> None:
    """As MariaDB does by default from 11.6 on."""
    left, right = strict
    if not left.query("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'"):
        pytest.skip("before MariaDB had it")
    actor, _ = right.create_actor("order", '["x"]', state="1")
    left.execute("SET SESSION innodb_snapshot_isolation = ON")
    with transaction.atomic(using=left.alias):
        version, _ = left.load_state(actor.id)
        assert right.save_state(actor.id, version, "2")
        with pytest.raises(DatabaseError) as caught:
            left.lock_state(actor.id)
        transaction.set_rollback(True, using=left.alias)
    assert classify(caught.value) is Trouble.AGAIN


def test_br_029_a_call_made_since_a_strict_transaction_began_is_not_made_again(strict: Pair) -> None:
    left, right = strict
    actor, _ = right.create_actor("order", '["x"]')
    with transaction.atomic(using=left.alias):
        assert left.get(actor.id) is not None
        with transaction.atomic(using=right.alias):
            assert right.begin_call(actor.id, "k", 2**62) == (True, None)
            right.end_call(actor.id, "k", "5")
        assert left.begin_call(actor.id, "k", 2**62) == (False, "5")


# -- nothing is lost between "none there" and "waiting" ------------------------------------------------


def orders(mine: str, theirs: str) -> list[str]:
    """Every interleaving of two sequences of steps."""
    if not mine or not theirs:
        return [mine + theirs]
    return [mine[0] + rest for rest in orders(mine[1:], theirs)] + [
        theirs[0] + rest for rest in orders(mine, theirs[1:])
    ]


class Play:
    """One worker and one sender. Worker: Look, Park, releasE. Sender: Insert, Commit, Ring."""

    def __init__(self, left: Store, right: Store) -> None:
        self.left, self.right = left, right
        (self.actor,) = take(left, 1)
        (self.worker,) = left.dead_workers(-(10**12))
        self.got: list[str] = []
        self.parked = self.rung = False
        self.open: Any = None

    def step(self, name: str) -> None:
        {
            "L": self.look,
            "P": self.park,
            "E": self.release,
            "I": self.insert,
            "C": self.commit,
            "R": self.ring,
        }[name]()

    def look(self) -> None:
        (looked,) = self.left.look([Look(self.actor.actor_id, ("q",))])
        self.got += [message.body for message in looked.messages]

    def park(self) -> None:
        """From here on only a bell makes the worker look; one that came before is heard now."""
        self.parked = True
        if self.rung:
            self.look()

    def release(self) -> None:
        self.left.release([Release(self.actor.actor_id, self.actor.epoch)])
        self.parked = False

    def insert(self) -> None:
        self.open = transaction.atomic(using=self.right.alias)
        self.open.__enter__()
        self.right.send([Outgoing(self.actor.actor_id, "q", "hello")])

    def commit(self) -> None:
        self.open.__exit__(None, None, None)

    def ring(self) -> None:
        self.rung = True
        if self.parked:
            self.look()

    def play(self, order: str) -> None:
        for name in order:
            self.step(name)


def possible(store: Store, order: str) -> bool:
    """SQLite has one writer: nobody else gets in between its first statement and its commit."""
    return store.vendor != "sqlite" or order.index("C") - order.index("I") == 1


@pytest.mark.parametrize("order", orders("LPE", "ICR"))
def test_a_message_is_received_whenever_it_comes(pair: Pair, order: str) -> None:
    left, right = pair
    if not possible(left, order):
        pytest.skip("not possible with one writer")
    play = Play(left, right)
    play.play(order)
    if not play.got:
        (again,), _ = left.claim(play.worker, TYPES, 10)
        assert again.actor_id == play.actor.actor_id
        play.look()
    assert play.got[0] == "hello"


@pytest.mark.parametrize("order", orders("LP", "IC"))
def test_a_lost_bell_is_made_good_by_the_safety_net(pair: Pair, order: str) -> None:
    left, right = pair
    if not possible(left, order):
        pytest.skip("not possible with one writer")
    play = Play(left, right)
    play.play(order)
    if not play.got:
        assert left.due_wakes_of_held(play.worker, TYPES) == [play.actor.actor_id]
        play.look()
    assert play.got == ["hello"]
    assert left.due_wakes_of_held(play.worker, TYPES) == []


@pytest.mark.parametrize("order", orders("XU", "IC"))
def test_a_message_to_a_paused_actor_is_found_after_the_pause(pair: Pair, order: str) -> None:
    """X: a claim meets whatever wakes there are of the paused actor and deletes them. U: it is resumed."""
    left, right = pair
    if not possible(left, order):
        pytest.skip("not possible with one writer")
    play = Play(left, right)
    left.pause(play.actor.actor_id)
    steps: dict[str, Callable[[], Any]] = {
        "X": lambda: left.claim(play.worker, TYPES, 10) if "U" not in done else None,
        "U": lambda: left.resume(play.actor.actor_id),
        "I": play.insert,
        "C": play.commit,
    }
    done = ""
    for name in order:
        steps[name]()
        done += name
    (again,), _ = left.claim(play.worker, TYPES, 10)
    assert again.actor_id == play.actor.actor_id
    play.look()
    assert play.got == ["hello"]
    assert not Timer.objects.using(left.alias).exists()
