"""An action in a long transaction, and a bad row, delay their own actor alone: fifty others run on.

    python -m tests.faults.isolation --database postgres

One actor's rows are locked by a transaction that stays open, as an action inside a slow view does; another's position
is made unreadable. Fifty others, held by the same worker, run to their end meanwhile. Then the transaction commits,
and the locked one ends as well; the unreadable one is set aside, with its rows as they were.
"""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path
from typing import Any

from tests.cluster.cluster import WorkerProcess, run_scenario
from tests.waiting import until

OTHERS = 50


class LongView(threading.Thread):
    """A web transaction that has changed an actor's state, broadcast, and does not end until it is told."""

    def __init__(self, handle: Any) -> None:
        super().__init__(daemon=True)
        self.handle = handle
        self.holds, self.end = threading.Event(), threading.Event()
        self.failed: BaseException | None = None

    def run(self) -> None:
        from django.db import connection, transaction

        try:
            with transaction.atomic():
                self.handle.call("rename", "busy")
                self.holds.set()
                self.end.wait(60)
        except BaseException as exc:
            self.failed = exc
            self.holds.set()
        finally:
            connection.close()


def story(database: str, log: Path) -> dict[str, Any]:
    from rivet_workflows import client
    from rivet_workflows.models import Run

    slow = client.create("named", "slow", input={})
    bad = client.create("named", "bad", input={})
    others = [client.create("named", str(n), input={}) for n in range(OTHERS)]
    with WorkerProcess(log=log):
        every = [slow, bad, *others]
        until(lambda: all(h.status().waiting_for is not None for h in every), "all of them wait")
        view = LongView(slow)
        if database == "sqlite":
            # There one writer has the whole database: a long transaction is not of one actor there.
            view.holds.set()
        else:
            view.start()
            assert view.holds.wait(30)
            assert view.failed is None, view.failed
        Run.objects.filter(actor_id=bad.actor_id).update(inflight="{broken", owner_id=None, epoch=1_000)
        for handle in every:
            handle.send("go", 1)
        for handle in others:
            assert handle.result(timeout=30) == 3
        until(lambda: str(bad.status()) == "set_aside", "the unreadable one is set aside")
        assert bad.status().reason == "unreadable"
        assert Run.objects.get(actor_id=bad.actor_id).inflight == "{broken"
        locked = str(slow.status())
        if database != "sqlite":
            assert locked not in ("completed", "failed"), locked
            view.end.set()
            view.join(30)
        assert slow.result(timeout=30) == 3
    return {"database": database, "others": OTHERS, "locked_meanwhile": locked}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", default="postgres")
    chosen = parser.parse_args().database
    sys.exit(run_scenario(chosen, lambda folder: [story(chosen, folder / "log")]))
