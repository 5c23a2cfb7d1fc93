"""Big tables in states that planners get wrong, and what the plans of statements say.

Queue-like tables are analysed while they are empty, and a plan made then may be kept. So the statements are
explained in these states: never analysed; analysed empty, then grown under cached plans; large and analysed.
"""

from __future__ import annotations

import re
from typing import Any

from rivet_workflows.models import (
    Actor,
    Call,
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
    Waiter,
    Worker,
)
from rivet_workflows.store.rows import type_id

SIZE = 10_000
_TABLES = [
    model._meta.db_table
    for model in (
        Actor, Run, State, Timer, Message, History, Reply, Dedupe, Waiter, Event, Schedule, Fire, Worker, Call
    )
]  # fmt: skip


def fill(store: Any, first: int, last: int) -> None:
    """Actors in bulk, each with a state, a wake, three entries, two messages and a waiter; every other one is held."""
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
        f"INSERT INTO rivet_waiter (child_id, parent_id) SELECT {actor}, {actor} FROM {numbers}",
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


class Recorder:
    """Stands in for ``store.fast``: explains each statement before it runs, as it will be run."""

    def __init__(self, store: Any, run_only: bool = False) -> None:
        self.fast = type(store).fast.__get__(store)
        self.plans: list[tuple[str, str]] = []
        self.run_only = run_only
        self.store = store

    def __call__(self, sql: str, params: Any = (), _meanwhile: Any = None) -> Any:
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


#: A table of a handful of rows is read whole by right.
_SMALL = "rivet_worker"


def misses(store: Any, plan: str) -> list[str]:
    """Scans of whole tables, and of whole indexes: those used without a condition on their first column."""
    first_of = dict(
        store.query(
            "SELECT c.relname, pg_get_indexdef(i.indexrelid, 1, true) FROM pg_index i"
            " JOIN pg_class c ON c.oid = i.indexrelid"
        )
    )
    found = re.findall(rf"Seq Scan on (?!{_SMALL}\b)rivet_\w+", plan)
    lines = plan.splitlines()
    for n, line in enumerate(lines):
        used = re.search(r"(?:Index (?:Only )?Scan|Bitmap Index Scan) (?:Backward )?(?:using|on) (\w+)", line)
        if used is None or used[1].startswith(_SMALL):
            continue
        below = lines[n + 1] if n + 1 < len(lines) else ""
        if not re.search(rf"Index Cond: .*\b{first_of[used[1]]}\b[^=<>]* (?:[=<>]|IS NOT NULL)", below):
            found.append(f"{line.strip()} / {below.strip()}")
    return found
