"""What the experiments stand on: a fresh database, real workers, clocks and lines of results. Linux only."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.cluster import WorkerProcess
from tests.waiting import until

#: Where steps tell the benchmark that they run: a socket for datagrams.
SOCKET = "RIVET_BENCH_SOCKET"
#: A file to which the steps of the crash experiment append a line each.
LOG = "RIVET_BENCH_LOG"
#: Seconds that one workflow, or a set of them, may take before the benchmark gives up.
LONG = 300


@dataclass(frozen=True)
class Sizes:
    """How much of everything. The defaults are those of the peers' scripts where they have the experiment."""

    trips: int = 500
    workflows: int = 50
    steps: int = 20
    created_before: tuple[str, ...] = ("async", "def")
    alone: int = 200
    starts: int = 100
    sends: int = 200
    to_one: int = 300
    to_each: int = 20
    replies: int = 100
    crashed: int = 1000
    nap: float = 2.0
    waiting: int = 10_000
    settle: float = 5.0
    iterations: int = 5000
    window: int = 500
    fleet: int = 500
    processes: tuple[tuple[str, int], ...] = (("async", 1), ("async", 2), ("def", 1), ("def", 2))
    calls: int = 200
    long: int = 100_000
    populations: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    claimed: int = 200


SHORT = Sizes(
    trips=5, workflows=4, steps=3, created_before=("async",), alone=5, starts=3, sends=3, to_one=5, to_each=3,
    replies=3, crashed=20, nap=0.3, waiting=10, settle=0.2, iterations=30, window=5, fleet=6,
    processes=(("async", 2),), calls=3, long=60, populations=(20,), claimed=5,
)  # fmt: skip


class Rig:
    """One run of the experiments on one database."""

    def __init__(self, database: str, folder: Path, sizes: Sizes, run: int) -> None:
        self.database, self.folder, self.sizes, self.run = database, folder, sizes, run
        self.log = folder / "steps.log"
        self._numbers = itertools.count()
        self._worker: WorkerProcess | None = None
        self._started_with: tuple[Any, ...] = ()
        self._marks = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._marks.bind(str(folder / "marks"))
        self._marks.settimeout(60)
        os.environ |= {SOCKET: str(folder / "marks"), LOG: str(self.log), "RIVET_CLUSTER_LOG": "WARNING"}

    def close(self) -> None:
        self.stop()
        self._marks.close()

    # -- workers

    def worker(self, *args: str, **settings: Any) -> WorkerProcess:
        """A worker started like this, the one that runs already if it was; it has run a step of each kind."""
        wanted = (args, tuple(settings.items()))
        if self._worker is None or self._started_with != wanted:
            self.stop()
            self._worker, self._started_with = self.start(*args, **settings), wanted
            self.await_all([self.create("bench_steps", mode=mode, steps=2) for mode in ("async", "def")])
        return self._worker

    def start(self, *args: str, **settings: Any) -> WorkerProcess:
        """A worker of one's own, which may not be ready yet."""
        env = {"RIVET_BENCH_SETTINGS": json.dumps(settings)} if settings else {}
        return WorkerProcess(*args, log=self.folder / "worker.log", **env)

    def stop(self) -> None:
        """Let the worker hand everything back and end."""
        if self._worker is not None:
            stop(self._worker)
            self._worker = None

    # -- actors

    def create(self, name: str, **given: Any) -> Any:
        from rivet_workflows import client

        return client.create(name, f"{name}-{next(self._numbers)}", input=given)

    def await_all(self, handles: Sequence[Any]) -> None:
        """Wait until all have completed; they are expected to at about the same time."""
        from rivet_workflows.models import Actor
        from rivet_workflows.records import Lifecycle

        handles[-1].result(timeout=LONG)
        ids = [handle.actor_id for handle in handles]
        completed = Actor.objects.filter(id__in=ids, lifecycle=int(Lifecycle.COMPLETED))
        until(lambda: completed.count() == len(ids), "all have completed", LONG, pause=0.001)

    def mark(self) -> float:
        """When the next step that marks began."""
        return float(json.loads(self._marks.recv(100))[1])

    # -- results

    def emit(self, exp: str, **metrics: Any) -> None:
        line = {"system": f"rivet_workflows-{self.database}", "exp": exp, "run": self.run, **metrics}
        print(json.dumps({**line, "load1": round(os.getloadavg()[0], 2)}), flush=True)


def stop(worker: WorkerProcess) -> None:
    worker.kill(signal.SIGTERM)
    worker.wait()


def latencies(seconds: Sequence[float]) -> dict[str, Any]:
    """p50 and p95 in milliseconds."""
    ordered = sorted(seconds)
    p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    return {
        "p50_ms": round(statistics.median(ordered) * 1e3, 2),
        "p95_ms": round(p95 * 1e3, 2),
        "n": len(ordered),
    }


def timed(call: Callable[[], Any]) -> float:
    """The seconds that it takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def spread(call: Callable[[int], Any], times: int, pause: float = 0.0) -> list[float]:
    """The seconds that each of so many calls takes."""
    found = []
    for n in range(times):
        found.append(timed(lambda: call(n)))  # noqa: B023
        time.sleep(pause)
    return found


def history_span(handles: Iterable[Any]) -> float:
    """Seconds from the first start to the last end in these actors' histories."""
    from django.db.models import Max, Min

    from rivet_workflows.models import History

    rows = History.objects.filter(actor_id__in=[handle.actor_id for handle in handles])
    found = rows.aggregate(first=Min("started_at"), last=Max("done_at"))
    return float(found["last"] - found["first"]) / 1e6


def processes_of(worker: WorkerProcess) -> list[int]:
    """The worker's process and, with ``--processes``, its children."""
    pid = worker.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


def cpu_s(worker: WorkerProcess) -> float:
    """Processor seconds of all its threads that still run; exact to some microseconds."""
    files = (path for pid in processes_of(worker) for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(path.read_text().split()[0]) for path in files) / 1e9


def rss_mib(worker: WorkerProcess) -> float:
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in processes_of(worker))
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
