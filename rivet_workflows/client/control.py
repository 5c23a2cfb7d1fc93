"""Operations on a run from outside: which entry is meant, and the door of ``store`` that carries it out."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rivet_workflows.client import bells, sending
from rivet_workflows.client.history import HistoryEntry, build
from rivet_workflows.exceptions import ActorNotFound, ValidationFailed
from rivet_workflows.store import get_store

__all__ = ["cancel", "pause", "recover", "replay_from", "resume", "skip", "wake"]


def cancel(actor_id: UUID) -> bool:
    return _rung(actor_id, get_store().cancel(actor_id))


def pause(actor_id: UUID) -> bool:
    return _rung(actor_id, get_store().pause(actor_id))


def resume(actor_id: UUID) -> bool:
    return _rung(actor_id, get_store().resume(actor_id))


def wake(actor_id: UUID) -> bool:
    return _rung(actor_id, get_store().wake(actor_id))


def recover(actor_id: UUID) -> bool:
    return _rung(actor_id, get_store().recover(actor_id))


def replay_from(actor_id: UUID, entry: HistoryEntry | int | str | None) -> bool:
    from_seq = 0 if entry is None else _seq(actor_id, entry)
    return _rung(actor_id, get_store().replay_from(actor_id, from_seq))


def _rung(actor_id: UUID, done: bool) -> bool:
    """The holder must hear that it was fenced, and who waits for the run that it went on or ended."""
    if done:
        bells.announce(work=[actor_id], news=[actor_id])
    return done


def skip(actor_id: UUID, entry: HistoryEntry | int | str, result: Any) -> bool:
    sending.encoded(result, "MAX_PAYLOAD", "result")
    _seq(actor_id, entry)
    raise NotImplementedError("skip comes in a later version")


def _seq(actor_id: UUID, entry: HistoryEntry | int | str) -> int:
    """The number of the entry that was named. ``ValidationFailed`` where none, or more than one, is called so."""
    if isinstance(entry, HistoryEntry):
        return entry.seq
    store = get_store()
    run = store.position(actor_id)
    if run is None:
        raise ActorNotFound(f"the actor {actor_id} was destroyed", metadata={"id": str(actor_id)})
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


def _refused(message: str) -> ValidationFailed:
    return ValidationFailed(
        message, metadata={"issues": [{"path": ["entry"], "message": message, "type": "entry"}]}
    )
