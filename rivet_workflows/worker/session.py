"""The life of a worker under one id: register, turn after turn, hand everything back.

A turn: take what came in, tell the core, carry out what it orders, and look around (claim, take over, poll) when a
bell, a heartbeat or the clock says so. One thread, one database connection, one statement at a time: groups form by
themselves meanwhile, which measured faster than any other placement. While PostgreSQL is at a statement the thread
starts steps and hears of their ends (:meth:`Carrier.meanwhile`); on other databases it waits.

A session ends when the worker is told to stop, when there is nothing left to do (``burst``), or when its lease is lost:
then others may hold its actors, so it lets go of all and the worker begins another session, under a new id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from rivet_workflows.crashpoints import crashpoint
from rivet_workflows.records import Claimed, Release
from rivet_workflows.store.bells import SCHEDULES
from rivet_workflows.worker import maintenance
from rivet_workflows.worker.carry import Carrier
from rivet_workflows.worker.control import Control
from rivet_workflows.worker.dbtime import DatabaseTime
from rivet_workflows.worker.firing import Firing
from rivet_workflows.worker.guard import workflow_code
from rivet_workflows.worker.hooks import Hooks, Waking
from rivet_workflows.worker.inbox import Inbox, Mail
from rivet_workflows.worker.patience import GivenUp, Patience
from rivet_workflows.worker.ports import CoreLike, WorkerStore
from rivet_workflows.worker.runner import StepRunner

logger = logging.getLogger("rivet_workflows.worker")

#: Actors that one claim takes at most: its rows are locked together.
CLAIM_LIMIT = 200
#: Actors that one look for callers brings.
CALLED_LIMIT = 100
#: Seconds between attempts to give back actors whose rows are locked.
LOCKED_PAUSE = 0.05
#: Seconds between polls where the database has no bell between processes.
POLL_WITHOUT_BELL = 0.5
#: Seconds between tries of actors that other code than ours refused. Workers of that code delete their wakes.
DIVERGED_EVERY = 30.0
#: Seconds after the deadline of a stop in which what was interrupted is handed back.
HAND_BACK = 5.0


@dataclass(slots=True, frozen=True)
class Habits:
    """How a worker behaves; seconds."""

    lease: float = 6.0
    heartbeat: float = 2.0
    poll: float = 5.0
    #: End when nothing is due; ``until_idle``: wait out timers first.
    burst: bool = False
    until_idle: bool = False


class Session:
    """Made with a registered worker id and a fresh core; :meth:`run` returns when it is over."""

    def __init__(
        self,
        worker_id: int,
        core: CoreLike,
        carrier: Carrier,
        *,
        store: WorkerStore,
        runner: StepRunner,
        inbox: Inbox,
        patience: Patience,
        time: DatabaseTime,
        control: Control,
        types: dict[str, str],
        firing: Firing,
        hooks: Hooks,
        habits: Habits,
        serves: Sequence[str] = (),
        maintain: Callable[[Callable[[], bool]], Any] = lambda _stopping: None,
        monotonic: Callable[[], float] = monotonic,
    ) -> None:
        self._monotonic = monotonic
        self.worker_id = worker_id
        self._core = core
        self._carrier = carrier
        self._store = store
        self._runner = runner
        self._inbox = inbox
        self._db = patience
        self._time = time
        self._control = control
        self._types = types
        #: Actor types with actions that are run here for callers.
        self._serves = serves
        #: Callers may want actors that nobody holds.
        self._called = True
        self._firing = firing
        self._waking = Waking(
            hooks, runner.hook, inbox.woken, lambda: control.stopping or self._lost is not None
        )
        self._habits = habits
        #: Something is to be claimed, as far as known. True at the start, for what lay there before.
        self._work = True
        self._poll_at = 0.0
        self._maintenance = maintain
        self._maintain_at = 0.0
        self._poll = habits.poll
        #: When the next wake in the database is due, as of the last poll.
        self._next_wake: int | None = None
        self._more = True
        self._handing_back = False
        self._interrupted = False
        self._deadline = float("inf")
        self._lost: str | None = None
        self._told_lost = False
        #: Nothing was found at the last look around, and nothing has happened since.
        self._dry = False
        self._outages = 0
        #: The last sweep found more than there was room for.
        self._sweeping = False
        #: Dead workers some of whose actors were taken over, and not all yet.
        self._left_by: set[int] = set()
        self._diverged_at = 0.0

    def poll_often(self) -> None:
        """Nothing rings here: asking is the only way to hear."""
        self._poll = min(self._poll, POLL_WITHOUT_BELL)

    # -- from other threads

    def lose(self, reason: str) -> None:
        """The lease is lost: interrupt every step at once, and let go of everything."""
        self._lost = reason
        self._runner.abandon()
        self._inbox.wake()

    @property
    def lost(self) -> str | None:
        return self._lost

    @property
    def handed_back(self) -> bool:
        """Was everything given back, so that nobody has to take it over?"""
        carrier = self._carrier
        waits = carrier.unreleased or carrier.sleeping or carrier.calling_last or self._waking
        return self._core.held == 0 and not waits

    # -- the core's thread

    def run(self) -> None:
        """Turn after turn until it is over."""
        try:
            while not self.over():
                self.turn(self.rest())
        except GivenUp:
            logger.warning(
                "Leaving while the database does not answer; what was held goes to others with the lease"
            )

    def turn(self, wait: float) -> None:
        """One turn; waits up to ``wait`` seconds for something to come in."""
        mail = self._inbox.take(wait)
        self._feed(mail)
        self._heed_stop()
        self._more = self._act()
        if not self._handing_back:
            self._look_around(mail)
        self._carrier.raise_what_failed()

    def _feed(self, mail: Mail) -> None:
        if self._db.outages != self._outages:
            self._outages = self._db.outages
            self._after_outage()
        if mail.poll:
            self._poll_at = 0.0
        if mail.woken:
            self._have_woken(mail.woken)
        if mail.slept:
            self._dry = False
            self._carrier.slept(mail.slept)
            # Bells that rang for them meanwhile were in vain.
            self._work = True
        if mail.called:
            self._carrier.called(mail.called)
        if SCHEDULES in mail.rung:
            mail.rung.discard(SCHEDULES)
            self._dry = False
            self._fire()
        if not (mail.for_core or mail.rung):
            return
        self._dry = False
        core, now = self._core, self._time.now()
        with workflow_code():
            mail.tell(core, now)
            held = [actor_id for actor_id in mail.rung if core.holds(actor_id)]
            if held:
                core.rung(held, now)
        if len(held) < len(mail.rung):
            self._work = self._called = True

    def serve_atomics(self) -> None:
        """Answer atomic steps that have returned, in the middle of whatever this thread waits for: those whose reports
        come in, and those of which the core was told before and whose answers have not been fetched."""
        with workflow_code():
            for token, report in self._inbox.take_atomics():
                self._core.step_done(token, report, self._time.now())
            answers = self._core.take_atomics()
        self._carrier.answer_atomics(answers)

    def _after_outage(self) -> None:
        """Bells may have been missed, other threads' connections are as dead as ours was, and an answer may be lost:
        of a claim that was committed, whose actors are ours and nowhere in memory."""
        self._runner.outages.seen()
        self._poll_at = 0.0
        with workflow_code():
            self._core.rung(None, self._time.now())
        given_back = {release.actor_id for release in self._carrier.unreleased}
        given_back |= {actor_id for actor_id, _ in self._carrier.sleeping} | self._waking.ids
        given_back |= self._core.giving_back
        given_back |= {actor_id for actor_id, _ in self._carrier.calling_last}
        ours = self._db(self._store.held, self.worker_id)
        unknown = [(a, epoch) for a, epoch in ours.items() if not self._core.holds(a) and a not in given_back]
        if unknown:
            logger.info("Found %d actors whose claim was cut off", len(unknown))
            loaded = self._db(self._store.load, self.worker_id, unknown)
            # Those that were to be guests go back; whoever looks next takes them again.
            there = {one.actor_id for one in loaded}
            self._carrier.unreleased += [Release(a, epoch) for a, epoch in unknown if a not in there]
            self._take_up(loaded)

    def _act(self) -> bool:
        """One round of orders; True when there may be more at once."""
        core, now = self._core, self._time.now()
        due = core.next_due
        if due is not None and due <= now:
            crashpoint("timer-fire")
        with workflow_code():
            core.tick(now)
            orders = core.orders()
        if not orders:
            self._carrier.release()
            return False
        self._dry = False
        self._carrier.carry(orders)
        # Callers of an actor that is let go have to be served otherwise.
        self._called = self._called or bool(orders.gone)
        return True

    def rest(self) -> float:
        """Seconds that may be slept when nothing comes in."""
        if self._more:
            return 0.0
        moment = self._monotonic()
        wait = self._habits.heartbeat
        if self._carrier.unreleased:
            wait = LOCKED_PAUSE
        if self._handing_back:
            until = self._deadline if not self._interrupted else self._deadline + HAND_BACK
            wait = min(wait, until - moment)
        elif self._work and self._room > 0:
            return 0.0
        else:
            wait = min(wait, self._poll_at - moment)
        due = self._core.next_due
        if due is not None:
            # Rounded up: a wake-up a hair too early would find nothing due and come back at once.
            wait = min(wait, (due - self._time.now()) / 1e6 + 0.0002)
        return max(0.0, wait)

    # -- looking around

    def _look_around(self, mail: Mail) -> None:
        if mail.sweep or (self._sweeping and self._room > 0):
            self._sweep()
            self._maintain()
        polling = self._monotonic() >= self._poll_at
        if polling:
            self._poll_database()
        if self._room > 0 and self._work:
            self._claim()
        if self._room > 0 and self._called:
            self._serve_callers()
        if (self._habits.burst or self._habits.until_idle) and not self._more and self._core.idle:
            self._end_when_dry()

    def _claim(self) -> None:
        limit = min(self._room, CLAIM_LIMIT)
        claimed, self._work = self._db(
            self._store.claim, self.worker_id, self._types, limit, meanwhile=self._carrier.meanwhile()
        )
        if claimed:
            logger.debug("Claimed %d actors%s", len(claimed), "; there are more" if self._work else "")
            self._take_up(claimed)

    def _serve_callers(self) -> None:
        """See to it that actors whose callers wait are held by somebody: by us as guests, where no workflow can run."""
        self._called = False
        if not self._serves:
            return
        found = self._db(self._store.wanted, self.worker_id, self._serves, CALLED_LIMIT)
        if found.ours:
            with workflow_code():
                self._core.rung(found.ours, self._time.now())
        if found.asleep:
            self._db(self._store.wake_called, found.asleep)
            self._work = True
        if found.guests:
            self._take_up(self._db(self._store.take_guests, self.worker_id, found.guests))
        self._more = self._more or bool(found)

    def _maintain(self) -> None:
        """Tidy up now and then, on an errand thread."""
        moment = self._monotonic()
        if moment < self._maintain_at or self._control.stopping:
            return
        self._maintain_at = moment + maintenance.INTERVAL
        self._runner.errand(lambda: self._maintenance(lambda: self._control.stopping))

    def _poll_database(self) -> None:
        """The net under the bells: what they should have announced; and when the next wake is due, ours or not."""
        self._work = self._called = True
        due = self._db(self._store.due_wakes_of_held, self.worker_id, self._types)
        if due:
            core = self._core
            with workflow_code():
                core.rung(due, self._time.now())
            if not core.idle:
                # Somebody looks again. (A wake may also lie there for one that sleeps, and wants no message now.)
                self._dry = False
                self._more = True
        self._poll_at = self._monotonic() + self._poll
        if self._monotonic() >= self._diverged_at:
            self._diverged_at = self._monotonic() + DIVERGED_EVERY
            self._db(self._store.wake_diverged, self._types)
        self._next_wake = wake = self._db(self._store.next_wake, self._types)
        if wake is not None:
            self._poll_at = min(self._poll_at, self._monotonic() + max(0.0, (wake - self._time.now()) / 1e6))
        self._fire()

    def _fire(self) -> None:
        """Have due schedules fired, and poll again when the next is due."""
        if self._control.stopping or self._lost is not None:
            return
        now = self._time.now()
        due = self._db(self._firing.look, now)
        if due is not None:
            # Rounded up, as in rest.
            self._poll_at = min(self._poll_at, self._monotonic() + (due - now) / 1e6 + 0.0002)

    def _sweep(self) -> None:
        """Take over from workers whose hearts have stopped. Each heartbeat looks again: nothing is done once only."""
        self._sweeping = False
        for dead in self._db(self._store.dead_workers, round(self._habits.lease * 1e6)):
            if dead == self.worker_id:
                continue
            taken, more = 0, True
            while more and (room := self._room) > 0:
                limit = min(room, CLAIM_LIMIT)
                claimed = self._db(self._store.take_over, self.worker_id, dead, self._types, limit)
                self._take_up(claimed)
                taken, more = taken + len(claimed), bool(claimed)
            if taken:
                level = logging.DEBUG if dead in self._left_by else logging.WARNING
                logger.log(level, "Took over %d actors of worker %d, whose heart has stopped", taken, dead)
                self._left_by.add(dead)
            if more:
                # No room: the first turn that has some goes on, as soon as those that came have found their rest.
                self._sweeping = True
            else:
                # What is left are actors that this worker has no code for: free for those that have. If some are
                # locked, the row stays for the next sweep.
                self._left_by.discard(dead)
                self._db(self._store.forget_worker, dead)

    @property
    def _room(self) -> int:
        """How many more actors may be claimed."""
        return max(0, self._core.room - len(self._waking))

    def _take_up(self, claimed: list[Claimed]) -> None:
        """Hand actors to the core, those with hooks of waking after these have run."""
        self._dry = False
        self._more = True
        ready = self._waking.begin(claimed)
        with workflow_code():
            self._core.loaded(ready, self._time.now())

    def _have_woken(self, woken: list[Claimed]) -> None:
        self._dry = False
        self._more = True
        now = self._time.now()
        ours = self._waking.end(woken)
        if self._handing_back:
            for one in ours:
                self._carrier.let_go((one.actor_id, one.epoch), Release(one.actor_id, one.epoch, now))
            return
        with workflow_code():
            self._core.loaded(ours, now)

    # -- ending

    def _end_when_dry(self) -> None:
        if not self._dry:
            # Ask once more before believing it: something may have come in since the last poll.
            self._dry = True
            self._poll_at = 0.0
            self._inbox.wake()
            return
        if self._work or self._more or self._runner.running or self._firing.busy:
            return
        if self._waking or self._carrier.sleeping:
            return
        if self._habits.until_idle:
            # The next wake as read before the last claim: one that has come due since would be seen by neither.
            if self._core.next_timer is not None or self._next_wake is not None:
                return
            if self._db(self._firing.next_one_shot) is not None:
                return
        self._control.stop(0.0, "nothing is left to do")
        self._inbox.wake()

    def _heed_stop(self) -> None:
        """Begin to hand back, once; interrupt what still runs when its time is up, once."""
        lost, begins = self._lost is not None and not self._told_lost, not self._handing_back
        if lost or (begins and self._control.stopping):
            self._handing_back, self._told_lost = True, lost
            self._deadline = self._monotonic() if lost else self._control.deadline
            if lost:
                logger.error(
                    "This worker has lost its lease: %s. It begins anew, under another id", self._lost
                )
            elif self._core.running:
                logger.info("Letting %d running steps finish", self._core.running)
            if begins:
                self._firing.stop()
            with workflow_code():
                self._core.stop(self._time.now(), lost=lost)
            if not lost:
                self._db(self._store.drain, self.worker_id)
        if self._handing_back:
            self._deadline = min(self._deadline, self._control.deadline)
            if not self._interrupted and self._monotonic() >= self._deadline:
                self._interrupted = True
                if self._runner.running:
                    logger.warning("Interrupting %d steps; they run again elsewhere", self._runner.running)
                self._runner.abandon()
                with workflow_code():
                    self._core.leave_calls(self._time.now())
                self._carrier.leave_calls()
                self._feed(self._inbox.take(0))

    def over(self) -> bool:
        """Is there nothing left to do for this session? May log that something had to be left."""
        if not self._handing_back:
            return False
        if self.handed_back and not self._more and (self._interrupted or not self._firing.busy):
            return True
        if self._interrupted and self._monotonic() > self._deadline + HAND_BACK:
            logger.warning("%d actors could not be handed back; others take them over", self._core.held)
            return True
        return False
