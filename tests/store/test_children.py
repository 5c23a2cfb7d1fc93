"""Waiting for the end of another actor's run: the end wakes, whoever was first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rivet_workflows.models import Timer, Waiter
from rivet_workflows.records import Claimed, Commit, Finish, Lifecycle, Look
from rivet_workflows.store.store import Store
from tests.store.conftest import item

Claims = Callable[..., list[Claimed]]


def wakes(actor_id: Any) -> int:
    return Timer.objects.filter(actor_id=actor_id).count()


def test_the_commit_that_ends_a_child_wakes_who_waits_for_it(store: Store, claimed: Claims) -> None:
    parent, child, other = claimed(3)
    assert store.watch(parent.actor_id, child.actor_id) is None
    assert store.watch(parent.actor_id, child.actor_id) is None, "once more changes nothing"
    (result,) = store.commit_group([item(other, finish=Finish(Lifecycle.COMPLETED, 5, "1"))])
    assert result.outcome is Commit.OK
    assert wakes(parent.actor_id) == 0
    (result,) = store.commit_group([item(child, finish=Finish(Lifecycle.COMPLETED, 5, "2"))])
    assert result.outcome is Commit.OK
    assert wakes(parent.actor_id) == 1
    assert not Waiter.objects.exists()
    assert store.endings([child.actor_id, parent.actor_id])[child.actor_id].output == "2"
    assert parent.actor_id not in store.endings([parent.actor_id])


def test_who_comes_after_the_end_is_told_it(store: Store, claimed: Claims) -> None:
    parent, child = claimed(2)
    store.commit_group([item(child, finish=Finish(Lifecycle.FAILED, 5, error='{"x":1}'))])
    ended = store.watch(parent.actor_id, child.actor_id)
    assert ended is not None
    assert (ended.lifecycle, ended.error, ended.gone) == (Lifecycle.FAILED, '{"x":1}', False)
    assert not Waiter.objects.exists()


def test_a_child_that_is_cancelled_or_destroyed_wakes_who_waits(store: Store, claimed: Claims) -> None:
    parent, cancelled, destroyed = claimed(3)
    store.watch(parent.actor_id, cancelled.actor_id)
    store.watch(parent.actor_id, destroyed.actor_id)
    store.cancel(cancelled.actor_id)
    assert wakes(parent.actor_id) == 1
    store.destroy(destroyed.actor_id)
    assert wakes(parent.actor_id) == 2
    ends = store.endings([cancelled.actor_id, destroyed.actor_id])
    assert ends[cancelled.actor_id].lifecycle is Lifecycle.CANCELLED
    assert ends[destroyed.actor_id].gone


def test_a_child_that_ended_and_runs_again_wakes_who_waits_when_it_ends_again(
    store: Store, claimed: Claims
) -> None:
    """Its first end has woken the parent and forgotten it; the parent looks when the child is alive again."""
    parent, child = claimed(2)
    store.watch(parent.actor_id, child.actor_id)
    store.cancel(child.actor_id)
    store.recover(child.actor_id)
    store.look([Look(parent.actor_id, ())])
    assert store.read_ends(parent.actor_id, [child.actor_id]) == {}
    store.cancel(child.actor_id)
    run = store.position(parent.actor_id)
    assert run is not None
    assert run.wake_at is not None
    assert store.read_ends(parent.actor_id, [child.actor_id])[child.actor_id].lifecycle is Lifecycle.CANCELLED


def test_registering_changes_the_childs_row(store: Store, claimed: Claims) -> None:
    """A group that began before it would else end the child without seeing who waits."""
    if store.vendor != "postgresql":
        pytest.skip("one writer, or one statement after the other")
    parent, child = claimed(2)
    version = "SELECT xmin FROM rivet_run WHERE actor_id = %s"
    before = store.query(version, [child.actor_id])
    store.watch(parent.actor_id, child.actor_id)
    assert store.query(version, [child.actor_id]) != before
