"""The plans of the hot statements, whatever the statistics say: no table is ever scanned.

Queue-like tables are analysed while they are empty, and a plan made then may be kept. So the statements are
explained, and what they read is counted, in three states: never analysed; analysed empty, then grown under cached
plans; large and analysed. And on two kinds of connections: a worker's tuned one with generic plans, and any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections

from rivet_workflows.records import (
    Blocked,
    Claimed,
    CommitItem,
    Finish,
    Lifecycle,
    Look,
    Outgoing,
    Prune,
    Release,
    StateWrite,
)
from rivet_workflows.store.postgres import plans as replanning
from rivet_workflows.store.rows import live_hash
from tests.store.conftest import TYPES, item, row
from tests.store.plans import (
    SIZE,
    Recorder,
    analyze,
    fill,
    large_and_analysed,
    misses,
    never_analysed,
    queues_analysed_while_drained,
)  # fmt: skip


def analysed_empty_then_grown(store: Any) -> None:
    analyze(store)
    store.tune_connection()
    drive(store, Recorder(store, run_only=True))  # plans are made and kept now
    fill(store, 1, SIZE)


STATES = [never_analysed, analysed_empty_then_grown, large_and_analysed, queues_analysed_while_drained]


def drive(store: Any, recorder: Recorder) -> None:
    """Call every hot verb once, with every part of a commit."""
    store.fast = recorder
    try:
        claimed, _ = store.claim(9, TYPES, 20)
        claimed = (
            claimed
            or [Claimed(store.create_actor("order", "1")[0].id, "order", "1", None, 1, 5, 0, 4, "")] * 2
        )
        first, second = claimed[:2]
        store.load(9, [(c.actor_id, c.epoch) for c in claimed])
        looked = store.look(
            [Look(first.actor_id, ("q", "r"), epoch=first.epoch), Look(second.actor_id, None)]
        )
        ids = [m.id for look in looked for m in look.messages] + [1, 2, 3, 4]
        store.commit_group([item(first), item(second)])
        store.commit_group([item(first, rows=[row(5)]), item(second, rows=[row(5)])])
        store.commit_group(
            [whole(first, second, ids), item(second, sends=[Outgoing(first.actor_id, "q", "1")])]
        )
        store.commit_group([item(second, block=(Blocked.DIVERGED, "x"), destroy=False)])
        store.release(
            [Release(c.actor_id, c.epoch, due=1) for c in claimed[2:]] or [Release(first.actor_id, 9)]
        )
        store.take_over(10, 7, TYPES, 20)
        store.due_wakes_of_held(10, TYPES)
    finally:
        del store.fast


def whole(c: Claimed, other: Claimed, ids: list[int]) -> CommitItem:
    until = 10**18
    return item(
        c,
        rows=[row(6)],
        rolled_back=[(1, 5)],
        prunes=[Prune("a", "b", keep_handlers=True)],
        takes=ids[:1],
        holds=[(ids[1], 4)],
        completes=[(ids[2], "2")],
        unanswered=[ids[3]],
        sends=[Outgoing(other.actor_id, "q", "x", dedupe_hash=live_hash("a", "b"), dedupe_until=until)],
        events=[("e", "1")],
        state=StateWrite(1, "2"),
        finish=Finish(Lifecycle.FAILED, 9, error="{}"),
    )


@pytest.mark.parametrize("tuned", [True, False])
@pytest.mark.parametrize("state", STATES)
def test_no_hot_statement_scans_a_table(postgres: Any, state: Callable[[Any], None], tuned: bool) -> None:
    if tuned:
        postgres.tune_connection()
    state(postgres)
    if not tuned:
        connections["default"].close()
    elif state is analysed_empty_then_grown:
        postgres.execute("DISCARD PLANS")  # as is done by itself, see the next test
    recorder = Recorder(postgres)
    drive(postgres, recorder)
    assert len(recorder.plans) >= 13
    for sql, plan in recorder.plans:
        assert not misses(postgres, plan), f"{misses(postgres, plan)}\n{sql}\n{plan}"


@pytest.mark.parametrize("state", STATES)
def test_a_claim_of_200_among_10_000_reads_no_more_than_one_among_200(
    postgres: Any, state: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad plan reads all the others, at worst for each of them: 2,000,000 rows. Plans made while the tables were
    empty are made anew by a statement that was slow, as here each is, however fast the machine."""
    monkeypatch.setattr(replanning, "SLOW", 0.0)
    monkeypatch.setattr(replanning, "REPLAN_SOONEST", 0.0)
    postgres.tune_connection()
    state(postgres)
    claimed: list[Claimed] = []

    def claim() -> None:
        claimed[:], more = postgres.claim(9, TYPES, 200)
        assert len(claimed) == 200
        assert more

    assert min([tuples_read(postgres, claim) for _ in range(5)][1:]) < LINEAR
    commits = (lambda n=n: commit(postgres, claimed, 9 + n) for n in range(2))
    assert min(tuples_read(postgres, one) for one in commits) < LINEAR
    looks = [Look(c.actor_id, None) for c in claimed]
    assert min(tuples_read(postgres, lambda: postgres.look(looks)) for _ in range(2)) < LINEAR


#: Each row once or twice, which takes a few milliseconds, and not once for each other.
LINEAR = 10 * SIZE


def commit(store: Any, claimed: list[Claimed], seq: int) -> None:
    store.commit_group([item(c, rows=[row(seq)], inflight="{}") for c in claimed])


def tuples_read(store: Any, call: Callable[[], object]) -> int:
    """Index entries and rows that PostgreSQL has read on this connection meanwhile."""

    def so_far() -> int:
        store.query("SELECT pg_stat_force_next_flush()")
        ((tables,),) = store.query("SELECT sum(seq_tup_read) FROM pg_stat_user_tables")
        ((indexes,),) = store.query("SELECT sum(idx_tup_read) FROM pg_stat_user_indexes")
        return int(tables) + int(indexes)

    before = so_far()
    call()
    return so_far() - before


def test_no_index_of_the_run_row_has_a_column_that_a_commit_changes(postgres: Any) -> None:
    """So its updates are heap-only. (Their share cannot be asserted: any transaction of the server that is open for
    long keeps old versions from being removed, and pages full.)"""
    indexed = postgres.query(
        "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)"
        " WHERE i.indrelid = 'rivet_run'::regclass"
    )
    assert {name for (name,) in indexed} == {"actor_id", "owner_id"}
