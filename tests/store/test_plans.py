"""The plans of the hot statements, whatever the statistics say: no table is ever scanned.

Queue-like tables are analysed while they are empty, and a plan made then may be kept. So the statements are
explained and timed in three states: never analysed; analysed empty, then grown under cached plans; large and
analysed. And on two kinds of connections: a worker's tuned one with generic plans, and any other.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
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
)  # fmt: skip
from rivet_workflows.store.rows import live_hash, type_id
from rivet_workflows.store.store import Store
from tests.store.conftest import TYPES, item, row

SIZE = 10_000
_TABLES = [
    "rivet_actor",
    "rivet_run",
    "rivet_state",
    "rivet_timer",
    "rivet_message",
    "rivet_history",
    "rivet_reply",
    "rivet_dedupe",
]


@pytest.fixture
def postgres(store: Store) -> Iterator[Any]:
    if store.vendor != "postgresql":
        pytest.skip("plans of PostgreSQL")
    connections["default"].close()
    yield store
    connections["default"].close()


def fill(store: Any, first: int, last: int) -> None:
    """Actors in bulk, each with a state, a wake, three entries and two messages; every other one is held."""
    numbers = f"generate_series({first}, {last}) n"
    actor = "('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid"
    kind = type_id("order")
    store.execute("SET synchronous_commit = off")
    for sql in (
        "INSERT INTO rivet_actor (id, name, key, live_hash, lifecycle, created_at, labels)"
        f" SELECT {actor}, 'order', n::text, md5(n::text), 1, 1, '' FROM {numbers}",
        "INSERT INTO rivet_run (actor_id, type_id, owner_id, epoch, commit_no, next_seq, event_seq, inflight, blocked,"
        f" blocked_code, code, format) SELECT {actor}, {kind}, CASE WHEN n %% 2 = 0 THEN 7 END, 1, 0, 4, 0, '', 0,"
        f" '', '', 1 FROM {numbers}",
        f"INSERT INTO rivet_state (actor_id, version, body) SELECT {actor}, 1, '1' FROM {numbers}",
        f"INSERT INTO rivet_timer (type_id, actor_id, kind, due, priority) SELECT {kind}, {actor}, 1, n, 0"
        f" FROM {numbers}",
        "INSERT INTO rivet_history (actor_id, seq, scope, name, kind, occurrence, status, started_at)"
        f" SELECT {actor}, s, '', 'x', 1, 1, 3, 1 FROM {numbers}, generate_series(1, 3) s",
        "INSERT INTO rivet_message (actor_id, queue, body, sent_at, visible_at, wants_reply)"
        f" SELECT {actor}, 'q', '1', 1, 1, true FROM {numbers}, generate_series(1, 2)",
    ):
        store.execute(sql)
    store.execute("SET synchronous_commit = on")


def analyze(store: Any) -> None:
    for table in _TABLES:
        store.execute(f"ANALYZE {table}")


def never_analysed(store: Any) -> None:
    fill(store, 1, SIZE)


def analysed_empty_then_grown(store: Any) -> None:
    analyze(store)
    store.tune_connection()
    drive(store, Recorder(store, run_only=True))  # plans are made and kept now
    fill(store, 1, SIZE)


def large_and_analysed(store: Any) -> None:
    fill(store, 1, SIZE)
    analyze(store)


def queues_analysed_while_drained(store: Any) -> None:
    """Their pages are there and hold nothing, so the planner expects nothing in them however much comes."""
    fill(store, 1, SIZE)
    analyze(store)
    for table in ("rivet_timer", "rivet_message"):
        store.execute(f"DELETE FROM {table}")
        store.execute(f"ANALYZE {table}")
    fill(store, SIZE + 1, 2 * SIZE)


STATES = [never_analysed, analysed_empty_then_grown, large_and_analysed, queues_analysed_while_drained]


class Recorder:
    """Stands in for ``store.fast``: explains each statement before it runs, as it will be run."""

    def __init__(self, store: Any, run_only: bool = False) -> None:
        self.fast = type(store).fast.__get__(store)
        self.plans: list[tuple[str, str]] = []
        self.run_only = run_only
        self.store = store

    def __call__(self, sql: str, params: Any = ()) -> Any:
        if not self.run_only and re.match(r"(WITH|SELECT|UPDATE|DELETE|INSERT)", sql):
            self.plans.append((sql, self.explain(sql, list(params))))
        return self.fast(sql, params)

    def explain(self, sql: str, params: list[Any]) -> str:
        generic = self.store.query("SHOW plan_cache_mode")[0][0] == "force_generic_plan"
        if not generic or not params:
            rows = self.fast("EXPLAIN " + sql, params)
        else:
            count = iter(range(1, len(params) + 1))
            text = re.sub("%s", lambda m: f"${next(count)}", sql)
            known = self.store.query("SELECT name FROM pg_prepared_statements WHERE statement = %s", [text])
            # The plan that this connection keeps for it, if it has met the statement before.
            name = known[0][0] if known else "mine"
            if not known:
                self.fast(f"PREPARE mine AS {text}".replace("%", "%%"))
            values = ", ".join("'" + str(p).replace("'", "''") + "'" for p in params)
            rows = self.store.query(f"EXPLAIN EXECUTE {name}({values})".replace("%", "%%"))
            if not known:
                self.fast("DEALLOCATE mine")
        return "\n".join(line for (line,) in rows)


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


def misses(plan: str) -> list[str]:
    """Scans of whole tables, and of whole indexes: those used without a condition on their first column."""
    found = re.findall(r"Seq Scan on rivet_\w+", plan)
    lines = plan.splitlines()
    for n, line in enumerate(lines):
        used = re.search(r"(?:Index (?:Only )?Scan|Bitmap Index Scan) (?:Backward )?(?:using|on) (\w+)", line)
        if used is None:
            continue
        first = FIRST_COLUMNS.get(used[1]) or (
            "id" if re.search("actor_pkey|timer|message", used[1]) else "actor_id"
        )
        below = lines[n + 1] if n + 1 < len(lines) else ""
        if not re.search(rf"Index Cond: .*\b{first} [=>]", below):
            found.append(f"{line.strip()} / {below.strip()}")
    return found


FIRST_COLUMNS = {
    "rivet_timer_due": "type_id",
    "rivet_timer_actor": "actor_id",
    "rivet_message_queue": "actor_id",
    "rivet_run_owner": "owner_id",
    "rivet_waiter_pkey": "child_id",
    "rivet_actor_list": "name",
    "rivet_actor_name": "name",
    "rivet_reply_pkey": "message_id",
}


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
        assert not misses(plan), f"{misses(plan)}\n{sql}\n{plan}"


@pytest.mark.parametrize("state", STATES)
def test_a_claim_of_200_among_10_000_takes_what_it_takes_among_200(
    postgres: Any, state: Callable[[Any], None]
) -> None:
    """A bad plan costs 100 times as much, and more the more there is; the bounds are wide for busy machines."""
    postgres.tune_connection()
    state(postgres)
    times: list[float] = []
    claimed: list[Claimed] = []
    for _ in range(5):
        begin = time.perf_counter()
        claimed, more = postgres.claim(9, TYPES, 200)
        times.append(time.perf_counter() - begin)
        assert len(claimed) == 200
        assert more
    # The first may meet plans made when the tables were empty: being slow, it has them made anew.
    assert min(times[1:]) < 0.25
    assert (
        timed(lambda n: postgres.commit_group([item(c, rows=[row(9 + n)], inflight="{}") for c in claimed]))
        < 0.25
    )
    assert timed(lambda n: postgres.look([Look(c.actor_id, None) for c in claimed])) < 0.25


def timed(call: Callable[[int], Any]) -> float:
    """The better of two: machines are busy at times."""
    times = []
    for n in range(2):
        begin = time.perf_counter()
        call(n)
        times.append(time.perf_counter() - begin)
    return min(times)


def test_no_index_of_the_run_row_has_a_column_that_a_commit_changes(postgres: Any) -> None:
    """So its updates are heap-only. (Their share cannot be asserted: any transaction of the server that is open for
    long keeps old versions from being removed, and pages full.)"""
    indexed = postgres.query(
        "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)"
        " WHERE i.indrelid = 'rivet_run'::regclass"
    )
    assert {name for (name,) in indexed} == {"actor_id", "owner_id"}
