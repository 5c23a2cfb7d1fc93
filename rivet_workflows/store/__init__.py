"""Every query of the product that changes the engine's tables, as verbs. Nothing else writes them.

``get_store()`` is the door. The package knows the models, the records, the exceptions and the settings; never
the engine, the worker or the client, whose texts it stores without looking inside.

Two kinds of verbs. A worker's (``claim take_over load commit_group resolve look release …``) open and end
their own transaction on the calling thread's connection. A client's (``create_actor send lock_state edit_run
…``) join the transaction that is open there; what they write is seen, and wakes anybody, once that commits.

Lock order, for every transaction that takes more than one row of ours::

    rivet_state by actor id  ->  rivet_run by actor id  ->  rivet_message by id  ->  rivet_actor
        ->  rivet_dedupe, rivet_reply by key  ->  rivet_schedule by id

* An action takes the state row, and the run row after it only to number its events or to destroy the actor. An
  atomic step does the same in the last instant of its transaction. These wait.
* A worker's group takes its run rows first, then the state rows, in id order with SKIP LOCKED, and waits for none
  of them. A row that somebody holds makes its item BUSY, and the item goes with a later group.
* Control operations and whoever registers a wait for a child take the run row, and no state row after it.
* A send takes no row at all that exists before it: it inserts a message and a wake (and, with a key, one row
  of ``rivet_dedupe``).
* Wakes (``rivet_timer``) are inserted and deleted, never updated, and deleted with SKIP LOCKED.
* Whoever writes a row of ``rivet_actor``, or deletes history or messages of a live actor, holds its run row.
  What changes there under a holder's feet raises the epoch with it, so the holder's next commit is STALE.
* What the database ends all the same, a deadlock with users' own rows or a serialization failure, is done again
  inside ``commit_group``, and counted in ``store.repeated``.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from django.db import connections

from rivet_workflows.conf import settings

if TYPE_CHECKING:
    from rivet_workflows.store.store import Store

_stores: dict[str, Store] = {}
_lock = Lock()


def get_store(alias: str | None = None) -> Store:
    """The store on a database alias, by default the one that the settings name. One object per alias and
    process, safe in any thread."""
    if alias is None:
        alias = str(settings.DATABASE)
    store = _stores.get(alias)
    if store is None:
        with _lock:
            store = _stores.setdefault(alias, _make(alias))
    return store


def _make(alias: str) -> Store:
    # Imported here: they import the models, which cannot be before Django is set up, and one needs psycopg.
    if connections[alias].vendor == "postgresql":
        from rivet_workflows.store.postgres import PostgresStore

        return PostgresStore(alias)
    from rivet_workflows.store.portable import PortableStore

    return PortableStore(alias)
