"""Steps: many workflows at once (A), one alone (A2), from start to finish (B), several processes (P)."""

from __future__ import annotations

import time

from tests.benchmarks.actors import MODES
from tests.benchmarks.rig import Rig, cpu_s, history_span, latencies, spread, stop, timed


def many(rig: Rig) -> None:
    """A: so many workflows of trivial steps, from the first creation to the last end, creations one by one included.

    A-before: created while no worker runs; from the first start to the last end.
    """
    sizes = rig.sizes
    total = sizes.workflows * sizes.steps
    for mode in MODES:
        worker = rig.worker()
        cpu, began = cpu_s(worker), time.perf_counter()
        rig.await_all(
            [rig.create("bench_steps", mode=mode, steps=sizes.steps) for _ in range(sizes.workflows)]
        )
        took, cpu = time.perf_counter() - began, cpu_s(worker) - cpu
        rig.emit("A", mode=mode, steps_s=round(total / took), cpu_ms_step=round(cpu * 1e3 / total, 3))
    for mode in sizes.created_before:
        rig.stop()
        made = [rig.create("bench_steps", mode=mode, steps=sizes.steps) for _ in range(sizes.workflows)]
        rig.worker()
        rig.await_all(made)
        rig.emit("A-before", mode=mode, steps_s=round(total / history_span(made)))


def alone(rig: Rig) -> None:
    """A2: one workflow of many steps."""
    rig.worker()
    for mode in MODES:
        seconds = timed(lambda: rig.await_all([rig.create("bench_steps", mode=mode, steps=rig.sizes.alone)]))  # noqa: B023
        rig.emit("A2", mode=mode, ms_step=round(seconds * 1e3 / rig.sizes.alone, 3))


def start_to_finish(rig: Rig) -> None:
    """B: a workflow of one step, from its creation to its result at the caller."""
    rig.worker()
    for pause in (0.002, 0.015):
        found = spread(
            lambda _: rig.create("bench_steps", mode="async", steps=1).result(timeout=60),
            rig.sizes.starts,
            pause,
        )
        rig.emit("B", how=f"{pause * 1000:.0f} ms apart", **latencies(found))


def processes(rig: Rig) -> None:
    """P: as A-before, with a larger fleet, on one worker process and on two (``--processes 2``)."""
    rig.stop()
    sizes = rig.sizes
    for mode, count in sizes.processes:
        made = [rig.create("bench_steps", mode=mode, steps=sizes.steps) for _ in range(sizes.fleet)]
        worker = rig.start("--processes", str(count))
        rig.await_all(made)
        stop(worker)
        rate = sizes.fleet * sizes.steps / history_span(made)
        rig.emit("P", mode=mode, setting=f"--processes {count}", steps_s=round(rate))
