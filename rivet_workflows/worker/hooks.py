"""Taking up and letting go: ``create_vars`` and ``on_wake`` before a worker runs an actor, ``on_sleep`` after.

They are users' code and may take long, so they run on threads of their own; the core gets the actor when they are
through, and it is given back when ``on_sleep`` is. What one raises is logged and told to ``on_error``, and changes
nothing: an actor is not lost because its hook fails, or does not end (``hookjobs``). Nobody calls ``on_sleep`` where a
worker was killed or the actor is destroyed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from rivet_workflows.client.actions import run_worker_hook
from rivet_workflows.exceptions import ActorNotFound
from rivet_workflows.records import Claimed
from rivet_workflows.worker.attempt import describe
from rivet_workflows.worker.failures import FailureTeller
from rivet_workflows.worker.hookjobs import HookJob, Wanted, too_long
from rivet_workflows.worker.orders import ErrorEvent
from rivet_workflows.worker.vars import VarsTable

if TYPE_CHECKING:
    from rivet_workflows.registry import ActorType

logger = logging.getLogger("rivet_workflows.worker")

#: An actor as one holder holds it: its id, and the epoch that the claim began.
Held = tuple[UUID, int]


class Hooks:
    """The hooks of the actors that one worker holds."""

    def __init__(self, catalog: Callable[[str], ActorType], vars: VarsTable, failures: FailureTeller) -> None:
        self._catalog = catalog
        self._vars = vars
        self._failures = failures
        #: The hook that runs, of each actor.
        self._running: dict[Held, tuple[ActorType, str, str]] = {}
        #: Actors that were taken up and whose ``on_sleep`` is to be called, with their keys.
        self._awake: dict[Held, tuple[ActorType, str]] = {}

    def wanted(self, claimed: Claimed) -> bool:
        """Must :meth:`wake` be called before the core may have it?"""
        kind = self._kind(claimed)
        return kind is not None and ("create_vars" in kind.hooks or "on_wake" in kind.hooks)

    def note(self, claimed: Claimed) -> None:
        """It is taken up: its ``on_sleep`` is called when it is let go."""
        kind = self._kind(claimed)
        if kind is not None and "on_sleep" in kind.hooks:
            self._awake[claimed.actor_id, claimed.epoch] = (kind, claimed.key)

    def wake(self, claimed: Claimed, wanted: Wanted = lambda: True) -> None:
        """``create_vars``, then ``on_wake``, in the calling thread, as long as they are ``wanted``."""
        kind = self._kind(claimed)
        if kind is None:
            return
        held = claimed.actor_id, claimed.epoch
        if "create_vars" in kind.hooks:
            made = self._run(kind, held, claimed.key, "create_vars", wanted)
            if made is not None and wanted():
                self._vars.put(held, made[0])
        if "on_wake" in kind.hooks and wanted():
            self._run(kind, held, claimed.key, "on_wake", wanted)
        if wanted():
            self.note(claimed)

    def sleeps(self, held: Held) -> bool:
        """Has it an ``on_sleep`` that is still to be called?"""
        return held in self._awake

    def sleep(self, held: Held, wanted: Wanted = lambda: True) -> None:
        """``on_sleep``, in the calling thread; then its vars are gone."""
        kind, key = self._awake.pop(held)
        try:
            self._run(kind, held, key, "on_sleep", wanted)
        finally:
            self._vars.forget(*held)

    def late(self, held: Held) -> None:
        """The hook that runs for this actor has been given up."""
        running = self._running.pop(held, None)
        if running is not None:
            kind, key, hook = running
            self._failures.tell(ErrorEvent(held[0], kind.name, key, hook, too_long(hook)))

    def clear(self) -> None:
        """The worker has died, or begins anew."""
        self._awake.clear()

    def _kind(self, claimed: Claimed) -> ActorType | None:
        if claimed.unreadable:
            return None
        try:
            return self._catalog(claimed.name)
        except LookupError:
            return None

    def _run(self, kind: ActorType, held: Held, key: str, hook: str, wanted: Wanted) -> tuple[Any] | None:
        """What the hook returned; None when it raised."""
        vars = (lambda: self._vars.of(kind, held)) if hook != "create_vars" else None
        self._running[held] = kind, key, hook
        try:
            return (run_worker_hook(held[0], kind.name, hook, vars, wanted),)
        except ActorNotFound:
            logger.debug("%s of a %s is not called: the actor was destroyed", hook, kind.name)
        except BaseException as error:
            if not wanted():
                logger.info("%s of a %s has ended after it was given up", hook, kind.name)
                return None
            self._failures.tell(ErrorEvent(held[0], kind.name, key, hook, describe(error)))
        finally:
            self._running.pop(held, None)
        return None


class Waking:
    """Actors that were claimed and are on their way through ``create_vars`` and ``on_wake``: the core has not got them
    yet. ``submit`` runs a job, ``tell`` is called by it when it is through, ``skip`` says that hooks are not wanted
    any more, as the worker stops."""

    def __init__(
        self,
        hooks: Hooks,
        submit: Callable[[HookJob], None],
        tell: Callable[[Claimed], None],
        skip: Callable[[], bool],
    ) -> None:
        self._hooks = hooks
        self._submit = submit
        self._tell = tell
        self._skip = skip
        self._claimed: dict[UUID, Claimed] = {}

    def __len__(self) -> int:
        return len(self._claimed)

    @property
    def ids(self) -> set[UUID]:
        """The actors."""
        return set(self._claimed)

    def begin(self, claimed: list[Claimed]) -> list[Claimed]:
        """Begin with those that have hooks; the others are ready."""
        ready = []
        for one in claimed:
            if self._hooks.wanted(one):
                self._begin(one)
            else:
                self._hooks.note(one)
                ready.append(one)
        return ready

    def end(self, woken: list[Claimed]) -> list[Claimed]:
        """Those that are through; without what a session before this one began."""
        ours = [one for one in woken if self._claimed.get(one.actor_id) is one]
        for one in ours:
            del self._claimed[one.actor_id]
        return ours

    def _begin(self, claimed: Claimed) -> None:
        def work(wanted: Wanted) -> None:
            if not self._skip():
                self._hooks.wake(claimed, wanted)

        def late() -> None:
            self._hooks.late((claimed.actor_id, claimed.epoch))
            self._hooks.note(claimed)

        self._claimed[claimed.actor_id] = claimed
        self._submit(HookJob(work, lambda: self._tell(claimed), late))
