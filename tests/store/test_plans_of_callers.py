"""The plans of what callers, lists, timers, schedules and pruning ask: no table is ever read whole.

As in ``test_plans``, in the states that planners get wrong; on a worker's tuned connection, and on any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
from django.db import connections, transaction

from rivet_workflows.client import looking
from rivet_workflows.records import Lifecycle, Outgoing
from rivet_workflows.store.postgres import often
from rivet_workflows.store.rows import live_hash, type_id
from tests.store.plans import Recorder, analyze, fill, misses

SIZE = 4_000
#: Of every so many rows one is due, expired, ended or set aside.
RARE = 1_000
FAR = 10**18


def number(n: int) -> UUID:
    """The id of the ``n``-th actor that ``fill`` makes."""
    return UUID(f"00000000-0000-7000-8000-{n:012d}")


def fill_all(store: Any) -> None:
    """Besides what ``fill`` makes: replies, keys, events, schedules, fires, and actors that are over."""
    fill(store, 1, SIZE)
    numbers = f"generate_series(1, {SIZE}) n"
    actor = "('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid"
    over = "('00000000-0000-7001-8000-' || lpad(n::text, 12, '0'))::uuid"
    kind = type_id("order")
    rarely = f"CASE WHEN n %% {RARE} = 0 THEN"
    store.execute("SET synchronous_commit = off")
    for sql in (
        "INSERT INTO rivet_reply (message_id, actor_id, status, expires_at)"
        f" SELECT n, {actor}, 1, {rarely} 1 ELSE {FAR} END FROM {numbers}",
        "INSERT INTO rivet_dedupe (actor_id, key_hash, message_id, expires_at)"
        f" SELECT {actor}, md5(n::text), n, {rarely} 1 ELSE {FAR} END FROM {numbers}",
        "INSERT INTO rivet_event (actor_id, seq, name, payload, created_at)"
        f" SELECT {actor}, 0, 'e', '1', 1 FROM {numbers}",
        "INSERT INTO rivet_schedule (id, type_id, actor_id, name, kind, action, args, rule, timezone, next_at,"
        f" max_history) SELECT gen_random_uuid(), {kind}, {actor}, 'tick', 2, 'a', '', '60000000', '',"
        f" {rarely} 1 ELSE {FAR} END, 10 FROM {numbers}",
        "INSERT INTO rivet_fire (actor_id, name, action, scheduled_at, fired_at, result, worker_id)"
        f" SELECT {actor}, 'tick', 'a', 1, 1, 1, {rarely} 9 END FROM {numbers}",
        "INSERT INTO rivet_call (type_id, actor_id, action, args, waits, status, worker_id, until)"
        f" SELECT {kind}, {actor}, 'a', repeat('x', 500), true, 3, {rarely} 9 END,"
        f" {rarely} 1 ELSE {FAR} END FROM {numbers}",
        # Ended; of some the history is still there, some are destroyed, some were set aside.
        "INSERT INTO rivet_actor (id, name, key, live_hash, lifecycle, created_at, labels, finished_at,"
        f" unpruned_since, destroyed_at) SELECT {over}, 'order', n::text,"
        f" CASE WHEN n %% {RARE} <> 1 THEN md5('over' || n) END,"
        f" CASE WHEN n %% {RARE} = 2 THEN 5 ELSE 2 END, 1, '', n,"
        f" CASE WHEN n %% {RARE} < 2 THEN n END, CASE WHEN n %% {RARE} = 1 THEN n END FROM {numbers}",
        "INSERT INTO rivet_run (actor_id, type_id, epoch, commit_no, next_seq, event_seq, inflight, blocked,"
        f" blocked_code, code, format) SELECT {over}, {kind}, 1, 0, 4, 0, '',"
        f" CASE WHEN n %% {RARE} = 2 THEN 3 ELSE 1 END, 'other', '', 1 FROM {numbers}",
        f"INSERT INTO rivet_state (actor_id, version, body) SELECT {over}, 1, '1' FROM {numbers}",
        "INSERT INTO rivet_history (actor_id, seq, scope, name, kind, occurrence, status, started_at)"
        f" SELECT {over}, 1, '', 'x', 1, 1, 3, 1 FROM {numbers}",
    ):
        store.execute(sql)


def never_analysed(store: Any) -> None:
    fill_all(store)


def analysed_empty(store: Any) -> None:
    analyze(store)
    fill_all(store)


def large_and_analysed(store: Any) -> None:
    fill_all(store)
    analyze(store)


@contextmanager
def explained(store: Any) -> Iterator[list[tuple[str, str]]]:
    """The plans of all statements on our tables: Django's, and what the store runs beside its cursors."""
    recorder = Recorder(store)

    def explain(execute: Any, sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        if re.match(r"(WITH|SELECT|UPDATE|DELETE|INSERT)", sql) and "rivet_" in sql and not many:
            execute("EXPLAIN " + sql, params, many, context)
            rows = context["cursor"].fetchall()
            recorder.plans.append((sql, "\n".join(line for (line,) in rows)))
        return execute(sql, params, many, context)

    store.fast = recorder
    try:
        with connections["default"].execute_wrapper(explain):
            yield recorder.plans
    finally:
        del store.fast


def sends_and_calls(store: Any) -> None:
    store.create_actor("order", '["new"]')
    store.find("order", '["new"]')
    store.get(number(1))
    until = store.clock.now() + 10**9
    for more in ({}, {"max_queue_size": 100}, {"dedupe_hash": live_hash("a", "b"), "dedupe_until": until}):
        store.send([Outgoing(number(1), "q", "1", **more)])
    with transaction.atomic():
        version, _ = store.lock_state(number(1))
        store.save_state(number(1), version, "2")
        store.lock_run(number(1))
        store.add_events(number(1), [("e", "1")])
    store.wake(number(1))
    store.cancel(number(2))
    store.watch(number(3), number(4))
    store.endings([number(3), number(4)])
    with transaction.atomic():
        store.wake_waiters([number(RARE)])
    store.destroy(number(5))


def reads_and_lists(store: Any) -> None:
    store.position(number(1))
    store.history(number(1))
    store.events(number(1))
    store.messages(number(1))
    store.queue_size(number(1))
    store.reply(1)
    store.load_state(number(1))
    store.schedules(number(1), recurring=True)
    store.fires(number(1), "tick", 10)
    looking.last_events([number(1), number(2)])
    middle = number(SIZE // 2)
    for name in ("order", None):
        for lifecycle in (None, *Lifecycle):
            store.list_actors(name, lifecycle, middle, 50)


def timers_and_schedules(store: Any) -> None:
    store.next_wake(["order"])
    store.wake_diverged({"order": "code"})
    store.next_fires(["order"])
    for due in store.due_schedules(["order"], 10):
        taken = store.take_recurring(due, 9)
        if taken is not None:
            store.finish_fire(taken, None)
    store.interrupt_fires(9)


def workers_and_leases(store: Any) -> None:
    worker_id = store.register_worker("host", 1, {"order": "x"})
    store.heartbeat(worker_id)
    store.dead_workers(6_000_000)
    store.live_codes()
    store.held(7)
    store.claim(worker_id, {"order": "x"}, 5)
    store.forget_worker(worker_id)


def pruning(store: Any) -> None:
    while store.prune(batch=100) == 100:
        pass
    store.prune(batch=3, delete_after={"order": 1})


@pytest.mark.parametrize("tuned", [True, False])
@pytest.mark.parametrize("state", [never_analysed, analysed_empty, large_and_analysed])
def test_nothing_that_is_asked_reads_a_table_whole(
    postgres: Any, state: Callable[[Any], None], tuned: bool
) -> None:
    state(postgres)
    connections["default"].close()
    if tuned:
        postgres.tune_connection()
    found = []
    for asked in (sends_and_calls, reads_and_lists, timers_and_schedules, workers_and_leases, pruning):
        with explained(postgres) as plans:
            asked(postgres)
        assert plans
        for sql, plan in plans:
            found += [f"{asked.__name__}: {miss}\n{sql}\n{plan}\n" for miss in misses(postgres, plan)]
    assert not found, "\n".join(dict.fromkeys(found))


@pytest.mark.parametrize(
    ("name", "lifecycle", "index"),
    [
        ("order", Lifecycle.COMPLETED, "rivet_actor_list"),
        ("order", None, "rivet_actor_name"),
        (None, Lifecycle.COMPLETED, "rivet_actor_lifecycle"),
    ],
)
def test_a_page_of_a_list_is_read_where_it_stands_and_not_looked_for_among_all_others(
    postgres: Any, name: str | None, lifecycle: Lifecycle | None, index: str
) -> None:
    """Along the primary key the planner would find it too, behind however many of another type."""
    large_and_analysed(postgres)
    with explained(postgres) as plans:
        assert postgres.list_actors(name, lifecycle, number(SIZE // 2), 50)
    ((_, plan),) = plans
    assert f"using {index} " in plan
    assert "Index Cond: ((ROW(" in plan


def test_a_plan_that_a_project_s_connection_keeps_from_when_tables_were_empty_is_given_up(
    postgres: Any,
) -> None:
    """There nothing forbids to read a table whole, as is quickest while it is empty."""
    actor, _ = postgres.create_actor("order", '["first"]')

    def send() -> None:
        postgres.send([Outgoing(actor.id, "q", "1")])

    analyze(postgres)
    for _ in range(often.FIRST + 8):  # a session plans the first five for their values
        send()
    fill(postgres, 1, SIZE)
    mine = often.often(connections["default"])
    assert mine is not None
    mine.plans.took(0.0, mine.plans.made_at + often.LATEST + 1)
    send()
    (name,) = postgres.query("SELECT name FROM pg_prepared_statements")[0]
    values = f"'{actor.id}', 'q', '1', NULL, false, 1"
    plan = "\n".join(line for (line,) in postgres.query(f"EXPLAIN EXECUTE {name} ({values})"))
    assert not misses(postgres, plan), plan
