"""The threads that ``def`` steps run on: our own, daemonic, kept, no more of them than there is work that blocks.

Not ``ThreadPoolExecutor``: the interpreter's exit joins its threads, so a step that never returns would keep the worker
from stopping. And it wakes a thread per job: a trivial step ran at 20,000 a second on one thread, at 11,600 on fifty.
Here a thread that takes a job rouses another one only while jobs have lately been waiting for something (database,
network); beside that, one thread watches for queues that do not move and for timeouts.

Knows jobs, not steps: anything with ``timeout``, ``run(thread)`` and ``time_out()``.
"""

from __future__ import annotations

import contextvars
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from rivet_workflows.worker.connections import Health, Outages, close_all

logger = logging.getLogger("rivet_workflows.worker")

#: Seconds in which a queue must move before another thread is roused.
STALL = 0.002
#: Seconds a job must have waited, of the time it took, to count as one that blocks.
BLOCKED = 0.0001


class Job(Protocol):
    """Something to run on a thread."""

    @property
    def timeout(self) -> float | None:
        """Seconds that it may run; None: as long as it likes."""

    def run(self) -> bool:
        """Do it; returns whether it went well. Must not raise."""

    def time_out(self) -> None:
        """Called, on another thread, when it has run for ``timeout``."""


class _Thread(threading.Thread):
    """One thread of a pool. Its fields are guarded by the pool's lock, the gate apart."""

    def __init__(self, pool: Threads, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.pool = pool
        #: Closed while the thread has nothing to do.
        self.gate = threading.Lock()
        self.gate.acquire()
        self.job: Job | None = None
        self.deadline: float | None = None
        #: Its job has timed out and still runs.
        self.stuck = False

    def run(self) -> None:
        self.pool._work(self)


class Threads:
    """At most ``size`` threads, and as many again for those that are stuck in a job past its timeout.

    ``exhausted`` is called once, when every thread is stuck and there may be no more.
    """

    def __init__(
        self, size: int, name: str, outages: Outages, exhausted: Callable[[], None] = lambda: None
    ) -> None:
        self._size = size
        self._name = name
        self._outages = outages
        self._exhausted: Callable[[], None] | None = exhausted
        self._lock = threading.Lock()
        self._watch = threading.Condition(self._lock)
        self._watching_until = float("inf")
        self._queue: deque[Job] = deque()
        self._threads: set[_Thread] = set()
        self._idle: list[_Thread] = []
        #: Roused, and not yet come for a job.
        self._coming = 0
        self._taken = 0
        #: How much of the late work has blocked, 0 to 1, weighted towards the newest.
        self._blocking = 0.0
        self._stopping = False
        self._numbers = itertools.count(1)
        self._watcher: threading.Thread | None = None

    def submit(self, jobs: Iterable[Job]) -> None:
        """Run these, in order of submission, as threads get free."""
        with self._lock:
            self._queue.extend(jobs)
            if not self._queue or self._stopping:
                return
            if self._watcher is None:
                self._watcher = threading.Thread(
                    target=self._keep_watch, name=f"{self._name}-watch", daemon=True
                )
                self._watcher.start()
            if not self._coming:
                self._rouse()
            if len(self._queue) > self._coming and self._may_grow():
                self._look_by(time.monotonic() + STALL)

    def withdraw(self) -> list[Job]:
        """Take back everything that no thread has begun."""
        with self._lock:
            jobs = list(self._queue)
            self._queue.clear()
            return jobs

    def stop(self, *, finish: bool = False) -> None:
        """Let the threads end: those at rest now, the others after their job, with ``finish`` after all that waits.
        Does not wait for them."""
        with self._lock:
            self._stopping = True
            if not finish:
                self._queue.clear()
            for thread in self._idle:
                thread.gate.release()
            self._idle.clear()
            self._watch.notify()

    def join(self, timeout: float) -> bool:
        """After :meth:`stop`: have all threads ended within ``timeout`` seconds?"""
        until = time.monotonic() + timeout
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    @property
    def count(self) -> int:
        """Threads that exist."""
        return len(self._threads)

    # -- on the threads

    def _work(self, thread: _Thread) -> None:
        health = Health(self._outages)
        roused = True
        try:
            while True:
                job = self._next(thread, roused)
                roused = False
                if job is not None:
                    self._run(thread, job, health)
                elif self._stopping or thread not in self._threads:
                    return
                else:
                    thread.gate.acquire()
                    roused = True
        finally:
            close_all()
            with self._lock:
                self._threads.discard(thread)

    def _next(self, thread: _Thread, roused: bool) -> Job | None:
        with self._lock:
            if roused and self._coming:
                self._coming -= 1
            thread.job = thread.deadline = None
            if thread.stuck:
                # Its place may have been filled: then it is one too many.
                thread.stuck = False
                if len(self._threads) > self._size:
                    self._threads.discard(thread)
                    return None
            if not self._queue:
                if not self._stopping:
                    self._idle.append(thread)
                return None
            job = self._queue.popleft()
            self._taken += 1
            thread.job = job
            if job.timeout is not None:
                thread.deadline = time.monotonic() + job.timeout
                self._look_by(thread.deadline)
            if self._queue and not self._coming and self._blocking > 0.3:
                self._rouse()
            return job

    def _run(self, thread: _Thread, job: Job, health: Health) -> None:
        health.before()
        began, used = time.perf_counter(), time.thread_time()
        # A context of its own: what a step sets (language, time zone) must not reach the next one.
        well = contextvars.copy_context().run(job.run)
        waited = (time.perf_counter() - began) - (time.thread_time() - used)
        self._blocking += 0.1 * ((waited > BLOCKED) - self._blocking)
        health.after(failed=not well)

    # -- growing and watching, with the lock held where not said otherwise

    def _may_grow(self) -> bool:
        busy = sum(1 for thread in self._threads if not thread.stuck)
        return bool(self._idle) or (busy < self._size and len(self._threads) < 2 * self._size)

    def _rouse(self) -> None:
        if self._idle:
            thread = self._idle.pop()  # the one that rested least: its caches and its connection are warm
            self._coming += 1
            thread.gate.release()
        elif self._may_grow():
            thread = _Thread(self, f"{self._name}-{next(self._numbers)}")
            self._threads.add(thread)
            self._coming += 1
            thread.start()

    def _look_by(self, when: float) -> None:
        if when < self._watching_until:
            self._watching_until = when
            self._watch.notify()

    def _keep_watch(self) -> None:
        """The watcher's own loop. Takes the lock itself."""
        taken = -1
        while True:
            with self._lock:
                if self._stopping and not any(thread.deadline for thread in self._threads):
                    return
                late = self._late(time.monotonic())
                if self._queue and not self._coming and self._taken == taken:
                    self._rouse()
                taken = self._taken
                exhausted = self._all_stuck()
            for job in late:
                job.time_out()
            if exhausted is not None:
                exhausted()
            with self._lock:
                self._watching_until = self._next_look()
                wait = self._watching_until - time.monotonic()
                if wait > 0:
                    self._watch.wait(None if wait == float("inf") else wait)

    def _late(self, now: float) -> list[Job]:
        late: list[Job] = []
        for thread in self._threads:
            if thread.deadline is not None and thread.deadline <= now and thread.job is not None:
                thread.deadline = None
                thread.stuck = True
                late.append(thread.job)
        return late

    def _next_look(self) -> float:
        deadlines = [thread.deadline for thread in self._threads if thread.deadline is not None]
        when = min(deadlines, default=float("inf"))
        if self._queue and self._may_grow():
            when = min(when, time.monotonic() + STALL)
        return when

    def _all_stuck(self) -> Callable[[], None] | None:
        if len(self._threads) < 2 * self._size or not all(thread.stuck for thread in self._threads):
            return None
        told, self._exhausted = self._exhausted, None
        return told
