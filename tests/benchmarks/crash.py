"""A worker killed with a thousand workflows in flight (E)."""

from __future__ import annotations

import time

from tests.benchmarks.rig import LONG, Rig, stop
from tests.waiting import until


def kill(rig: Rig) -> None:
    """E: workflows of five steps, a nap and five steps; ``kill -9`` when all have done five, and another worker.

    ``recover_s`` is from the start of the other worker to the last step, ``twice`` the steps that ran twice.
    """
    rig.stop()
    count = rig.sizes.crashed
    rig.log.unlink(missing_ok=True)
    first = rig.start()
    began = time.perf_counter()
    made = [rig.create("bench_crashy", nap=rig.sizes.nap) for _ in range(count)]
    until(lambda: len(_lines(rig)) >= 5 * count, "all have done five steps", LONG)
    first_phase = time.perf_counter() - began
    first.kill()
    first.wait()
    before = len(_lines(rig))
    began = time.perf_counter()
    second = rig.start()
    until(lambda: len(set(_lines(rig))) >= 10 * count, "all steps have run", LONG)
    recovered = time.perf_counter() - began
    rig.await_all(made)
    stop(second)
    lines = _lines(rig)
    rig.emit(
        "E",
        finished=True,
        first_phase_s=round(first_phase, 1),
        before=before,
        recover_s=round(recovered, 2),
        twice=len(lines) - len(set(lines)),
        unique=len(set(lines)),
    )


def _lines(rig: Rig) -> list[str]:
    return rig.log.read_text().splitlines() if rig.log.exists() else []
