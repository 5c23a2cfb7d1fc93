"""The commit of a group: whole or nothing per actor, whatever happens to the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError

from rivet_workflows.models import Actor, Event, History, Message, Reply, Run, Timer
from rivet_workflows.records import (
    Blocked,
    Claimed,
    Commit,
    EntryStatus,
    Finish,
    Kind,
    Lifecycle,
    Look,
    Outgoing,
    Prune,
    StateWrite,
    child_scope,
)  # fmt: skip
from rivet_workflows.store.store import Store
from tests.store.conftest import TYPES, item, row

Claims = Callable[..., list[Claimed]]


def outcomes(results: Any) -> list[Commit]:
    return [result.outcome for result in results]


def test_what_is_committed_is_loaded_as_it_was(store: Store, worker: int, claimed: Claims) -> None:
    (c,) = claimed()
    rows = [
        row(1, name='na"me\\ \x01 é', input='{"a": "b\\\\\\""}', output=None, error='{"m": "\\n"}', attempts="[]"),
        row(2, kind=Kind.LOOP, scope=child_scope("", 1, 2), occurrence=3, status=EntryStatus.FAILED, rollback="a.b"),
        row(3, done_seq=None, done_at=None, input=None, input_hash=None),
    ]  # fmt: skip
    assert outcomes(store.commit_group([item(c, rows=rows, next_seq=4, inflight='{"e":[]}')])) == [Commit.OK]
    (again,) = store.load(worker, [(c.actor_id, c.epoch)])
    assert again.entries == rows
    assert (again.commit_no, again.next_seq, again.inflight) == (1, 4, '{"e":[]}')
    assert store.history(c.actor_id) == rows
    assert store.history(c.actor_id, after_seq=1, limit=1) == rows[1:2]


def test_a_stale_epoch_and_a_repeated_commit_write_nothing(store: Store, claimed: Claims) -> None:
    one, two, three = claimed(3)
    first = item(one, rows=[row(1)])
    assert outcomes(store.commit_group([first])) == [Commit.OK]
    stale = item(two, rows=[row(1)], events=[("e", "1")], sends=[Outgoing(one.actor_id, "q", "1")])
    stale.epoch -= 1
    good = item(three, rows=[row(1)])
    assert outcomes(store.commit_group([first, stale, good])) == [Commit.STALE, Commit.STALE, Commit.OK]
    assert History.objects.count() == 2
    assert Event.objects.count() == Message.objects.count() == 0


def test_a_bad_row_is_refused_alone(store: Store, claimed: Claims) -> None:
    group = [item(c, rows=[row(1)]) for c in claimed(7)]
    group[4].rows.append(row(1))
    results = store.commit_group(group)
    assert outcomes(results) == [Commit.OK] * 4 + [Commit.REFUSED] + [Commit.OK] * 2
    assert results[4].error
    assert History.objects.count() == 6


def test_a_lone_surrogate_is_refused_alone(store: Store, claimed: Claims) -> None:
    group = [item(c, inflight="x") for c in claimed(3)]
    group[1].inflight = "\ud800"
    assert outcomes(store.commit_group(group)) == [Commit.OK, Commit.REFUSED, Commit.OK]


def test_a_message_that_is_gone_refuses_its_taker_alone(store: Store, claimed: Claims) -> None:
    one, two = claimed(2)
    sent = [store.send([Outgoing(c.actor_id, "q", "1")])[0].id for c in (one, two)]
    results = store.commit_group(
        [item(one, takes=[sent[0]]), item(two, takes=[sent[1], 10**9], rows=[row(1)])]
    )
    assert outcomes(results) == [Commit.OK, Commit.REFUSED]
    assert list(Message.objects.values_list("id", flat=True)) == [sent[1]]
    assert not History.objects.exists()
    results = store.commit_group([item(one, holds=[(sent[0], 1)])])
    assert outcomes(results) == [Commit.REFUSED]


def test_another_actors_message_cannot_be_taken(store: Store, claimed: Claims) -> None:
    one, two = claimed(2)
    (sent,) = store.send([Outgoing(one.actor_id, "q", "1")])
    assert outcomes(store.commit_group([item(two, takes=[sent.id])])) == [Commit.REFUSED]


def test_holding_completing_and_answering(store: Store, claimed: Claims) -> None:
    (c,) = claimed()
    a, b, d, e = (
        s.id for s in store.send([Outgoing(c.actor_id, "q", str(n), wants_reply=n != 1) for n in range(4)])
    )
    look = Look(c.actor_id, ("q",))
    store.commit_group([item(c, holds=[(a, 7), (b, 8)])])
    assert [m.id for m in store.look([look])[0].messages] == [d, e]
    store.commit_group([item(c, unholds=[b])])
    assert [m.id for m in store.look([look])[0].messages] == [b, d, e]
    results = store.commit_group(
        [
            item(
                c,
                completes=[(a, '"yes"'), (b, '"unasked"'), (10**9, '"gone"')],
                takes=[d],
                unanswered=[d, 12345],
            )
        ]
    )
    assert outcomes(results) == [Commit.OK]
    assert store.reply(a) == ("completed", '"yes"')
    assert store.reply(d) == ("failed", None)
    assert store.reply(b) is None
    assert [m.id for m in store.look([look])[0].messages] == [e]
    # Taken and answered in one commit, and answered again: the answer stands.
    store.commit_group([item(c, holds=[(e, 9)], completes=[(e, "1")])])
    store.commit_group([item(c, unanswered=[e, a])])
    assert store.reply(e) == ("completed", "1")
    assert store.reply(a) == ("completed", '"yes"')
    assert Reply.objects.count() == 4
    assert not Message.objects.exists()


def test_sends_arrive_in_order_once_per_key_and_wake(store: Store, claimed: Claims) -> None:
    one, two = claimed(2)
    until = store.clock.now() + 10**9
    sends = [
        Outgoing(two.actor_id, "q", "1"),
        Outgoing(two.actor_id, "q", "2", dedupe_hash="k", dedupe_until=until),
        Outgoing(two.actor_id, "q", "3", dedupe_hash="k", dedupe_until=until),
        Outgoing(two.actor_id, "q", "4"),
        Outgoing(one.actor_id, "p", "5"),
    ]
    assert outcomes(store.commit_group([item(one, sends=sends)])) == [Commit.OK]
    store.commit_group([item(two, sends=sends[1:2])])
    (looked,) = store.look([Look(two.actor_id, ("q",))])
    assert [m.body for m in looked.messages] == ["1", "2", "4"]
    assert Timer.objects.filter(actor_id=one.actor_id).count() == 1
    assert Timer.objects.filter(actor_id=two.actor_id).count() == 0
    store.commit_group([item(one, sends=[Outgoing(two.actor_id, "q", "6", visible_at=until)])])
    assert [m.body for m in store.look([Look(two.actor_id, ("q",))])[0].messages] == ["1", "2", "4"]
    assert Timer.objects.get(actor_id=two.actor_id).due == until


def test_a_send_to_a_destroyed_actor_is_dropped(store: Store, claimed: Claims) -> None:
    one, two = claimed(2)
    store.destroy(two.actor_id)
    assert outcomes(store.commit_group([item(one, sends=[Outgoing(two.actor_id, "q", "1")])])) == [Commit.OK]
    assert not Message.objects.exists()


def test_an_expired_key_is_free_again(store: Store, claimed: Claims) -> None:
    (c,) = claimed()
    now = store.clock.now()
    for until, count in ((now - 1, 1), (now + 10**9, 2), (now + 10**9, 2)):
        key = Outgoing(c.actor_id, "q", "1", dedupe_hash="k", dedupe_until=until)
        assert outcomes(store.commit_group([item(c, sends=[key])])) == [Commit.OK]
        assert Message.objects.count() == count


def test_events_are_numbered_across_commits(store: Store, claimed: Claims) -> None:
    one, two = claimed(2)
    store.commit_group([item(one, events=[("a", "1"), ("b", "2")]), item(two, events=[("c", "3")])])
    store.commit_group([item(one, events=[("d", "4")])])
    assert store.add_events(one.actor_id, [("e", "5"), ("f", "6")]) == 4
    assert [(e.seq, e.name, e.payload) for e in store.events(one.actor_id)] == [
        (1, "a", "1"), (2, "b", "2"), (3, "d", "4"), (4, "e", "5"), (5, "f", "6"),
    ]  # fmt: skip
    assert [e.seq for e in store.events(one.actor_id, after=3, limit=1)] == [4]


def test_a_state_is_written_only_over_the_version_it_was_made_from(store: Store, claimed: Claims) -> None:
    one, two = claimed(2, state='{"n":0}')
    assert store.load_state(one.actor_id) == (1, '{"n":0}')
    group = [item(one, state=StateWrite(1, '{"n":1}')), item(two, rows=[row(1)])]
    assert outcomes(store.commit_group(group)) == [Commit.OK, Commit.OK]
    assert store.load_state(one.actor_id) == (2, '{"n":1}')
    assert store.save_state(one.actor_id, 2, '{"n":2}')
    assert not store.save_state(one.actor_id, 2, '{"n":3}')
    group = [item(one, state=StateWrite(2, '{"n":9}'), rows=[row(1)]), item(two, state=StateWrite(1, "5"))]
    assert outcomes(store.commit_group(group)) == [Commit.CONFLICT, Commit.OK]
    assert store.load_state(one.actor_id) == (3, '{"n":2}')
    assert store.history(one.actor_id) == []


def test_pruning_takes_a_range_of_scopes_and_leaves_handlers(store: Store, claimed: Claims) -> None:
    (c,) = claimed()
    inside, deeper = child_scope("", 1, 3), child_scope(child_scope("", 1, 3), 5, 0)
    rows = [
        row(1, kind=Kind.LOOP),
        row(2, scope=inside),
        row(5, scope=inside, rollback="x.y"),
        row(6, scope=deeper),
        row(7, scope=child_scope("", 1, 4)),
    ]
    store.commit_group([item(c, rows=rows)])
    prune = Prune(child_scope("", 1, 0), child_scope("", 1, 4), keep_handlers=True)
    store.commit_group([item(c, prunes=[prune], rows=[row(8, scope=inside), row(9)])])
    assert [e.seq for e in store.history(c.actor_id)] == [1, 5, 7, 9]
    store.commit_group([item(c, rolled_back=[(5, 77), (10, 78)], rows=[row(10, rollback="z")])])
    assert [e.rolled_back_at for e in store.history(c.actor_id)] == [None, 77, None, None, 78]
    store.commit_group([item(c, prunes=[prune])])
    assert [e.seq for e in store.history(c.actor_id)] == [1, 7, 9, 10]


def test_a_finished_run_is_over(store: Store, worker: int, claimed: Claims) -> None:
    one, two = claimed(2)
    finish = Finish(Lifecycle.COMPLETED, 42, output='"done"')
    assert outcomes(store.commit_group([item(one, finish=finish), item(two)])) == [Commit.OK] * 2
    actor = store.get(one.actor_id)
    assert actor is not None
    assert (actor.lifecycle, actor.output, actor.finished_at) == (Lifecycle.COMPLETED, '"done"', 42)
    run = Run.objects.get(actor_id=one.actor_id)
    assert (run.owner_id, run.blocked) == (None, Blocked.OVER)
    store.send([Outgoing(one.actor_id, "q", "1")])
    assert store.claim(worker, TYPES, 10) == ([], False)
    assert not Timer.objects.filter(actor_id=one.actor_id).exists()
    assert outcomes(store.commit_group([item(two)])) == [Commit.OK]


def test_a_diverged_actor_waits_for_other_code(store: Store, worker: int, claimed: Claims) -> None:
    (c,) = claimed()
    store.commit_group([item(c, block=(Blocked.DIVERGED, "code-1"), rows=[row(1)])])
    assert Actor.objects.get(id=c.actor_id).lifecycle == Lifecycle.SET_ASIDE
    assert store.wake_diverged(TYPES) == 0
    store.send([Outgoing(c.actor_id, "q", "1")])
    assert store.claim(worker, TYPES, 10) == ([], False)
    assert store.wake_diverged({"order": "code-2"}) == 1
    assert store.wake_diverged({"order": "code-2"}) == 0
    (again,), _ = store.claim(worker, {"order": "code-2"}, 10)
    assert again.epoch == c.epoch + 1
    assert Actor.objects.get(id=c.actor_id).lifecycle == Lifecycle.LIVE
    assert Run.objects.get(actor_id=c.actor_id).blocked == Blocked.NO


def test_a_step_may_destroy_its_actor(store: Store, claimed: Claims) -> None:
    (c,) = claimed()
    store.commit_group([item(c, destroy=True, finish=Finish(Lifecycle.COMPLETED, 5, output="1"))])
    assert store.get(c.actor_id) is None
    assert store.find(c.name, c.key) is None
    assert store.create_actor(c.name, c.key)[1]


@pytest.mark.parametrize("applied", [True, False])
def test_an_unknown_outcome_is_resolved(store: Store, worker: int, claimed: Claims, applied: bool) -> None:
    one, two = claimed(2)
    group = [item(one, rows=[row(1)]), item(two, rows=[row(1)])]
    if applied:
        store.commit_group(group)
    assert outcomes(store.resolve(group)) == [Commit.OK if applied else Commit.BUSY] * 2
    other = store.register_worker("other", 2, TYPES)
    store.take_over(other, worker, TYPES, 10)
    assert outcomes(store.resolve(group)) == [Commit.STALE] * 2


class Ended(Exception):
    """What a driver raises where the database ended a transaction for the sake of another."""

    sqlstate = "40P01"


def test_a_group_that_a_deadlock_ended_is_committed_again_and_counted(
    store: Store, claimed: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    (c,) = claimed()
    name = "_run" if store.vendor == "postgresql" else "_commit"
    commit, ended = getattr(store, name), [Ended(), Ended()]

    def cut_off(*args: Any) -> Any:
        if ended:
            raise OperationalError("deadlock detected") from ended.pop()
        return commit(*args)

    monkeypatch.setattr(store, name, cut_off)
    before = store.repeated
    assert outcomes(store.commit_group([item(c, rows=[row(1)])])) == [Commit.OK]
    assert store.repeated == before + 2
    assert store.history(c.actor_id) == [row(1)]


def test_everything_at_once(store: Store, claimed: Claims) -> None:
    one, two = claimed(2, state="1")
    sent = [s.id for s in store.send([Outgoing(one.actor_id, "q", "1", wants_reply=True)] * 3)]
    whole = item(
        one,
        rows=[row(2)],
        rolled_back=[(1, 5)],
        prunes=[Prune("a", "b")],
        takes=sent[:1],
        holds=[(sent[1], 4)],
        completes=[(sent[2], "2")],
        unanswered=sent[:1],
        sends=[
            Outgoing(two.actor_id, "q", "x"),
            Outgoing(two.actor_id, "q", "y", dedupe_hash="h", dedupe_until=1),
        ],
        events=[("e", "1")],
        state=StateWrite(1, "2"),
        finish=Finish(Lifecycle.FAILED, 9, error="{}"),
    )
    stale = item(two, rows=[row(1)], takes=[10**9], events=[("e", "1")], state=StateWrite(1, "7"))
    stale.epoch = 99
    assert outcomes(store.commit_group([whole, stale])) == [Commit.OK, Commit.STALE]
    assert store.load_state(two.actor_id) == (1, "1")
    assert store.load_state(one.actor_id) == (2, "2")
    assert store.queue_size(two.actor_id) == 2
    assert [m.id for m in store.messages(one.actor_id)] == [sent[1]]
