"""``manage.py rivet_dev``: the project's ``runserver`` and a worker in one process, started again when code changes.

For development: one terminal, one Ctrl-C. The server is whatever ``runserver`` is in this project (Daphne's serves
WebSockets). The worker runs in the process that serves, on threads of its own. When code changes it hands back what it
holds, and the next one goes on with it at once; only a server that is killed leaves it to the end of the lease.
"""

from __future__ import annotations

import argparse
import atexit
import signal
import sys
import threading
from typing import Any

from django.core.management import call_command, get_commands, load_command_class
from django.core.management.base import BaseCommand

from rivet_workflows.worker.process import configure_logging

#: Seconds that running steps get when the code has changed: a developer waits.
GRACE = 1.0


class Command(BaseCommand):
    help = "Run the development server and a worker in one process, reloading on change."
    # runserver does its own, again after each change.
    requires_system_checks = ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("addrport", nargs="?", help="port, or address:port, as of runserver")
        parser.add_argument(
            "--noreload", action="store_false", dest="use_reloader", help="do not watch the code"
        )
        parser.add_argument(
            "--nothreading", action="store_false", dest="use_threading", help="as of runserver"
        )
        parser.add_argument("--ipv6", "-6", action="store_true", dest="use_ipv6", help="as of runserver")

    def handle(self, *args: Any, **options: Any) -> None:
        configure_logging(options["verbosity"])
        server: Any = load_command_class(get_commands()["runserver"], "runserver")
        serve = server.inner_run

        def inner_run(*inner: Any, **told: Any) -> Any:
            # Called in the process that serves, once; under the reloader in a thread, and again in a new process
            # after each change.
            start_worker()
            return serve(*inner, **told)

        server.inner_run = inner_run
        if not options["use_reloader"] and threading.current_thread() is threading.main_thread():
            # As the reloader does: the end by a signal is an orderly one, so that the worker hands back what it holds.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        passed = {name: options[name] for name in ("use_reloader", "use_threading", "use_ipv6", "verbosity")}
        call_command(server, *([options["addrport"]] if options["addrport"] else []), **passed)


def start_worker() -> None:
    """A worker on threads of this process; it hands back what it holds when the process ends."""
    from rivet_workflows.store import get_store
    from rivet_workflows.worker.shell import Worker, WorkerOptions

    worker = Worker(WorkerOptions.from_settings(grace=GRACE), get_store())

    def stop() -> None:
        worker.stop("the server ends or reloads")
        worker.wait(GRACE + 1.0)

    # The reloader ends the process by sys.exit in its main thread; ours are daemonic and would be cut off.
    atexit.register(stop)
    worker.start()
