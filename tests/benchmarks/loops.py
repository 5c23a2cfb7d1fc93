"""Loops: five thousand iterations (G), and a hundred thousand with races, retries and failures (L)."""

from __future__ import annotations

import threading
import time

from tests.benchmarks.rig import LONG, Rig, rss_mib


def plain(rig: Rig) -> None:
    """G: a loop with a step in each iteration; what an iteration takes at the start and at the end."""
    rig.worker()
    sizes = rig.sizes
    began = time.perf_counter()
    loop = rig.create("bench_looped", iterations=sizes.iterations, window=sizes.window)
    found = loop.result(timeout=LONG)
    rig.emit("G", total_s=round(time.perf_counter() - began, 1), **found)


def long(rig: Rig) -> None:
    """L: the same for long, with a race, a retry and a failure every ten iterations; history rows and memory on the
    way, looked at twice a second."""
    from rivet_workflows.models import History

    worker = rig.worker()
    sizes = rig.sizes
    window = max(sizes.window, sizes.long // 100)
    loop = rig.create("bench_looped", iterations=sizes.long, window=window, mixed=True)
    over = threading.Event()
    rows: list[int] = []
    memory: list[float] = []

    def watch() -> None:
        from django.db import connections

        while not over.wait(0.5 if sizes.long > 1000 else 0.05):
            rows.append(History.objects.filter(actor_id=loop.actor_id).count())
            memory.append(rss_mib(worker))
        connections.close_all()

    watcher = threading.Thread(target=watch)
    began = time.perf_counter()
    watcher.start()
    try:
        found = loop.result(timeout=60 * 60)
    finally:
        over.set()
        watcher.join()
    early = len(memory) // 10
    rig.emit(
        "L",
        setting=f"{sizes.long} iterations",
        total_s=round(time.perf_counter() - began, 1),
        **found,
        rows_most=max(rows, default=0),
        rows_left=History.objects.filter(actor_id=loop.actor_id).count(),
        rss_early_mib=round(memory[early], 1) if memory else None,
        rss_late_mib=round(memory[-1], 1) if memory else None,
    )
