"""Reading queues: order of arrival across queues, bounded, nothing lost between "none there" and "waiting"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rivet_workflows.models import Timer
from rivet_workflows.records import Claimed, Look, Outgoing, Release
from rivet_workflows.store.store import Store

Claims = Callable[..., list[Claimed]]


def bodies(looked: Any) -> list[str]:
    return [message.body for message in looked.messages]


def test_queues_are_merged_by_arrival(store: Store, claimed: Claims) -> None:
    (c,) = claimed()
    store.send([Outgoing(c.actor_id, name, str(n)) for n, name in enumerate(["a", "b", "a", "c", "b"])])
    looks = [
        Look(c.actor_id, ("a", "b")),
        Look(c.actor_id, None),
        Look(c.actor_id, ("none",)),
        Look(c.actor_id, ()),
    ]
    ab, every, none, empty = store.look(looks)
    assert bodies(ab) == ["0", "1", "2", "4"]
    assert bodies(every) == ["0", "1", "2", "3", "4"]
    assert bodies(none) == bodies(empty) == []
    assert ab.complete
    assert every.complete
    assert none.complete
    assert abs(every.at - store.clock.now()) < 10_000_000
    assert [m.queue for m in every.messages] == ["a", "b", "a", "c", "b"]


def test_names_are_told_apart_by_case(store: Store, claimed: Claims) -> None:
    (c,) = claimed()
    store.send(
        [
            Outgoing(c.actor_id, "Work", "1"),
            Outgoing(c.actor_id, "work", "2"),
            Outgoing(c.actor_id, "wörk", "3"),
        ]
    )
    assert bodies(store.look([Look(c.actor_id, ("work",))])[0]) == ["2"]
    assert bodies(store.look([Look(c.actor_id, None)])[0]) == ["1", "2", "3"]


def test_a_truncated_queue_cuts_the_others_at_its_horizon(store: Store, claimed: Claims) -> None:
    (c,) = claimed()
    store.send([Outgoing(c.actor_id, "a" if n < 6 else "b", str(n)) for n in range(8)])
    (looked,) = store.look([Look(c.actor_id, ("a", "b"), limit=3)])
    assert bodies(looked) == ["0", "1", "2"]
    assert not looked.complete
    (looked,) = store.look([Look(c.actor_id, None, limit=100)])
    assert looked.complete


def test_wakes_go_with_the_look_and_only_those_due(store: Store, claimed: Claims) -> None:
    one, two = claimed(2)
    later = store.clock.now() + 10**9
    store.send([Outgoing(one.actor_id, "q", "1"), Outgoing(one.actor_id, "q", "2", visible_at=later)])
    store.send([Outgoing(two.actor_id, "q", "3")])
    assert bodies(store.look([Look(one.actor_id, ("q",))])[0]) == ["1"]
    assert set(Timer.objects.values_list("actor_id", "due")) >= {(one.actor_id, later)}
    assert Timer.objects.filter(actor_id=one.actor_id).count() == 1
    assert Timer.objects.filter(actor_id=two.actor_id).count() == 1


def test_a_look_for_no_queue_takes_the_wakes_away_and_nothing_else(store: Store, claimed: Claims) -> None:
    one, two = claimed(2)
    store.send([Outgoing(one.actor_id, "q", "1")])
    looks = [Look(one.actor_id, (), 0, one.epoch), Look(two.actor_id, ("q",), epoch=two.epoch)]
    assert [bodies(looked) for looked in store.look(looks)] == [[], []]
    assert not Timer.objects.filter(actor_id=one.actor_id).exists()
    assert bodies(store.look([Look(one.actor_id, ("q",))])[0]) == ["1"]


def test_many_queues_of_one_actor(store: Store, claimed: Claims) -> None:
    (c,) = claimed()
    store.send([Outgoing(c.actor_id, f"q{n % 40}", str(n)) for n in range(120)])
    (looked,) = store.look([Look(c.actor_id, None)])
    assert bodies(looked) == [str(n) for n in range(120)]
    assert looked.complete


def test_a_holder_that_has_lost_the_actor_does_not_take_away_the_wakes_of_the_next(
    store: Store, worker: int, claimed: Claims
) -> None:
    (c,) = claimed()
    store.release([Release(c.actor_id, c.epoch)])
    store.send([Outgoing(c.actor_id, "q", "1")])
    (looked,) = store.look([Look(c.actor_id, ("q",), epoch=c.epoch)])
    assert bodies(looked) == ["1"]
    taken, _ = store.claim(worker, {"order": "code-1"}, 10)
    assert [one.actor_id for one in taken] == [c.actor_id]


def test_an_actor_claimed_under_a_forgotten_id_is_found(store: Store, worker: int, claimed: Claims) -> None:
    store.forget_worker(worker)
    (c,) = claimed()
    assert store.dead_workers(10**12) == [worker]
    other = store.register_worker("host", 2, {"order": "code-1"})
    assert [one.actor_id for one in store.take_over(other, worker, {"order": "code-1"}, 10)] == [c.actor_id]
