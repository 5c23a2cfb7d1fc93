"""The one door into the core's thread: reports, bells and orders from outside, taken in batches.

Any thread puts; the core's thread takes all there is, and sleeps here when there is nothing. It is roused once,
however much comes in until it looks.
"""

from __future__ import annotations

import os
import select
import threading
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from uuid import UUID

from rivet_workflows.records import Claimed, CommitResult, StateWrite
from rivet_workflows.worker.children import ChildNews
from rivet_workflows.worker.orders import CallStart, StateChange, StepReport, StepToken
from rivet_workflows.worker.ports import CoreLike


@dataclass(slots=True)
class Mail:
    """What came in since the last look."""

    reports: list[tuple[StepToken, StepReport]] = field(default_factory=list)
    remerged: list[tuple[UUID, StateChange, StateWrite | None]] = field(default_factory=list)
    #: What came of orders to create and watch children.
    children: list[ChildNews] = field(default_factory=list)
    #: Calls of actions that are through.
    called: list[CallStart] = field(default_factory=list)
    #: What became of commits that atomic steps made in their own transactions.
    committed: list[tuple[StepToken, CommitResult]] = field(default_factory=list)
    #: Actors whose hooks of taking up, and of letting go, are through.
    woken: list[Claimed] = field(default_factory=list)
    slept: list[tuple[UUID, int]] = field(default_factory=list)
    #: Actors for which something was written, held here or not.
    rung: set[UUID] = field(default_factory=set)
    #: Something was written, or a bell may have been missed: time to ask the database.
    poll: bool = False
    #: A heartbeat was written: time to look for workers whose hearts stopped.
    sweep: bool = False

    @property
    def for_core(self) -> bool:
        """There is something to tell the core, bells apart."""
        return bool(self.reports or self.remerged or self.committed or self.children or self.called)

    def tell(self, core: CoreLike, now: int) -> None:
        """Tell the core, commits first: what was reported since may build on them."""
        for token, result in self.committed:
            core.atomic_committed(token, result, now)
        for token, report in self.reports:
            core.step_done(token, report, now)
        for actor_id, change, write in self.remerged:
            core.remerged(actor_id, change, write, now)
        for news in self.children:
            core.child_begun(news.start, news.child_id, news.end, now)
        for done in self.called:
            core.call_done(done.actor_id, done.epoch, done.call.id, now)


class _Bell:
    """A pipe, so that a report ends a wait for a socket."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        weakref.finalize(self, _close, self._read, self._write)

    def ring(self) -> None:
        with suppress(BlockingIOError):  # full: whoever waits will wake
            os.write(self._write, b"x")

    def wait(self, socket: int) -> None:
        if self._read in wait_readable(socket, self._read):
            os.read(self._read, 4096)


def wait_readable(*files: int) -> list[int]:
    """Wait until some of these have something to read, however many files are open; which."""
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    return [file for file, _ in poll.poll()]


def _close(*ends: int) -> None:
    for end in ends:
        os.close(end)


class Inbox:
    """Thread-safe on the side of those who put; ``take`` belongs to one thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._mail = Mail()
        self._any = False
        self._asleep = False
        #: For the one who waits for a socket too; made when somebody does.
        self._bell: _Bell | None = None
        self._by_bell = False

    def report(self, token: StepToken, report: StepReport) -> None:
        with self._changed:
            self._mail.reports.append((token, report))
            self._reported()

    def reports(self, told: Iterable[tuple[StepToken, StepReport]]) -> None:
        """Several at once: the core's thread is roused once, when all are there."""
        with self._changed:
            self._mail.reports.extend(told)
            self._reported()

    def remerged(self, actor_id: UUID, change: StateChange, write: StateWrite | None) -> None:
        with self._changed:
            self._mail.remerged.append((actor_id, change, write))
            self._arrived()

    def committed(self, token: StepToken, result: CommitResult) -> None:
        with self._changed:
            self._mail.committed.append((token, result))
            self._arrived()

    def child(self, news: ChildNews) -> None:
        with self._changed:
            self._mail.children.append(news)
            self._arrived()

    def called(self, done: CallStart) -> None:
        with self._changed:
            self._mail.called.append(done)
            self._arrived()

    def woken(self, claimed: Claimed) -> None:
        with self._changed:
            self._mail.woken.append(claimed)
            self._arrived()

    def slept(self, held: tuple[UUID, int]) -> None:
        with self._changed:
            self._mail.slept.append(held)
            self._arrived()

    def ring(self, actor_ids: Iterable[UUID]) -> None:
        """Something was written for these actors."""
        with self._changed:
            self._mail.rung.update(actor_ids)
            self._arrived()

    def poll(self) -> None:
        """Something was written, for nobody knows whom."""
        with self._changed:
            self._mail.poll = True
            self._arrived()

    def sweep(self) -> None:
        with self._changed:
            self._mail.sweep = True
            self._arrived()

    def wake(self) -> None:
        """Nothing came in, but what the core's thread waits for may have changed (a stop)."""
        with self._changed:
            self._arrived()

    @property
    def empty(self) -> bool:
        """Would :meth:`take` find nothing?"""
        return not self._any

    def take(self, timeout: float | None) -> Mail:
        """All there is; waits up to ``timeout`` seconds for it (None: for ever, 0: not at all)."""
        with self._changed:
            if not self._any and timeout != 0:
                self._asleep = True
                self._changed.wait(timeout)
                self._asleep = False
            mail, self._mail = self._mail, Mail()
            self._any = False
            return mail

    def take_atomics(self) -> list[tuple[StepToken, StepReport]]:
        """The reports of atomic steps alone, which wait for an answer with their transaction open."""
        with self._changed:
            found = [(token, report) for token, report in self._mail.reports if report.atomic]
            if found:
                self._mail.reports = [
                    (token, report) for token, report in self._mail.reports if not report.atomic
                ]
            return found

    def take_reports(self, most: int) -> list[tuple[StepToken, StepReport]]:
        """At most so many reports; none of atomic steps, as what such a step is to commit may depend on the commit that
        is being made, and none that came behind the outcome of one."""
        with self._changed:
            if self._mail.committed:
                return []
            reports = self._mail.reports
            found = list(islice((one for one in reports if not one[1].atomic), most))
            if any(report.atomic for _, report in reports[: len(found)]):
                tokens = {token for token, _ in found}
                reports[:] = [one for one in reports if one[0] not in tokens]
            else:
                del reports[: len(found)]
            return found

    def wait_for_reports(self, socket: int) -> None:
        """Until a report has come that can be taken, or ``socket`` has something to read."""
        with self._changed:
            if not self._mail.committed and not all(report.atomic for _, report in self._mail.reports):
                return
            bell = self._bell = self._bell or _Bell()
            self._by_bell = True
        bell.wait(socket)
        self._by_bell = False

    def _reported(self) -> None:
        self._arrived()
        if self._by_bell:
            self._by_bell = False
            assert self._bell is not None
            self._bell.ring()

    def _arrived(self) -> None:
        self._any = True
        if self._asleep:
            self._asleep = False
            self._changed.notify()
