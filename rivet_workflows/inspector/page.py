"""All that the page of one actor shows, put together from some fourteen reads by key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.utils.translation import gettext as _

from rivet_workflows import keys
from rivet_workflows.client import ActorStatus
from rivet_workflows.client.results import status_of
from rivet_workflows.inspector import reads
from rivet_workflows.inspector.moments import Moment, moment, span
from rivet_workflows.inspector.reading import Line, from_open, from_row
from rivet_workflows.inspector.timeline import Tree, build, missing_openers
from rivet_workflows.inspector.values import Failure, Value, failure, printable, value
from rivet_workflows.inspector.words import Holder, Situation, situation
from rivet_workflows.records import load_open
from rivet_workflows.registry import registry

__all__ = ["ActorPage", "Window", "actor_page", "key_text", "status", "worker_name"]

#: Rows of history on a page; and of the lists beside it.
ENTRIES, MESSAGES, EVENTS, SCHEDULES = 100, 25, 15, 25


@dataclass(frozen=True, slots=True)
class Window:
    """Which part of the history: the newest, or ``before`` or ``since`` a number."""

    before: int | None = None
    since: int | None = None

    @classmethod
    def of(cls, query: Mapping[str, Any]) -> Window:
        """As the address says; nonsense is the newest part."""
        return cls(_number(query.get("before")), _number(query.get("since")))


def _number(text: Any) -> int | None:
    # Decimal digits, and no more of them than a bigint has.
    return int(text) if isinstance(text, str) and text.isdecimal() and len(text) < 19 else None


@dataclass(slots=True)
class ActorPage:
    """What the templates need. Lists have at most what a page shows; ``more`` names those that go on."""

    id: UUID
    name: str
    key: str
    status: ActorStatus | None
    situation: Situation
    #: A step waits for its next attempt.
    retrying: bool
    created_at: Moment | None
    finished_at: Moment | None
    lasted: str
    doc: str
    parent_id: UUID | None
    input: Value | None
    output: Value | None
    error: Failure | None
    failed: Line | None
    state: Value | None
    timeline: Tree
    older: int | None
    newer: int | None
    run: dict[str, Any]
    messages: list[dict[str, Any]]
    events: list[dict[str, Any]]
    schedules: list[dict[str, Any]]
    more: set[str] = field(default_factory=set)


def actor_page(row: dict[str, Any], window: Window, fleet: reads.Fleet) -> ActorPage:
    """The page of the actor in ``row`` (of ``reads.actor``). Survives rows that cannot be read."""
    actor_id: UUID = row["id"]
    run = reads.runs([actor_id]).get(actor_id) or {}
    found = status(row, run)
    opened = _opened(run)
    timeline, older, newer = _timeline(row, opened, window)
    lines = [from_open(entry, row["created_at"]) for entry in opened]
    actor_type = registry.find(row["name"])
    error = failure(row["error_head"])
    more: set[str] = set()
    return ActorPage(
        id=actor_id,
        name=printable(row["name"]),
        key=key_text(row["key"]),
        status=found,
        situation=_situation(row, run, found, lines, fleet),
        retrying=any(line.status == "retrying" for line in lines),
        created_at=moment(row["created_at"]),
        finished_at=moment(row["finished_at"]),
        lasted=span(row["finished_at"] - row["created_at"]) if row["finished_at"] else "",
        doc=actor_type.doc.split("\n\n", 1)[0] if actor_type else "",
        parent_id=row["parent_id"],
        input=value(row["input_head"], reads.VALUE),
        output=value(row["output_head"], reads.VALUE),
        error=error,
        failed=_failed(timeline, error),
        state=_state(actor_id),
        timeline=timeline,
        older=older,
        newer=newer,
        run=run,
        messages=_messages(actor_id, more),
        events=_events(actor_id, more),
        schedules=_schedules(actor_id, more),
        more=more,
    )


def status(row: dict[str, Any], run: dict[str, Any]) -> ActorStatus | None:
    """As ``handle.status()`` says it; None where the rows say nothing that this version understands."""
    try:
        return status_of(reads.run_row(run, row["name"], row["lifecycle"]), reads.actor_row(row))
    except Exception:  # a damaged position, a number of a newer version: the page says so
        return None


def key_text(stored: str) -> str:
    """A stored key on one line."""
    try:
        return keys.readable(stored) or _("(no key)")
    except (ValueError, TypeError):
        return printable(stored)


def worker_name(host: str, pid: int) -> str:
    return f"{printable(host)}:{pid}"


def _opened(run: dict[str, Any]) -> list[dict[str, Any]]:
    """Open entries, as far as the position can be read."""
    try:
        entries = load_open(run.get("position") or "")["e"]
    except (ValueError, TypeError, RecursionError):
        return []
    listed = entries if isinstance(entries, list) else []
    whole = [e for e in listed if isinstance(e, dict) and isinstance(e.get("s"), int)]
    return [e for e in whole if isinstance(e.get("p", ""), str)]


def _timeline(
    row: dict[str, Any], opened: list[dict[str, Any]], window: Window
) -> tuple[Tree, int | None, int | None]:
    """The tree of the part that was asked for, and where older and newer parts begin."""
    rows = reads.history(row["id"], before=window.before, since=window.since, limit=ENTRIES)
    beyond = len(rows) > ENTRIES
    if window.since is not None:
        shown, older = rows[:ENTRIES], window.since if window.since > 1 else None
        newer = rows[ENTRIES]["seq"] if beyond else None
    else:
        shown = rows[-ENTRIES:]
        older, newer = shown[0]["seq"] if beyond else None, window.before
    here = [e for e in opened if e["s"] >= (older or 0) and (newer is None or e["s"] < newer)]
    around = {e["s"]: from_open(e, row["created_at"]) for e in opened if e not in here}
    missing = missing_openers(shown, here)
    openers = [
        from_row(opener, row["created_at"]) for opener in reads.openers(row["id"], missing - around.keys())
    ]
    openers += [around[seq] for seq in missing & around.keys()]
    return build(shown, here, openers, row["created_at"]), older, newer


def _failed(timeline: Tree, error: Failure | None) -> Line | None:
    """The step that ended the run, where it is on the page."""
    if error is None or not error.step:
        return None
    failed = [
        n.line for n in timeline.nodes.values() if n.line.status == "failed" and n.line.label == error.step
    ]
    return failed[-1] if failed else None


def _situation(
    row: dict[str, Any],
    run: dict[str, Any],
    found: ActorStatus | None,
    lines: list[Line],
    fleet: reads.Fleet,
) -> Situation:
    holder, alive = None, fleet.alive
    for worker in fleet.workers:
        if worker.id == run.get("owner_id"):
            name = worker_name(worker.host, worker.pid)
            holder = Holder(worker.id, name, moment(worker.heartbeat_at), worker in alive)
    return situation(
        found,
        lines,
        name=printable(row["name"]),
        known=registry.find(row["name"]) is not None,
        runnable=any(f'"{row["name"]}"' in worker.codes for worker in alive if not worker.draining),
        holder=holder,
        wake_at=moment(run.get("wake_at")),
    )


def _state(actor_id: UUID) -> Value | None:
    row = reads.state(actor_id)
    return None if row is None else value(row["body_head"], reads.WHOLE)


def _messages(actor_id: UUID, more: set[str]) -> list[dict[str, Any]]:
    rows = _page(reads.messages(actor_id, MESSAGES), MESSAGES, "messages", more)
    return [
        row
        | {
            "anchor": f"m{row['id']}",
            "queue": printable(row["queue"]),
            "body": value(row["body_head"], reads.VALUE),
            "sent_at": moment(row["sent_at"]),
            "visible_at": moment(row["visible_at"]) if row["visible_at"] > row["sent_at"] else None,
        }
        for row in rows
    ]


def _events(actor_id: UUID, more: set[str]) -> list[dict[str, Any]]:
    rows = _page(reads.events(actor_id, EVENTS), EVENTS, "events", more)
    return [
        row
        | {
            "anchor": f"v{row['seq']}",
            "name": printable(row["name"]),
            "payload": value(row["payload_head"], reads.VALUE),
            "created_at": moment(row["created_at"]),
        }
        for row in rows
    ]


def _schedules(actor_id: UUID, more: set[str]) -> list[dict[str, Any]]:
    rows = _page(reads.schedules(actor_id, SCHEDULES), SCHEDULES, "schedules", more)
    return [
        row
        | {
            "anchor": f"s{row['id']}",
            "name": printable(row["name"] or ""),
            "action": printable(row["action"]),
            "rule": printable(row["rule"]),
            "args": value(row["args_head"] or None, reads.VALUE),
            "next_at": moment(row["next_at"]),
            "last_at": moment(row["last_at"]),
        }
        for row in rows
    ]


def _page(rows: list[dict[str, Any]], size: int, what: str, more: set[str]) -> list[dict[str, Any]]:
    if len(rows) > size:
        more.add(what)
    return rows[:size]
