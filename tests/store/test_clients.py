"""What callers do: create, find, send, control; in their own transaction, rolled back with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from rivet_workflows.exceptions import ActorNotFound, QueueFull
from rivet_workflows.models import Actor, Dedupe, Message, Run, State, Timer
from rivet_workflows.records import Blocked, Claimed, Commit, Finish, Lifecycle, Outgoing, Prune
from rivet_workflows.store.clock import VirtualClock
from rivet_workflows.store.rows import Edit
from rivet_workflows.store.store import Store
from tests.store.conftest import TYPES, item, row

Claims = Callable[..., list[Claimed]]
Make = Callable[..., Any]


def test_create_is_get_the_second_time(store: Store) -> None:
    one, created = store.create_actor("order", '["1"]', input="1", state="2")
    assert created
    again, created = store.create_actor("order", '["1"]', input="3")
    assert (again, created) == (one, False)
    assert store.find("order", '["1"]') == store.get(one.id) == one
    assert store.find("order", '["2"]') is None
    assert store.find("orders", '["1"]') is None
    assert Actor.objects.count() == Run.objects.count() == State.objects.count() == Timer.objects.count() == 1


def test_a_rolled_back_creation_leaves_nothing(store: Store) -> None:
    with transaction.atomic():
        one, _ = store.create_actor("order", '["1"]')
        store.send([Outgoing(one.id, "q", "1")])
        assert store.create_actor("order", '["1"]') == (one, False)
        transaction.set_rollback(True)
    assert not Actor.objects.exists()
    assert not Run.objects.exists()
    assert not Message.objects.exists()
    assert not Timer.objects.exists()


def test_actors_are_listed_by_id(store: Store, make: Make) -> None:
    ids = sorted(make().id for _ in range(5))
    make("invoice", runs=False)
    assert [a.id for a in store.list_actors("order", limit=3)] == ids[:3]
    assert [a.id for a in store.list_actors("order", Lifecycle.LIVE, after=ids[2])] == ids[3:]
    assert len(store.list_actors()) == 6
    assert store.list_actors(lifecycle=Lifecycle.FAILED) == []


def test_a_send_to_nobody_is_refused(store: Store, make: Make) -> None:
    actor = make()
    store.destroy(actor.id)
    with pytest.raises(ActorNotFound):
        store.send([Outgoing(actor.id, "q", "1")])
    with transaction.atomic():
        with pytest.raises(ActorNotFound):
            store.send([Outgoing(actor.id, "q", "1", dedupe_hash="k", dedupe_until=10**18)])
        assert make()
    assert not Message.objects.exists()
    assert not Dedupe.objects.exists()


def test_a_full_queue_refuses(store: Store, make: Make) -> None:
    actor = make()
    store.send([Outgoing(actor.id, f"q{n}", "1", max_queue_size=3) for n in range(3)])
    with pytest.raises(QueueFull):
        store.send([Outgoing(actor.id, "q", "1", max_queue_size=3)])
    assert store.queue_size(actor.id) == 3
    assert store.queue_size(actor.id, at_most=2) == 2
    store.send([Outgoing(actor.id, "q", "1", max_queue_size=4)])


def test_a_dedupe_key_is_sent_once_while_it_is_kept(store: Store, make: Make) -> None:
    one, two = make(), make()
    now = store.clock.now()

    def send(actor: Any, until: int) -> Any:
        return store.send([Outgoing(actor.id, "q", "1", dedupe_hash="k", dedupe_until=until)])[0]

    first = send(one, now + 10**9)
    assert not first.duplicate
    again = send(one, now + 10**9)
    assert (again.id, again.duplicate) == (first.id, True)
    assert not send(two, now - 1).duplicate
    assert not send(two, now + 10**9).duplicate
    assert send(two, now + 10**9).duplicate
    assert Message.objects.count() == 3


def test_cancel_is_final_and_gives_messages_back(store: Store, worker: int, claimed: Claims) -> None:
    (c,) = claimed()
    (sent,) = store.send([Outgoing(c.actor_id, "q", "1")])
    store.commit_group([item(c, holds=[(sent.id, 1)], rows=[row(1), row(2)], next_seq=3)])
    assert store.cancel(c.actor_id)
    assert not store.cancel(c.actor_id)
    assert [r.outcome for r in store.commit_group([item(c)])] == [Commit.STALE]
    assert Message.objects.get().holder_seq is None
    position = store.position(c.actor_id)
    assert position is not None
    assert (position.lifecycle, position.blocked, position.owner_id) == (
        Lifecycle.CANCELLED,
        Blocked.OVER,
        None,
    )
    assert store.claim(worker, TYPES, 10) == ([], False)
    assert not store.wake(c.actor_id)
    assert store.recover(c.actor_id)
    (again,), _ = store.claim(worker, TYPES, 10)
    assert again.actor_id == c.actor_id
    actor = store.get(c.actor_id)
    assert actor is not None
    assert (actor.lifecycle, actor.finished_at) == (Lifecycle.LIVE, None)


def test_pause_and_resume(store: Store, worker: int, make: Make) -> None:
    actor = make()
    assert store.pause(actor.id)
    assert not store.pause(actor.id)
    assert store.claim(worker, TYPES, 10) == ([], False)
    assert not store.wake(actor.id)
    assert store.resume(actor.id)
    assert not store.resume(actor.id)
    assert len(store.claim(worker, TYPES, 10)[0]) == 1


def test_wake_inserts_a_wake_and_fences_nobody(store: Store, claimed: Claims) -> None:
    (c,) = claimed()
    assert store.wake(c.actor_id)
    assert Timer.objects.count() == 1
    assert [r.outcome for r in store.commit_group([item(c, block=(Blocked.DIVERGED, "x"))])] == [Commit.OK]
    assert store.wake(c.actor_id)
    position = store.position(c.actor_id)
    assert position is not None
    assert (position.blocked, position.lifecycle) == (Blocked.NO, Lifecycle.LIVE)


def test_replay_from_drops_what_came_after(store: Store, worker: int, claimed: Claims) -> None:
    (c,) = claimed()
    one, two = (s.id for s in store.send([Outgoing(c.actor_id, "q", "1")] * 2))
    store.commit_group(
        [
            item(
                c,
                holds=[(one, 2), (two, 5)],
                rows=[row(n) for n in range(1, 7)],
                next_seq=7,
                finish=Finish(Lifecycle.FAILED, 9, error="{}"),
            )
        ]
    )
    assert store.replay_from(
        c.actor_id, 4, lambda run: Edit(inflight="new", rows=[row(3, output='"skipped"')])
    )
    assert [(e.seq, e.output) for e in store.history(c.actor_id)] == [
        (1, "null"),
        (2, "null"),
        (3, '"skipped"'),
    ]
    assert dict(Message.objects.values_list("id", "holder_seq")) == {one: 2, two: None}
    (again,), _ = store.claim(worker, TYPES, 10)
    assert (again.inflight, again.epoch) == ("new", 3)
    assert store.get(c.actor_id).error is None  # type: ignore[union-attr]
    assert not store.replay_from(c.actor_id, 4, lambda run: None)


def test_an_edit_deletes_seqs_and_scopes(store: Store, claimed: Claims) -> None:
    (c,) = claimed()
    rows = [row(1), row(2, scope="a1"), row(3, scope="a2", rollback="x"), row(4, scope="b"), row(5)]
    store.commit_group([item(c, rows=rows)])
    edit = Edit(delete_seqs=[5], delete_scopes=[Prune("a", "b", keep_handlers=True)], wake=False)
    assert store.edit_run(c.actor_id, lambda run: edit)
    assert [e.seq for e in store.history(c.actor_id)] == [1, 3, 4]
    assert store.replace_open(c.actor_id, lambda text: text + "!")
    assert not store.replace_open(c.actor_id, lambda text: None)
    assert store.position(c.actor_id).inflight == "!"  # type: ignore[union-attr]


def test_rollback_rows_by_completion(store: Store, claimed: Claims) -> None:
    (c,) = claimed()
    inner = "0" * 24
    rows = [
        row(1, rollback="r"),
        row(2, done_seq=9, rollback="r"),
        row(3, scope=inner, done_seq=10, rollback="r"),
        row(4, done_seq=11),
        row(5, done_seq=12, rollback="r", rolled_back_at=3),
        row(6, scope="f" * 24, done_seq=13, rollback="r"),
    ]
    store.commit_group([item(c, rows=rows)])
    assert [e.seq for e in store.rollback_rows(c.actor_id, [(1, "")])] == [6, 3, 2]
    assert [e.seq for e in store.rollback_rows(c.actor_id, [(1, inner)])] == [3]
    assert [e.seq for e in store.rollback_rows(c.actor_id, [(3, ""), (2, inner)])] == [6, 3]
    assert store.rollback_rows(c.actor_id, []) == []


def test_controls_of_nobody(store: Store, make: Make) -> None:
    actor = make()
    assert store.destroy(actor.id)
    for verb in (store.cancel, store.pause, store.resume, store.recover, store.destroy):
        with pytest.raises(ActorNotFound):
            verb(actor.id)
    assert store.position(actor.id) is None
    assert store.get(actor.id) is None


def test_a_virtual_clock_is_every_statements_time(store: Store, worker: int, make: Make) -> None:
    real, at = store.clock, 10**15
    clock = store.clock = VirtualClock(at)
    try:
        actor = make()
        assert actor.created_at == at
        (c,), _ = store.claim(worker, TYPES, 10)
        store.send([Outgoing(c.actor_id, "q", "1", visible_at=at + 5)])
        store.commit_group([item(c, events=[("e", "1")], sends=[Outgoing(c.actor_id, "q", "2")])])
        assert store.events(c.actor_id)[0].created_at == at
        from rivet_workflows.records import Look

        (looked,) = store.look([Look(c.actor_id, ("q",))])
        assert (looked.at, [m.body for m in looked.messages]) == (at, ["2"])
        clock.advance(5)
        (looked,) = store.look([Look(c.actor_id, ("q",))])
        assert (looked.at, [m.body for m in looked.messages]) == (at + 5, ["1", "2"])
    finally:
        store.clock = real


def test_worker_verbs_inside_a_transaction_of_a_test(store: Store, worker: int, make: Make) -> None:
    with transaction.atomic():
        make()
        (c,), _ = store.claim(worker, TYPES, 10)
        bad = item(c, rows=[row(1), row(1)])
        assert [r.outcome for r in store.commit_group([bad])] == [Commit.REFUSED]
        bad.rows.pop()
        assert [r.outcome for r in store.commit_group([bad])] == [Commit.OK]
        transaction.set_rollback(True)
    assert not Run.objects.exists()


@pytest.mark.parametrize("count", [2, 50])
def test_many_messages_to_one_receiver_lie_in_their_order_with_their_wakes(
    store: Store, make: Make, count: int, django_assert_max_num_queries: Any
) -> None:
    actor = make()
    Timer.objects.all().delete()
    messages = [
        Outgoing(actor.id, f"q{n % 2}", str(n), visible_at=5_000 if n == 1 else None, max_queue_size=count)
        for n in range(count)
    ]
    with django_assert_max_num_queries(8):
        store.send_all(messages)
    assert [m.body for m in Message.objects.order_by("id")] == [str(n) for n in range(count)]
    assert Timer.objects.filter(due=5_000).count() == 1
    assert Timer.objects.count() == 2
    with pytest.raises(QueueFull, match=f"holds {count} messages"):
        store.send_all(messages)
    assert Message.objects.count() == count


def test_many_messages_to_nobody_are_refused(store: Store, make: Make) -> None:
    actor = make()
    store.destroy(actor.id)
    with pytest.raises(ActorNotFound):
        store.send_all([Outgoing(actor.id, "q", "1"), Outgoing(actor.id, "q", "2")])
    assert not Message.objects.exists()


def test_many_messages_with_keys_are_sent_once_each(store: Store, make: Make) -> None:
    actor = make()
    one = Outgoing(actor.id, "q", "1", dedupe_hash="h", dedupe_until=2**62)
    store.send_all([one, one, Outgoing(actor.id, "q", "2")])
    assert [m.body for m in Message.objects.order_by("id")] == ["1", "2"]
