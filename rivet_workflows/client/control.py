"""Operations on a run from outside: which entry is meant, and the door of ``store`` that carries it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from rivet_workflows.client import bells, edits, sending
from rivet_workflows.client.history import HistoryEntry, build
from rivet_workflows.client.results import ActorState, status_of
from rivet_workflows.exceptions import ActorNotFound, ValidationFailed
from rivet_workflows.records import Blocked, Entry, Lifecycle, load_open
from rivet_workflows.store import get_store
from rivet_workflows.store.rows import Edit, RunRow

__all__ = ["cancel", "pause", "recover", "replay_from", "resume", "skip", "wake"]


def cancel(actor_id: UUID) -> bool:
    return _rung(actor_id, get_store().cancel(actor_id))


def pause(actor_id: UUID) -> bool:
    return _rung(actor_id, get_store().pause(actor_id))


def resume(actor_id: UUID) -> bool:
    return _rung(actor_id, get_store().resume(actor_id))


def wake(actor_id: UUID) -> bool:
    store = get_store()
    run, actor = store.position(actor_id), store.get(actor_id)
    if run is None or actor is None:
        raise _gone(actor_id)
    sleeping = status_of(run, actor).state is ActorState.SLEEPING
    if not sleeping and run.blocked != Blocked.DIVERGED:
        return False
    return _rung(actor_id, store.wake(actor_id))


def recover(actor_id: UUID) -> bool:
    store = get_store()

    def change(run: RunRow) -> Edit | None:
        if run.blocked in (Blocked.DIVERGED, Blocked.UNREADABLE):
            return Edit()  # tried again as it is: its rows may not be readable here
        return edits.recover(run, store.history(actor_id), store.clock.now())

    return _rung(actor_id, store.recover(actor_id, change))


def replay_from(actor_id: UUID, entry: HistoryEntry | int | str | None) -> bool:
    store = get_store()
    target = None if entry is None else _seq(actor_id, entry)

    def change(run: RunRow) -> Edit | None:
        if run.blocked == Blocked.OVER and run.lifecycle == Lifecycle.LIVE:
            return None  # it has no workflow
        rows = store.history(actor_id)
        if target is not None and not _holds(run, rows, target):
            raise _refused(f"the history has no entry {entry!r} any more")
        found = edits.replay_from(run, rows, target, store.clock.now())
        if found is None:
            return None
        first, edit = found
        return replace(
            edit,
            delete_from=first,
            unhold_from=first,
            blocked=Blocked.NO,
            lifecycle=Lifecycle.LIVE,
            clear_result=True,
        )

    return _rung(actor_id, store.edit_run(actor_id, change))


def skip(actor_id: UUID, entry: HistoryEntry | int | str, result: Any) -> bool:
    store = get_store()
    output = sending.encoded(result, "MAX_PAYLOAD", "result")
    target = _seq(actor_id, entry)

    def change(run: RunRow) -> Edit | None:
        rows = store.history(actor_id)
        if not _holds(run, rows, target):
            return None
        edit = edits.skip(run, rows, target, output, store.clock.now())
        if edit is None or run.blocked in (Blocked.NO, Blocked.PAUSED):
            return edit
        return replace(edit, blocked=Blocked.NO, lifecycle=Lifecycle.LIVE, clear_result=True)

    return _rung(actor_id, store.edit_run(actor_id, change))


def _holds(run: RunRow, rows: Sequence[Entry], seq: int) -> bool:
    """Is the entry still there, now that the run is locked?"""
    return any(row.seq == seq for row in rows) or any(rec["s"] == seq for rec in load_open(run.inflight)["e"])


def _rung(actor_id: UUID, done: bool) -> bool:
    """The holder must hear that it was fenced, and who waits for the run that it went on or ended."""
    if done:
        bells.announce(work=[actor_id], news=[actor_id])
    return done


def _seq(actor_id: UUID, entry: HistoryEntry | int | str) -> int:
    """The number of the entry that was named. ``ValidationFailed`` where none, or more than one, is called so."""
    if isinstance(entry, HistoryEntry):
        return entry.seq
    store = get_store()
    run = store.position(actor_id)
    if run is None:
        raise _gone(actor_id)
    known = build(store.history(actor_id), run.inflight)
    if isinstance(entry, str):
        found = [one.seq for one in known if one.location == entry]
    elif isinstance(entry, int) and not isinstance(entry, bool):
        found = [one.seq for one in known if one.seq == entry]
    else:
        raise _refused(f"an entry is named by itself, its seq or its location, not by {type(entry).__name__}")
    if len(found) == 1:
        return found[0]
    if found:
        raise _refused(f"{entry!r} is the location of several entries ({found}): name one by its seq")
    raise _refused(f"the history has no entry {entry!r}")


def _gone(actor_id: UUID) -> ActorNotFound:
    return ActorNotFound(f"the actor {actor_id} was destroyed", metadata={"id": str(actor_id)})


def _refused(message: str) -> ValidationFailed:
    return ValidationFailed(
        message, metadata={"issues": [{"path": ["entry"], "message": message, "type": "entry"}]}
    )
