"""The service's books: every charge, and every call that asked for one, in an SQLite file of its own."""

from __future__ import annotations

import sqlite3
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS charge (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, order_ref TEXT NOT NULL,
    amount INTEGER NOT NULL, at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS call (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL, order_ref TEXT NOT NULL,
    began REAL NOT NULL, ended REAL, outcome TEXT
);
CREATE INDEX IF NOT EXISTS call_key ON call (key);
"""


class KeyReused(Exception):
    """An idempotency key came back with another order or amount: a mistake of the caller."""


@dataclass(frozen=True, slots=True)
class Charge:
    """Money that moved. ``key`` is the idempotency key under which it was asked for."""

    id: int
    key: str
    order: str
    amount: int


class Ledger:
    """One connection behind a lock: the service has many threads, and its books must not care."""

    def __init__(self, path: str | Path) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.executescript(_SCHEMA)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def begin_call(self, key: str, order: str) -> tuple[int, int]:
        """Note that a call came in. Returns its id, and which call for this key it is (from 1)."""
        with self._lock:
            cursor = self._db.execute(
                "INSERT INTO call (key, order_ref, began) VALUES (?, ?, ?)", (key, order, time.time())
            )
            call = int(cursor.lastrowid or 0)
            (attempt,) = self._db.execute(
                "SELECT count(*) FROM call WHERE key = ? AND id <= ?", (key, call)
            ).fetchone()
            return call, attempt

    def end_call(self, call: int, outcome: str) -> None:
        with self._lock:
            self._db.execute(
                "UPDATE call SET ended = ?, outcome = ? WHERE id = ?", (time.time(), outcome, call)
            )

    def charge(self, key: str, order: str, amount: int) -> tuple[Charge, bool]:
        """Charge once per key. Returns the charge, and whether it is new; a repeat gets the first one back."""
        with self._lock:
            cursor = self._db.execute(
                "INSERT INTO charge (key, order_ref, amount, at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (key, order, amount, time.time()),
            )
            new = cursor.rowcount == 1
            row = self._db.execute(
                "SELECT id, key, order_ref, amount FROM charge WHERE key = ?", (key,)
            ).fetchone()
        charge = Charge(*row)
        if (charge.order, charge.amount) != (order, amount):
            raise KeyReused(
                f"{key} was used for {charge.amount} of {charge.order}, now for {amount} of {order}"
            )
        return charge, new

    def report(self) -> dict[str, Any]:
        """What ``GET /ledger`` shows: charges, calls per key, and the calls that have no answer yet."""
        with self._lock:
            charges = self._db.execute("SELECT id, key, order_ref, amount FROM charge ORDER BY id").fetchall()
            calls = self._db.execute(
                "SELECT key, order_ref, began, ended, outcome FROM call ORDER BY id"
            ).fetchall()
        now = time.time()
        charged = {row[1] for row in charges}
        per_key: dict[str, dict[str, Any]] = {}
        in_flight = []
        for key, order, began, ended, outcome in calls:
            entry = per_key.setdefault(key, {"order": order, "calls": 0, "outcomes": []})
            entry["calls"] += 1
            entry["outcomes"].append(outcome or "open")
            if ended is None:
                in_flight.append(
                    {"order": order, "key": key, "seconds": now - began, "charged": key in charged}
                )
        return {
            "charges": [dict(zip(("id", "key", "order", "amount"), row, strict=True)) for row in charges],
            "calls": per_key,
            "in_flight": in_flight,
            "total": sum(row[3] for row in charges),
        }
