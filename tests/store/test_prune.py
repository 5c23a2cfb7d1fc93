"""What goes, when, and in which portions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from rivet_workflows.models import (
    Actor,
    Dedupe,
    Event,
    Fire,
    History,
    Message,
    Reply,
    Run,
    Schedule,
    State,
    Timer,
)  # fmt: skip
from rivet_workflows.records import Claimed, Finish, Lifecycle, Outgoing
from rivet_workflows.store.prune import DAY, GRACE, RETENTION
from rivet_workflows.store.store import Store
from tests.store.conftest import item, row

Claims = Callable[..., list[Claimed]]


def finish(store: Store, c: Claimed, at: int) -> None:
    (sent,) = store.send([Outgoing(c.actor_id, "q", "1", wants_reply=True)])
    store.send([Outgoing(c.actor_id, "q", "2", dedupe_hash="k", dedupe_until=at + DAY)])
    store.commit_group(
        [
            item(
                c,
                rows=[row(n) for n in range(1, 6)],
                events=[("e", "1")],
                unanswered=[sent.id],
                finish=Finish(Lifecycle.COMPLETED, at, output="1"),
            )
        ]
    )


def test_d_25_an_ended_actor_keeps_its_row_alone(store: Store, claimed: Claims) -> None:
    one, two = claimed(2)
    now = store.clock.now()
    finish(store, one, now - RETENTION - 1)
    finish(store, two, now)
    while store.prune(now, 3):
        pass
    assert set(History.objects.values_list("actor_id", flat=True)) == {two.actor_id}
    assert set(Message.objects.values_list("actor_id", flat=True)) == {two.actor_id}
    assert set(Event.objects.values_list("actor_id", flat=True)) == {two.actor_id}
    actor = store.get(one.actor_id)
    assert actor is not None
    assert actor.output == "1"
    assert Dedupe.objects.count() == 1
    assert Reply.objects.count() == 2
    assert store.prune(now + RETENTION - 5) > 0
    assert not Dedupe.objects.exists()
    assert not Reply.objects.exists()
    assert History.objects.count() == 5


def test_a_recovered_actor_is_not_pruned(store: Store, claimed: Claims) -> None:
    (c,) = claimed()
    now = store.clock.now()
    finish(store, c, now - RETENTION - 1)
    store.recover(c.actor_id)
    store.prune(now)
    assert History.objects.count() == 5


def test_a_destroyed_actor_goes_in_portions_its_row_last(store: Store, claimed: Claims) -> None:
    one, two = claimed(2)
    now = store.clock.now()
    finish(store, one, now)
    Schedule.objects.create(id=uuid4(), type_id=1, actor_id=one.actor_id, kind=1, action="a")
    Fire.objects.create(actor_id=one.actor_id, name="a", scheduled_at=1, fired_at=1, result=1)
    store.destroy(one.actor_id)
    portions = 0
    while store.prune(now, 2):
        portions += 1
    assert portions > 4
    assert Run.objects.count() == Actor.objects.count() == 2
    for model in (History, Message, Event, Timer, Schedule, Fire, Dedupe):
        assert not model.objects.exists(), model
    assert State.objects.count() == 1
    # Late, from a long transaction: still found.
    Message.objects.create(actor_id=one.actor_id, queue="q", body="1", sent_at=1, visible_at=1)
    while store.prune(now + 2 * GRACE, 2):
        pass
    assert [a.id for a in Actor.objects.all()] == [two.actor_id]
    assert not Message.objects.exists()
    assert Run.objects.count() == 1


def test_d_25_a_type_may_have_its_finished_actors_deleted(store: Store, claimed: Claims) -> None:
    one, two = claimed(2)
    now = store.clock.now()
    finish(store, one, now - 2 * DAY)
    finish(store, two, now)
    rest: dict[str, Any] = {"delete_after": {"order": DAY}}
    while store.prune(now, **rest):
        pass
    assert store.get(one.actor_id) is None
    assert store.get(two.actor_id) is not None
    assert store.create_actor("order", one.key)[1]
