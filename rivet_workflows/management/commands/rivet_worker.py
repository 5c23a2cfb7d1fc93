"""``manage.py rivet_worker``: run workflows until told to stop.

Exit codes: 0 stopped, or nothing left to do; 1 failed; 2 usage; 3 the tables do not fit (run ``migrate``); 130 and 143
when a second SIGINT or SIGTERM had to make it leave at once.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError, connections
from django.db.migrations.executor import MigrationExecutor

from rivet_workflows.conf import settings
from rivet_workflows.registry import registry
from rivet_workflows.worker.process import (
    Happenings,
    configure_logging,
    hard_exit,
    settle_memory,
    watch_parent,
)

WRONG_TABLES = 3
#: Seconds that a worker told to leave at once may take to give its actors back.
LEAVE_WITHIN = 2.0


class Command(BaseCommand):
    help = "Run the workflows of this project's actors."

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.happenings = Happenings()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--concurrency", type=_number, metavar="N", help="async def steps that run at a time"
        )
        parser.add_argument(
            "--processes",
            type=_number,
            default=1,
            metavar="N",
            help="worker processes; one that dies is started again",
        )
        parser.add_argument(
            "--actors", nargs="+", metavar="NAME", help="run these only; default: all that have a workflow"
        )
        parser.add_argument(
            "--grace",
            type=_seconds,
            metavar="SECONDS",
            help="how long running steps may finish when told to stop",
        )
        parser.add_argument("--burst", action="store_true", help="exit when nothing is due")
        parser.add_argument(
            "--until-idle", action="store_true", help="exit when nothing is due and no timer is set"
        )

    def execute(self, *args: Any, **options: Any) -> str | None:
        # Before the checks: a signal may come at any time, and one that came early is found when the worker begins.
        with self.happenings:
            return super().execute(*args, **options)

    def handle(self, *args: Any, **options: Any) -> None:
        configure_logging(options["verbosity"])
        for name in options["actors"] or ():
            try:
                registry.get(name)
            except LookupError as error:
                raise CommandError(str(error), returncode=2) from None
        _check_tables()
        code = self._supervise(options) if options["processes"] > 1 else self._work(options)
        if code:
            sys.exit(code)

    def _supervise(self, options: dict[str, Any]) -> int:
        from rivet_workflows.worker.supervisor import Supervisor, child_command

        connections.close_all()
        return Supervisor(options["processes"], child_command(options), self.happenings).run()

    def _work(self, options: dict[str, Any]) -> int:
        from rivet_workflows.store import get_store
        from rivet_workflows.worker.shell import Worker, WorkerOptions

        told = WorkerOptions.from_settings(
            concurrency=options["concurrency"],
            grace=options["grace"],
            actors=tuple(options["actors"]) if options["actors"] else None,
            burst=options["burst"],
            until_idle=options["until_idle"],
        )
        worker = Worker(told, get_store(), ended=lambda: self.happenings.put(None))
        connections.close_all()  # the checks' own; this thread needs none from here on
        watch_parent(self.happenings)
        settle_memory()
        worker.start()
        return self._attend(worker)

    def _attend(self, worker: Any) -> int:
        """Until the worker has ended: pass on what it is told. The first signal asks, the second insists."""
        asked = insisted = False
        while worker.wait(0) is None:
            heard = self.happenings.next(LEAVE_WITHIN if insisted else None)
            if heard is None:
                if insisted and worker.wait(0.1) is None:
                    hard_exit(worker.control.exit_code)
                worker.wait(LEAVE_WITHIN)
            elif asked:
                insisted = True
                worker.leave(128 + heard)
            else:
                asked = True
                worker.stop(f"told to by {heard.name}")
        code: int = worker.wait()
        if worker.left_running:
            hard_exit(code)
        return code


def _number(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {number}")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not (math.isfinite(number) and number >= 0):
        raise argparse.ArgumentTypeError(f"must be 0 or more seconds, not {text}")
    return number


def _check_tables() -> None:
    """Are all migrations of ours applied? Else every statement would fail, each in its own way."""
    alias = settings.DATABASE
    try:
        executor = MigrationExecutor(connections[alias])
    except OperationalError as error:
        raise CommandError(f"The database {alias!r} does not answer: {error}") from error
    leaves = [node for node in executor.loader.graph.leaf_nodes() if node[0] == "rivet_workflows"]
    missing = [migration.name for migration, _ in executor.migration_plan(leaves)]
    if missing:
        where = "" if alias == "default" else f" --database {alias}"
        raise CommandError(
            f"The tables on database {alias!r} are not those of this version; to be applied: {', '.join(missing)}. "
            f"Run `{os.path.basename(sys.argv[0]) or 'manage.py'} migrate rivet_workflows{where}`.",
            returncode=WRONG_TABLES,
        )
