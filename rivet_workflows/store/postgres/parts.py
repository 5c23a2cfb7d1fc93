"""The parts of the group commit's statement, and the values for the cold rows of actors that end in it."""

from __future__ import annotations

from typing import Any

from rivet_workflows.records import Lifecycle
from rivet_workflows.store import literals as lit
from rivet_workflows.store.grouping import Group
from rivet_workflows.store.rows import ENTRY_COLUMNS, lifecycle_of_block

_ENTRY_TYPES = [
    "bigint",
    "text",
    "text",
    "smallint",
    "int",
    "smallint",
    "bigint",
    "bigint",
    "bigint",
    "text",
    "text",
    "text",
    "text",
    "text",
    "text",
    "bigint",
]


def fence(states: bool, ends: bool, events: bool, wait: bool) -> str:
    """``f``: the run rows of the items, locked in the order sent (which is by id), checked and moved on."""
    types, columns, sets, returns = (
        ["uuid", "int", "bigint", "bigint", "text"],
        ["id", "e", "no", "ns", "fl"],
        "",
        "",
    )
    skip = "" if wait else " SKIP LOCKED"
    state_lock = where = ""
    if states:
        types += ["int", "text"]
        columns += ["sv", "sb"]
        returns += ", x.st, x.sb"
        state_lock = (
            " LEFT JOIN LATERAL (SELECT s.ctid AS st FROM rivet_state s WHERE s.actor_id = w.id AND s.version = w.sv"
            f" FOR NO KEY UPDATE{skip}) s ON true"
        )
        where = " WHERE w.sv IS NULL OR s.st IS NOT NULL"
    if ends:
        types += ["smallint", "text"]
        columns += ["bl", "bc"]
        sets += (
            ", owner_id = CASE WHEN x.bl < 0 THEN r.owner_id END, blocked = CASE WHEN x.bl < 0 THEN r.blocked"
            " ELSE x.bl END, blocked_code = CASE WHEN x.bl < 0 THEN r.blocked_code ELSE x.bc END"
        )
    if events:
        types.append("int")
        columns.append("ne")
        sets += ", event_seq = r.event_seq + x.ne"
        returns += ", r.event_seq - x.ne AS es"
    arrays = ", ".join(f"%s::{t}[]" for t in types)
    state = ", s.st" if states else ""
    return (
        "f AS (UPDATE rivet_run r SET commit_no = r.commit_no + 1, next_seq = x.ns, inflight = x.fl"
        f"{sets} FROM (SELECT w.*, a.tid{state} FROM unnest({arrays}) WITH ORDINALITY w({', '.join(columns)}, k)"
        " CROSS JOIN LATERAL (SELECT a.ctid AS tid FROM rivet_run a WHERE a.actor_id = w.id AND a.epoch = w.e"
        f" AND a.commit_no = w.no FOR NO KEY UPDATE{skip}) a{state_lock}{where}) x"
        f" WHERE r.ctid = x.tid RETURNING x.k, r.actor_id{returns})"
    )


ROWS = (
    f"h AS (INSERT INTO rivet_history (actor_id, {', '.join(ENTRY_COLUMNS)}) SELECT f.actor_id, "
    + ", ".join(f"w.c{n}" for n in range(len(ENTRY_COLUMNS)))
    + f" FROM unnest(%s::int[], {', '.join(f'%s::{t}[]' for t in _ENTRY_TYPES)})"
    + f" w(k, {', '.join(f'c{n}' for n in range(len(ENTRY_COLUMNS)))}) JOIN f ON f.k = w.k)"
)

STATES = (
    "u AS (UPDATE rivet_state s SET version = s.version + 1, body = f.sb FROM f WHERE s.ctid = f.st"
    " AND f.st IS NOT NULL)"
)

#: Messages taken or completed. A sender that waits gets its answer from the deleted row itself. ``IS TRUE`` keeps
#: the queues' index out: along it a message would be sought among all of its actor's.
DELETIONS = (
    "e AS (SELECT w.*, f.actor_id FROM unnest(%s::int[], %s::bigint[], %s::bool[], %s::bool[], %s::text[])"
    " w(k, mid, must, rep, body) JOIN f ON f.k = w.k),"
    " d AS (DELETE FROM rivet_message m USING (SELECT e.*, x.tid FROM e CROSS JOIN LATERAL"
    " (SELECT y.ctid AS tid FROM rivet_message y WHERE y.id = e.mid AND (y.actor_id = e.actor_id) IS TRUE OFFSET 0"
    ") x) z"
    " WHERE m.ctid = z.tid RETURNING z.mid, z.must, z.rep, z.body, m.actor_id, m.wants_reply),"
    " rp AS (INSERT INTO rivet_reply (message_id, actor_id, status, body, expires_at)"
    " SELECT d.mid, d.actor_id, 1, d.body, n.at + %s::bigint FROM d, n WHERE d.rep AND d.wants_reply"
    " ON CONFLICT (message_id) DO UPDATE SET status = 1, body = excluded.body, expires_at = excluded.expires_at)"
)

HOLDS = (
    "hh AS (SELECT w.*, f.actor_id FROM unnest(%s::int[], %s::bigint[], %s::bigint[]) w(k, mid, holder)"
    " JOIN f ON f.k = w.k),"
    " hu AS (UPDATE rivet_message m SET holder_seq = z.holder FROM (SELECT hh.*, x.tid FROM hh CROSS JOIN LATERAL"
    " (SELECT y.ctid AS tid FROM rivet_message y WHERE y.id = hh.mid AND (y.actor_id = hh.actor_id) IS TRUE OFFSET 0"
    ") x) z"
    " WHERE m.ctid = z.tid RETURNING z.holder)"
)

#: A message that is there and whose sender does not wait needs no answer; one that is gone may have had one.
UNANSWERED = (
    "ua AS (INSERT INTO rivet_reply (message_id, actor_id, status, expires_at)"
    " SELECT w.mid, f.actor_id, 2, n.at + %s::bigint FROM n, unnest(%s::int[], %s::bigint[]) w(k, mid)"
    " JOIN f ON f.k = w.k WHERE (SELECT y.wants_reply FROM rivet_message y WHERE y.id = w.mid) IS NOT FALSE"
    " ON CONFLICT (message_id) DO NOTHING)"
)

#: The receivers that are alive, with their types.
_RECEIVER = (
    " JOIN f ON f.k = w.k CROSS JOIN LATERAL (SELECT r.type_id FROM rivet_run r WHERE r.actor_id = w.rid"
    " AND (SELECT y.live_hash FROM rivet_actor y WHERE y.id = w.rid) IS NOT NULL OFFSET 0) t"
)
_MESSAGE = "INSERT INTO rivet_message (actor_id, queue, body, sent_at, visible_at, wants_reply"
_WAKE = "INSERT INTO rivet_timer (type_id, actor_id, kind, due, priority)"

SENDS = (
    "sm AS MATERIALIZED (SELECT w.*, t.type_id, coalesce(w.vis, n.at) AS due, n.at FROM n,"
    " unnest(%s::int[], %s::uuid[], %s::text[], %s::text[], %s::bigint[], %s::bool[])"
    f" WITH ORDINALITY w(k, rid, queue, body, vis, wr, o){_RECEIVER} ORDER BY w.o),"
    f" si AS ({_MESSAGE}) SELECT rid, queue, body, at, due, wr FROM sm ORDER BY o),"
    f" sw AS ({_WAKE} SELECT type_id, rid, 1, due, 0 FROM sm)"
)

#: The same where some have a dedupe key: ids are drawn first, in order, and those whose key is taken unused.
DEDUPED = (
    "dm AS MATERIALIZED (SELECT y.*, nextval(pg_get_serial_sequence('rivet_message', 'id')) AS mid FROM"
    " (SELECT w.*, t.type_id, coalesce(w.vis, n.at) AS due, n.at FROM n, unnest(%s::int[], %s::uuid[], %s::text[],"
    " %s::text[], %s::bigint[], %s::bool[], %s::text[], %s::bigint[])"
    f" WITH ORDINALITY w(k, rid, queue, body, vis, wr, hash, until, o){_RECEIVER} ORDER BY w.o) y),"
    " dk AS (INSERT INTO rivet_dedupe AS old (actor_id, key_hash, message_id, expires_at)"
    " SELECT DISTINCT ON (rid, hash) rid, hash, mid, until FROM dm WHERE hash IS NOT NULL ORDER BY rid, hash, o"
    " ON CONFLICT (actor_id, key_hash) DO UPDATE SET message_id = excluded.message_id,"
    " expires_at = excluded.expires_at WHERE old.expires_at <= (SELECT at FROM n) RETURNING message_id),"
    " dn AS MATERIALIZED (SELECT * FROM dm WHERE hash IS NULL OR mid IN (SELECT message_id FROM dk)),"
    f" di AS ({_MESSAGE}, id) SELECT rid, queue, body, at, due, wr, mid FROM dn),"
    f" dw AS ({_WAKE} SELECT type_id, rid, 1, due, 0 FROM dn)"
)

EVENTS = (
    "ev AS (INSERT INTO rivet_event (actor_id, seq, name, payload, created_at)"
    " SELECT f.actor_id, f.es + w.o, w.name, w.payload, n.at FROM n,"
    " unnest(%s::int[], %s::int[], %s::text[], %s::text[]) w(k, o, name, payload) JOIN f ON f.k = w.k)"
)

#: The cold rows of actors that end here. Nobody else writes them without having raised the epoch under the
#: run row's lock, so the fence covers them.
ACTORS = (
    "ac AS (UPDATE rivet_actor a SET lifecycle = coalesce(z.life, a.lifecycle),"
    " finished_at = coalesce(z.at, a.finished_at), unpruned_since = coalesce(z.at,"
    " CASE WHEN z.dead THEN z.now END, a.unpruned_since),"
    " output = CASE WHEN z.at IS NULL THEN a.output ELSE z.output END,"
    " error = CASE WHEN z.at IS NULL THEN coalesce(z.error, a.error) ELSE z.error END,"
    " live_hash = CASE WHEN z.dead THEN NULL ELSE a.live_hash END,"
    " destroyed_at = CASE WHEN z.dead THEN z.now ELSE a.destroyed_at END"
    " FROM (SELECT w.*, n.at AS now, x.tid FROM n,"
    " unnest(%s::int[], %s::smallint[], %s::bigint[], %s::text[], %s::text[], %s::bool[])"
    " w(k, life, at, output, error, dead) JOIN f ON f.k = w.k CROSS JOIN LATERAL"
    " (SELECT y.ctid AS tid FROM rivet_actor y WHERE y.id = f.actor_id FOR NO KEY UPDATE) x) z WHERE a.ctid = z.tid)"
)

#: Whoever waits for the end of an actor is woken by it, and rung for, on the channel of its holder.
WAITERS = (
    "wx AS (DELETE FROM rivet_waiter v USING (SELECT x.tid FROM unnest(%s::int[]) w(k) JOIN f ON f.k = w.k"
    " CROSS JOIN LATERAL (SELECT y.ctid AS tid FROM rivet_waiter y WHERE y.child_id = f.actor_id OFFSET 0) x) z"
    " WHERE v.ctid = z.tid RETURNING v.parent_id),"
    f" wi AS ({_WAKE} SELECT r.type_id, p.id, 1, n.at, coalesce(length(pg_notify("
    "coalesce('rivet_w' || r.owner_id, 'rivet'), p.id::text)::text), 0)::smallint FROM n,"
    " (SELECT DISTINCT parent_id AS id FROM wx) p CROSS JOIN LATERAL"
    " (SELECT y.type_id, y.owner_id FROM rivet_run y WHERE y.actor_id = p.id OFFSET 0) r)"
)

#: Clients that wait hear of it with the commit itself: a statement of its own after it took 0.2 to 1 ms more.
NEWS = (
    ", (SELECT count(pg_notify('rivet_r', f.actor_id::text))"
    " FROM unnest(%s::int[]) w(k) JOIN f ON f.k = w.k) AS news"
)

ROLLED_BACK = (
    "rb AS (UPDATE rivet_history h SET rolled_back_at = z.at FROM (SELECT w.at, x.tid FROM"
    " unnest(%s::int[], %s::bigint[], %s::bigint[]) w(k, seq, at) JOIN f ON f.k = w.k CROSS JOIN LATERAL"
    " (SELECT y.ctid AS tid FROM rivet_history y WHERE y.actor_id = f.actor_id AND y.seq = w.seq OFFSET 0) x) z"
    " WHERE h.ctid = z.tid)"
)

PRUNES = (
    "pr AS (DELETE FROM rivet_history h USING (SELECT x.tid FROM"
    " unnest(%s::int[], %s::text[], %s::text[], %s::bool[]) w(k, lo, hi, keep) JOIN f ON f.k = w.k CROSS JOIN LATERAL"
    " (SELECT y.ctid AS tid FROM rivet_history y WHERE y.actor_id = f.actor_id AND y.scope >= w.lo AND y.scope < w.hi"
    " AND (NOT w.keep OR y.rollback IS NULL OR y.rolled_back_at IS NOT NULL) OFFSET 0) x) z WHERE h.ctid = z.tid)"
)

#: Epoch, commit number and state version of some actors.
POSITIONS = (
    "SELECT w.id, r.epoch, r.commit_no, s.version FROM unnest(%s::uuid[]) w(id)"
    " CROSS JOIN LATERAL (SELECT r.epoch, r.commit_no FROM rivet_run r WHERE r.actor_id = w.id OFFSET 0) r"
    " LEFT JOIN LATERAL (SELECT s.version FROM rivet_state s WHERE s.actor_id = w.id OFFSET 0) s ON true"
)

WAIT_FOR_RUN = "SELECT epoch, commit_no FROM rivet_run WHERE actor_id = %s FOR NO KEY UPDATE"


def actor_values(g: Group) -> list[Any]:
    """The arrays for ``ACTORS``."""
    rows: list[tuple[int, int | None, int | None, str | None, str | None, bool]] = []
    for k in g.finishes + g.destroys + g.blocks:
        item = g.items[k - 1]
        finish = item.finish
        if finish is not None:
            rows.append((k, int(finish.lifecycle), finish.at, finish.output, finish.error, item.destroy))
        elif item.destroy:
            rows.append((k, int(Lifecycle.CANCELLED), None, None, None, True))
        elif item.block is not None:
            rows.append((k, lifecycle_of_block(item.block[0]), None, None, item.block_error, False))
    return [
        lit.int_array([r[0] for r in rows]),
        lit.optional_array([r[1] for r in rows]),
        lit.optional_array([r[2] for r in rows]),
        lit.optional_text_array([r[3] for r in rows]),
        lit.optional_text_array([r[4] for r in rows]),
        lit.bool_array([r[5] for r in rows]),
    ]
