"""Taking up, taking over, reading again and giving back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from rivet_workflows.models import History, Run, Timer
from rivet_workflows.records import Claimed, Commit, Look, Outgoing, Release, TimerKind
from rivet_workflows.store.errors import WorkerForgotten
from rivet_workflows.store.rows import type_id
from rivet_workflows.store.store import Store
from tests.store.conftest import TYPES, item, row

Claims = Callable[..., list[Claimed]]
Make = Callable[..., Any]


def test_a_new_actor_is_claimed_whole_and_once(store: Store, worker: int, make: Make) -> None:
    actor = make(input='{"n":1}', state="5")
    (c,), more = store.claim(worker, TYPES, 10)
    assert not more
    assert (c.actor_id, c.name, c.key, c.input) == (actor.id, "order", actor.key, '{"n":1}')
    assert (c.created_at, c.epoch, c.commit_no, c.next_seq, c.inflight) == (actor.created_at, 1, 0, 1, "")
    assert store.claim(worker, TYPES, 10) == ([], False)
    assert not Timer.objects.exists()
    run = Run.objects.get()
    assert (run.owner_id, run.code) == (worker, "code-1")


def test_other_types_are_left_alone(store: Store, worker: int, make: Make) -> None:
    make("invoice")
    assert store.claim(worker, TYPES, 10) == ([], False)
    assert Timer.objects.count() == 1
    assert store.claim(worker, {}, 10) == ([], False)


def test_a_plain_actor_is_never_claimed(store: Store, worker: int, make: Make) -> None:
    actor = make(runs=False)
    assert not Timer.objects.exists()
    store.send([Outgoing(actor.id, "q", "1")])
    assert store.claim(worker, TYPES, 10) == ([], False)
    assert not Timer.objects.exists()


def test_wakes_of_held_actors_do_not_clog_the_head(
    store: Store, worker: int, claimed: Claims, make: Make
) -> None:
    for c in claimed(5):
        store.send([Outgoing(c.actor_id, "q", "1")])
    actor = make()
    other = store.register_worker("b", 2, TYPES)
    got, more = store.claim(other, TYPES, 1)
    assert [c.actor_id for c in got] == [actor.id]
    assert more
    assert store.claim(other, TYPES, 1) == ([], False)
    assert len(store.due_wakes_of_held(worker, TYPES)) == 5
    assert store.due_wakes_of_held(other, TYPES) == []


def test_a_claim_goes_on_while_candidates_fill_the_limit(store: Store, worker: int, make: Make) -> None:
    ids = set()
    for _ in range(5):
        over = make(runs=False)
        store.send([Outgoing(over.id, "q", "1")])
    for _ in range(5):
        ids.add(make().id)
    got, more, rounds = [], True, 0
    while more:
        some, more = store.claim(worker, TYPES, 2)
        got += some
        rounds += 1
        assert rounds < 20
    assert {c.actor_id for c in got} == ids


def test_a_wake_of_a_reaped_actor_is_dropped(store: Store, worker: int, make: Make) -> None:
    actor = make()
    Run.objects.filter(actor_id=actor.id).delete()
    assert store.claim(worker, TYPES, 10) == ([], False)
    assert not Timer.objects.exists()


def test_release_sets_one_wake_and_the_next_claim_clears_it(
    store: Store, worker: int, claimed: Claims
) -> None:
    (c,) = claimed()
    due = store.clock.now() + 10**9
    for n in range(3):
        results = store.release([Release(c.actor_id, c.epoch, due=due, inflight=f'"{n}"')])
        assert [r.outcome for r in results] == [Commit.OK]
        assert [r.outcome for r in store.release([Release(c.actor_id, c.epoch)])] == [Commit.STALE]
        timer = Timer.objects.get()
        assert (timer.kind, timer.due) == (TimerKind.DEADLINE, due)
        assert store.claim(worker, TYPES, 10) == ([], False)
        assert store.next_wake(TYPES) == due
        store.send([Outgoing(c.actor_id, "q", "1")])
        (c,), _ = store.claim(worker, TYPES, 10)
        assert c.inflight == f'"{n}"'
        assert not Timer.objects.exists()
    assert store.next_wake(TYPES) is None


def test_a_released_holder_is_fenced(store: Store, worker: int, claimed: Claims) -> None:
    (c,) = claimed()
    store.release([Release(c.actor_id, c.epoch)])
    assert [r.outcome for r in store.commit_group([item(c)])] == [Commit.STALE]


def test_a_delayed_message_survives_claims(store: Store, worker: int, claimed: Claims) -> None:
    (c,) = claimed()
    due = store.clock.now() + 10**9
    store.send([Outgoing(c.actor_id, "q", "1", visible_at=due), Outgoing(c.actor_id, "q", "2")])
    store.release([Release(c.actor_id, c.epoch)])
    (c,), _ = store.claim(worker, TYPES, 10)
    assert [m.body for m in store.look([Look(c.actor_id, None)])[0].messages] == ["2"]
    assert Timer.objects.get().due == due


def test_take_over_fences_the_dead(store: Store, worker: int, claimed: Claims) -> None:
    dead = claimed(5)
    store.commit_group([item(c, rows=[row(1)], next_seq=2, inflight="x") for c in dead])
    heir = store.register_worker("b", 2, TYPES)
    assert store.take_over(heir, worker, {"invoice": "1"}, 10) == []
    first = store.take_over(heir, worker, TYPES, 3)
    second = store.take_over(heir, worker, TYPES, 3)
    assert store.take_over(heir, worker, TYPES, 3) == []
    taken = sorted(first + second, key=lambda c: c.actor_id)
    assert [(c.actor_id, c.epoch, c.commit_no) for c in taken] == [(c.actor_id, 2, 1) for c in dead]
    assert all(len(c.entries) == 1 and c.inflight == "x" for c in taken)
    assert {r.outcome for r in store.commit_group([item(c) for c in dead])} == {Commit.STALE}
    assert store.held(worker) == {}
    assert store.held(heir) == {c.actor_id: 2 for c in dead}


def test_a_worker_that_runs_no_types_takes_nothing_and_goes_on(
    store: Store, worker: int, claimed: Claims
) -> None:
    (one,) = claimed()
    other = store.register_worker("b", 2, {})
    assert store.claim(other, {}, 10) == ([], False)
    assert store.take_over(other, worker, {}, 10) == []
    assert store.due_wakes_of_held(other, {}) == []
    assert not store.wanted(other, [], 10)
    assert store.held(worker) == {one.actor_id: one.epoch}


def test_heartbeats_and_the_dead(store: Store, worker: int) -> None:
    now = store.heartbeat(worker)
    assert abs(now - store.clock.now()) < 10_000_000
    assert store.dead_workers(10**9) == []
    assert store.dead_workers(-(10**9)) == [worker]
    assert store.live_codes() == {"order": {"code-1"}}
    store.drain(worker)
    assert store.live_codes() == {}
    assert store.forget_worker(worker)
    with pytest.raises(WorkerForgotten):
        store.heartbeat(worker)


def test_what_a_forgotten_worker_held_is_free(store: Store, worker: int, claimed: Claims) -> None:
    ids = {c.actor_id for c in claimed(5)}
    assert store.forget_worker(worker, batch=2)
    other = store.register_worker("b", 2, TYPES)
    got, _ = store.claim(other, TYPES, 10)
    assert {(c.actor_id, c.epoch) for c in got} == {(i, 3) for i in ids}


def test_load_reads_only_what_is_still_held(store: Store, worker: int, claimed: Claims) -> None:
    one, two = claimed(2)
    store.pause(two.actor_id)
    held = [(one.actor_id, one.epoch), (two.actor_id, two.epoch)]
    assert [c.actor_id for c in store.load(worker, held)] == [one.actor_id]
    assert store.load(worker + 1, held) == []
    assert store.load(worker, []) == []


def test_one_unreadable_actor_harms_no_other(store: Store, worker: int, claimed: Claims) -> None:
    both = claimed(2)
    store.commit_group([item(c, rows=[row(1)], next_seq=2) for c in both])
    History.objects.filter(actor_id=both[0].actor_id).update(kind=99)
    got = store.load(worker, [(c.actor_id, c.epoch) for c in both])
    assert [bool(c.unreadable) for c in sorted(got, key=lambda c: c.actor_id)] == [True, False]


def test_a_newer_format_is_left_to_newer_workers(store: Store, worker: int, make: Make) -> None:
    actor = make()
    Run.objects.filter(actor_id=actor.id).update(format=store.format + 1)
    assert store.claim(worker, TYPES, 10) == ([], False)
    assert Timer.objects.count() == 1


def test_type_numbers_fit_a_bigint_and_differ() -> None:
    numbers = {type_id(f"actor_{n}") for n in range(10_000)}
    assert len(numbers) == 10_000
    assert all(0 < n < 2**63 for n in numbers)


def test_a_claim_is_flushed_before_anybody_acts_on_it(store: Store, worker: int, make: Make) -> None:
    """Were it undone by a crash of the server, the next claimer would get the same epoch, and both might commit."""
    if store.vendor != "postgresql":
        pytest.skip("elsewhere there is no other way")
    make()
    seen: list[tuple[str, str]] = []
    fast = store.fast  # type: ignore[attr-defined]

    def noted(sql: str, *values: Any) -> Any:
        rows = fast(sql, *values)
        seen.append((sql, store.query("SHOW synchronous_commit")[0][0]))
        return rows

    store.fast = noted  # type: ignore[attr-defined]
    try:
        with store.atomic():  # what a statement sets for its transaction is to be seen after it
            assert store.claim(worker, TYPES, 10)[0]
            store.look([Look(UUID(int=1), None)])
    finally:
        del store.fast  # type: ignore[attr-defined]
    assert [how for _, how in seen] == ["on", "off"]
