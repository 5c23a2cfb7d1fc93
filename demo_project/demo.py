"""``make demo``: a shop that sells, crashes and recovers, on this machine.

Starts a payment service, the web server and a worker, places orders over REST, kills the worker twice with
``kill -9`` while cards are being charged, and shows what the payment service's own ledger says about it. Then
it stays up for you to look around. ``--check`` does the same without staying, and fails if anything is not as
promised. ``DATABASE_URL`` (postgres://, mysql://) runs it on another database, ``REDIS_URL`` with Redis.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from runner import databases, verdict
from runner.processes import Child, DemoFailed, Processes, Worker, listening_socket
from runner.site import Site
from runner.story import Story
from runner.table import Table
from runner.websocket import EventWatcher

VAR = Path(os.environ.get("DEMO_VAR") or Path(__file__).resolve().parent.parent / "var")
#: Seconds that ``--check`` may take; without it people may have slower machines.
CHECK_SECONDS = 80


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="assert everything and exit")
    parser.add_argument("--port", type=int, default=8000, help="of the shop; another one if it is taken")
    parser.add_argument("--seed", type=int, default=1, help="which calls the payment service gets wrong")
    options = parser.parse_args(argv)
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _leave)
    started = time.monotonic()
    try:
        with fresh_folder(options.check) as var:
            demo(var, options, started)
    except DemoFailed as error:
        print(f"\nThe demo failed after {time.monotonic() - started:.0f} s: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped.")
        return 0 if not options.check else 130
    return 0


def demo(var: Path, options: argparse.Namespace, started: float) -> None:
    table = Table()
    password = secrets.token_urlsafe(6)
    with (
        databases.fresh(os.environ.get("DATABASE_URL", ""), var) as (url, database_name),
        listening_socket(options.port) as listener,
        Processes(var, environment(var, url, password)) as processes,
    ):
        table.say(f"Database: {database_name}\nLogs:     {var}/*.log")
        payments_url = start_payments(processes, var, options.seed)
        web, site = start_web(processes, listener)  # gets ready while the tables are made
        processes.run("prepare", "manage.py", "seed_shop", "--migrate")
        processes.wait_until(web, site.up)
        site.sign_in("admin", password)
        table.say(
            f"Shop:     {site.url}/   sign in as admin, password {password}\nPayments: {payments_url}/ledger\n"
        )

        worker = Worker(processes, var / "worker.pid")
        worker.start()
        watcher = EventWatcher(site.url, site.cookie_header(), "order_board", "main", "order_changed")
        pause = 0.0 if options.check else 0.15
        story = Story(site, payments_url, worker, table.show, pause=pause)
        try:
            story.tell(deadline=started + CHECK_SECONDS if options.check else time.monotonic() + 300)
            ledger = story.ledger()
            table.say(verdict.ledger_for_people(story, ledger))
            processes.run("stock", "manage.py", "check_stock")
            found = verdict.faults(story, ledger, watcher, site)
        except DemoFailed as error:
            raise DemoFailed(f"{error}\n\nThe worker's last lines:\n{worker.tail()}") from None
        finally:
            watcher.close()
        if found:
            raise DemoFailed("not as promised:\n  " + "\n  ".join(found))
        table.say(f"  {len(watcher.events)} events arrived over the WebSocket, each once, in order")
        if options.check:
            table.say(f"\nAll as promised, in {time.monotonic() - started:.0f} s.")
        else:
            stay_up(table, site, payments_url, password, worker)


def start_payments(processes: Processes, var: Path, seed: int) -> str:
    child = processes.start(
        "payments",
        "-m",
        "payments.server",
        "--port",
        "0",
        "--ledger",
        str(var / "ledger.sqlite3"),
        "--seed",
        str(seed),
    )
    # It takes a free port and says which one.
    processes.wait_until(child, lambda: "http" in child.tail())
    url = child.tail().split()[-1]
    processes.env["PAYMENTS_URL"] = url
    return url


def start_web(processes: Processes, listener: socket.socket) -> tuple[Child, Site]:
    descriptor = listener.fileno()
    web = processes.start(
        "web", "-m", "daphne", "--fd", str(descriptor), "config.asgi:application", fds=(descriptor,)
    )
    return web, Site(f"http://127.0.0.1:{listener.getsockname()[1]}")


def stay_up(table: Table, site: Site, payments_url: str, password: str, worker: Worker) -> None:
    """Until Ctrl-C. The button on the page kills the worker; here another one is started."""
    table.say(
        f"\nLook around; Ctrl-C ends it.\n"
        f"  Shop      {site.url}/      (admin, {password}): order, approve, kill the worker\n"
        f"  Admin     {site.url}/admin/\n"
        f"  REST      {site.url}/api/actors/?name=order\n"
        f"  Payments  {payments_url}/ledger\n"
        f"  Code      demo_project/shop/actors.py\n"
    )
    while True:
        assert worker.child is not None
        worker.child.process.wait()
        time.sleep(1)  # for whoever watches: long enough to see the orders stand still
        worker.revive()
        table.say(f"The worker was killed; process {worker.child.process.pid} goes on in its place.")


def environment(var: Path, database_url: str, password: str) -> dict[str, str]:
    return os.environ | {
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "DATABASE_URL": database_url,
        "DEMO_VAR": str(var),
        "DEMO_PASSWORD": password,
        "DEMO_WORKER_PID_FILE": str(var / "worker.pid"),
        "DEMO_SESSION_COOKIE": f"demo_{var.name.replace('-', '_')}",
        "DEBUG": "1",
        "PYTHONUNBUFFERED": "1",
    }


@contextmanager
def fresh_folder(throw_away: bool) -> Iterator[Path]:
    """A folder of this run's own, so that demos do not meet. A check that went well leaves none behind."""
    var = VAR / f"demo-{os.getpid()}-{secrets.token_hex(2)}"
    var.mkdir(parents=True)
    yield var
    if throw_away:
        shutil.rmtree(var, ignore_errors=True)


def _leave(signum: int, frame: FrameType | None) -> None:
    """A closed terminal or a SIGTERM end the demo as Ctrl-C does: with its children."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
