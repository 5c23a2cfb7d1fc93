"""The recorded entries of one actor, by place: what a replay looks up. Pure.

Finished entries are rows; open ones are records in the position (the ``inflight`` text). Here they are indexed by
scope and name, and here is said which places lie inside an entry.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ..records import SCOPE_END, Entry, Kind, Prune, opened_by

#: An entry and, while it is open, its record in the position.
Found = tuple[Entry, dict[str, Any] | None]
Index = dict[str, dict[tuple[str, int], Found]]


def open_entry(rec: Mapping[str, Any]) -> Entry:
    """The entry of an open record."""
    return Entry(rec["s"], rec["p"], rec["n"], Kind(rec["k"]), rec.get("o", 1), started_at=rec["t"])


def numbered(name: str, occurrence: int) -> str:
    """The name of an entry within its scope as people read it (D-01)."""
    return name if occurrence == 1 else f"{name}#{occurrence}"


def noted(text: str | None) -> Any:
    """What the engine itself has noted in a part of a finished entry, which is never without it."""
    assert text is not None
    return json.loads(text)


def index_entries(rows: Iterable[Entry], records: Iterable[dict[str, Any]]) -> Index:
    """What the history holds, by scope, then by name and occurrence."""
    index: Index = {}
    for entry in rows:
        index.setdefault(entry.scope, {})[entry.location_key] = (entry, None)
    for rec in records:
        entry = open_entry(rec)
        index.setdefault(entry.scope, {})[entry.location_key] = (entry, rec)
    return index


def inside(entry: Entry) -> str:
    """What every scope within ``entry`` begins with."""
    return opened_by(entry.scope, entry.seq)


def whole_scope(path: str) -> Prune:
    """The prune of one branch or iteration with all that is in it."""
    return Prune(path, path + SCOPE_END)
