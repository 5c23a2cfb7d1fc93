"""What this machine allows, whatever the product: the yardstick for all other figures (M).

Machines differ by a factor of two and more in what a round trip to the database and a commit take, one and the same
machine by half from hour to hour. So this runs first, with as little code as can be written for it: no framework, one
connection, one thread.
"""

from __future__ import annotations

import sqlite3
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.benchmarks.rig import Rig

#: Steps of so many workflows that share one commit in experiment A.
TOGETHER = 50


def allows(rig: Rig) -> None:
    """M: a round trip to the database, a commit of one row and of fifty, a hand-over to another thread and back; and
    the steps/s that would come of it, if all that a step did was to be one of those rows."""
    rig.stop()
    times = rig.sizes.trips
    figures = {"hop_ms": _hop(times)}
    figures |= (_postgres if rig.database == "postgres" else _sqlite)(rig.folder, times)
    ceiling = round(TOGETHER * 1e3 / figures["commit_50_ms"])
    rig.emit("M", **figures, ceiling_steps_s=ceiling)


def _median(times: int, call: Callable[[int], Any]) -> float:
    took = []
    for n in range(times):
        began = time.perf_counter()
        call(n)
        took.append(time.perf_counter() - began)
    return round(statistics.median(took) * 1e3, 3)


def _hop(times: int) -> float:
    there: SimpleQueue[int | None] = SimpleQueue()
    back: SimpleQueue[int] = SimpleQueue()

    def answer() -> None:
        while (n := there.get()) is not None:
            back.put(n)

    thread = threading.Thread(target=answer)
    thread.start()

    def there_and_back(n: int) -> int:
        there.put(n)
        return back.get()

    took = _median(times, there_and_back)
    there.put(None)
    thread.join()
    return took


def _postgres(_: Path, times: int) -> dict[str, float]:
    from django.db import connection

    connection.ensure_connection()
    raw = connection.connection.connect(connection.connection.info.dsn, autocommit=True, prepare_threshold=0)
    with raw:
        raw.execute(
            "CREATE TABLE bench_step (run bigint, number bigint, output text, PRIMARY KEY (run, number))"
        )
        insert = "INSERT INTO bench_step SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::text[])"
        try:
            return _commits(
                times,
                raw.execute,
                lambda rows: raw.execute(insert, [list(r) for r in zip(*rows, strict=True)]),
            )
        finally:
            raw.execute("DROP TABLE bench_step")


def _sqlite(folder: Path, times: int) -> dict[str, float]:
    raw = sqlite3.connect(folder / "machine.sqlite3", isolation_level=None)
    raw.execute("PRAGMA journal_mode = WAL")
    raw.execute("PRAGMA synchronous = FULL")
    raw.execute("CREATE TABLE bench_step (run bigint, number bigint, output text, PRIMARY KEY (run, number))")

    def insert(rows: list[tuple[int, int, str]]) -> None:
        raw.execute("BEGIN IMMEDIATE")
        raw.executemany("INSERT INTO bench_step VALUES (?, ?, ?)", rows)
        raw.execute("COMMIT")

    try:
        return _commits(times, raw.execute, insert)
    finally:
        raw.close()


def _commits(
    times: int, execute: Callable[[str], Any], insert: Callable[[list[tuple[int, int, str]]], Any]
) -> dict[str, float]:
    return {
        "round_trip_ms": _median(times, lambda _: execute("SELECT 1").fetchone()),
        "commit_ms": _median(times, lambda n: insert([(0, n, "1")])),
        "commit_50_ms": _median(times, lambda n: insert([(run, n, "1") for run in range(1, TOGETHER + 1)])),
    }
