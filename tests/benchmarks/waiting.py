"""What waiting costs a worker, with all actors in its memory and after they were evicted (F)."""

from __future__ import annotations

import time
from typing import Any

from tests.benchmarks.messages import all_wait, send_and_see
from tests.benchmarks.rig import LONG, Rig, cpu_s, latencies, rss_mib
from tests.cluster.cluster import WorkerProcess
from tests.waiting import until


def idle(rig: Rig) -> None:
    """F: actors that wait for a message, and the worker's memory and processor meanwhile.

    Parked: all are kept in memory (``MAX_PARKED``). Evicted: none is, what remains are rows. In both, C among them.
    """
    sizes = rig.sizes
    worker = rig.worker(MAX_PARKED=2 * sizes.waiting)
    before, began = rss_mib(worker), time.perf_counter()
    made = [rig.create("bench_receiver", messages=1, mark=True) for _ in range(sizes.waiting)]
    rate = round(sizes.waiting / (time.perf_counter() - began))
    all_wait(made)
    _report(rig, worker, before, "parked", start_s=rate, held=_held())
    _wake_some(rig, made, "parked")

    worker = rig.worker(MAX_PARKED=0, EVICT_AFTER=0)  # the one before gave its actors back
    before = rss_mib(worker)
    made = [rig.create("bench_receiver", messages=1, mark=True) for _ in range(sizes.waiting)]
    all_wait(made)
    until(lambda: _held() == 0, "all were evicted", LONG)
    _report(rig, worker, before, "evicted", held=_held())
    _wake_some(rig, made, "evicted")


def _held() -> int:
    from rivet_workflows.models import Run

    return Run.objects.filter(owner_id__isnull=False).count()


def _report(rig: Rig, worker: WorkerProcess, before: float, how: str, **more: Any) -> None:
    time.sleep(rig.sizes.settle)
    cpu = cpu_s(worker)
    time.sleep(rig.sizes.settle)
    busy, now = (cpu_s(worker) - cpu) / rig.sizes.settle, rss_mib(worker)
    rig.emit(
        "F",
        how=how,
        waiting=rig.sizes.waiting,
        rss_mib=round(now, 1),
        kib_each=round((now - before) * 1024 / rig.sizes.waiting, 2),
        idle_cpu_pct=round(busy * 100, 2),
        **more,
    )


def _wake_some(rig: Rig, made: list[Any], how: str) -> None:
    some = made[:: max(1, len(made) // rig.sizes.starts)][: rig.sizes.starts]
    found = []
    for n, actor in enumerate(some):
        found.append(send_and_see(rig, actor, n))
        time.sleep(0.01)
    rig.emit("C", how=f"one of {len(made)} waiting, {how}", **latencies(found))
